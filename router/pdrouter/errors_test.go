package pdrouter

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

const interrupted = `"code":"upstream_interrupted"}}` + "\n\n" + doneEvent

// Cases B06 and B29.
//
// Behaviours 132 and 133.
func TestBrokenDecodeStreamEndsWithAnErrorEvent(t *testing.T) {
	s := newStand(t, settings{before: func(s *stand) {
		s.decodes[0].post = func(c *edge.Call) {
			c.Stream(200, openai.TypeEvents, func(w *edge.StreamWriter) error {
				w.WriteString(oneEvent + "data: {\"half")
				w.Flush()
				return errors.New("killed")
			})
		}
	}})
	r, body := s.ask("POST", "/v1/completions", streamed)
	require.Equal(t, 200, r.StatusCode)
	require.True(t, strings.HasPrefix(body, oneEvent+`data: {"object":"error","message":"the answer of decode node `), "%s", body)
	require.True(t, strings.HasSuffix(body, interrupted), "%s", body)
	take(t, s.decodes[0].aborts)
	s.untilFree()
}

// Case B29: an error event of the node is the only one.
func TestDecodesOwnErrorEventPassesAndEndsTheRequest(t *testing.T) {
	failure := "data: " + string(openai.AppendError(nil, pd.Errorf(pd.CodeDecodeExhausted, "decode", "no page"))) + "\n\n"
	s := newStand(t, settings{before: func(s *stand) {
		s.decodes[0].post = func(c *edge.Call) {
			c.Stream(200, openai.TypeEvents, func(w *edge.StreamWriter) error {
				w.WriteString(oneEvent + failure + doneEvent)
				return w.Flush()
			})
		}
	}})
	_, body := s.ask("POST", "/v1/completions", streamed)
	require.Equal(t, oneEvent+failure+doneEvent, body)
	// It has told the client; whether its memory is free is another question.
	require.Equal(t, "decode has failed the request", take(t, s.decodes[0].aborts).Reason)
	s.untilFree()
	require.EqualValues(t, 1, s.router.stats.states[stateFailed])
}

// A model's text that cannot be read is the client's to know, with its own status, in
// either form; the handoff has ended by then.
func TestInvalidModelOutputReachesTheClient(t *testing.T) {
	why := pd.Errorf(pd.CodeInvalidModelOutput, "read output", "the model's tool call 0 is not readable")
	event := "data: " + string(openai.AppendError(nil, why)) + "\n\n"
	s := newStand(t, settings{before: func(s *stand) {
		s.decodes[0].post = func(c *edge.Call) {
			if string(c.Body()) == plain {
				refuses(why)(c)
				return
			}
			c.Stream(200, openai.TypeEvents, func(w *edge.StreamWriter) error {
				w.WriteString(oneEvent + event + doneEvent)
				return w.Flush()
			})
		}
	}})
	r, body := s.ask("POST", "/v1/completions", plain)
	require.Equal(t, 400, r.StatusCode)
	require.Equal(t, "invalid_model_output", codeOf(t, body))
	require.Contains(t, body, `"type":"invalid_model_output"`)
	require.Empty(t, r.Header.Get("Retry-After"))
	s.untilFree()
	r, body = s.ask("POST", "/v1/completions", streamed)
	require.Equal(t, 200, r.StatusCode)
	require.Equal(t, oneEvent+event+doneEvent, body)
	s.untilFree()
	require.EqualValues(t, 2, s.router.stats.states[stateFailed])
}
