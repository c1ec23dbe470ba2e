package relay

import (
	"errors"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// drainTime is how long an upstream may take from its last event to the end of
// its answer; the client does not wait for it.
const drainTime = time.Second

// MaxWhole bounds an answer that is not streamed: 131,072 generated tokens are
// well below 1 MiB of text, their log probabilities would be some tens of MiB.
const MaxWhole = 64 << 20

// IsEventStream says that an answer is a stream of events that can be looked
// into: not one that is compressed.
func IsEventStream(x *edge.Exchange) bool {
	kind, _, _ := strings.Cut(x.Header("Content-Type"), ";")
	encoding := x.Header("Content-Encoding")
	return strings.EqualFold(strings.TrimSpace(kind), "text/event-stream") && (encoding == "" || strings.EqualFold(encoding, "identity"))
}

// ReplyWhole sends an answer that was read whole.
func ReplyWhole(c *edge.Call, x *edge.Exchange, body []byte, drop func(name string) bool) {
	setHeaders(c, x, drop)
	c.Reply(x.Status(), x.Header("Content-Type"), body)
}

// ReplyError sends an error of the router.
func ReplyError(c *edge.Call, err error) {
	code := pd.CodeOf(err)
	if openai.RetryAfter(code) {
		c.SetHeader("Retry-After", "1")
	}
	c.Reply(openai.HTTPStatus(code), openai.TypeJSON, openai.AppendError(nil, err))
}

// Refuse words what the edge refuses by itself, for edge.ServerConfig.Refuse.
func Refuse(status int, message string) (contentType string, body []byte) {
	err := pd.Errorf(openai.CodeOfStatus(status), "read request", "%s", message)
	return openai.TypeJSON, openai.AppendError(nil, err)
}

// Seen is what passed through an event stream.
type Seen struct {
	// Events and Bytes count what the client got from upstream.
	Events int
	Bytes  int64
	// Done: the event that ends a stream passed. Failed: an error event did.
	Done   bool
	Failed bool
	// Upstream is how the upstream broke, nil if it ended by itself.
	Upstream error
	// Client is a failed write to the client.
	Client error
}

// Whole says that the stream ended as streams end.
func (s Seen) Whole() bool { return s.Done && s.Upstream == nil && s.Client == nil }

// Events relays an event stream with the head of its answer. alive is called
// before the first byte and with every event. A stream that ends or breaks without its last event is
// not repaired: the client gets the error that broken makes of it as one event,
// then the end.
func Events(c *edge.Call, x *edge.Exchange, drop func(name string) bool, alive func(), broken func(s *Seen) error) Seen {
	var seen Seen
	setHeaders(c, x, drop)
	kind := x.Header("Content-Type")
	x.Forget()
	stream := c.Stream(x.Status(), kind, func(w *edge.StreamWriter) error {
		pump := edge.EventPump{First: alive, Strict: true}
		pump.Data = func(prefix []byte) {
			alive()
			switch {
			case string(prefix) == openai.Done:
				seen.Done, pump.End = true, true
			case openai.IsErrorData(prefix):
				seen.Failed = true
			}
		}
		err := pump.Run(w, x)
		seen.Events, seen.Bytes = pump.Events, pump.Bytes
		switch {
		case errors.Is(err, edge.ErrClientGone):
			seen.Client = err
			return err
		case seen.Done:
			// What breaks after the last event has no part in the answer.
			return nil
		}
		seen.Upstream = err
		if err == nil {
			seen.Upstream = &edge.ExchangeError{Phase: edge.PhaseBody, Address: x.Address(), Err: edge.ErrEarlyEnd}
		}
		if pump.MidEvent {
			// The client has half of a very long event; end it.
			w.WriteString("\n\n")
		}
		if !seen.Failed {
			w.WriteString("data: ")
			w.Write(openai.AppendError(nil, broken(&seen)))
			w.WriteString("\n\n")
		}
		return w.WriteEvent([]byte(openai.Done))
	})
	if stream != nil && seen.Client == nil {
		seen.Client = stream
	}
	if seen.Done && seen.Client == nil {
		x.Drain(drainTime)
	}
	return seen
}
