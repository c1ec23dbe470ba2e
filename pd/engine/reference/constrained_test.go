package reference_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/pages"
)

const paragraph = `{"format":{"schema":{"type":"object","properties":{"城市":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":9}},"required":["城市","days"]}}}`

func bound(t *testing.T, b *bench, text string) pd.Continuation {
	c := continuation(t, b.engine, text, 400)
	c.Constraint, c.OutputParser = paragraph, engine.ParserTagged
	return c
}

// Behaviour 37: what decode says under a grammar is what one process says, and
// one flipped byte shows as it does without one.
func TestConstrainedTextIsThatOfOneProcess(t *testing.T) {
	for _, text := range []string{"weather", prompt(300)} {
		one := newBench(t, 4, nil)
		s, err := one.engine.Generate(t.Context(), engine.Request{Continuation: bound(t, one, text)})
		require.NoError(t, err)
		want, _, last := drain(t, s)
		require.Equal(t, pd.FinishStop, last.Finish)
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(want), &v), "%s", want)
		require.Contains(t, v, "城市")

		p, d := newBench(t, 2, nil), newBench(t, 1, nil)
		got, last := handOverAs(t, p, d, bound(t, p, text), func(*engine.Adoption, pages.Grant) {})
		require.Equal(t, want, got)
		require.Equal(t, pd.FinishStop, last.Finish)

		p, d = newBench(t, 2, nil), newBench(t, 1, nil)
		got, last = handOverAs(t, p, d, bound(t, p, text), func(_ *engine.Adoption, g pages.Grant) {
			for _, r := range d.layout.Topology.RanksOf(g.Partition) {
				d.memory[r][d.contract.Bootstrap.Component][g.Slot*d.contract.Bootstrap.SlotBytes()] ^= 1
			}
		})
		require.Equal(t, pd.FinishStop, last.Finish)
		require.NotEqual(t, want, got)
		require.NoError(t, json.Unmarshal([]byte(got), &v), "%s", got)
	}
}

// The grammar's seed: decode goes on only with a first token that its own
// grammar accepts, and reads answers only with a parser that it knows.
func TestDecodeRefusesASeedThatItsGrammarDoesNotKnow(t *testing.T) {
	p, d := newBench(t, 1, nil), newBench(t, 1, nil)
	said, last := handOverAs(t, p, d, bound(t, p, "weather"), func(a *engine.Adoption, _ pages.Grant) { a.FirstToken = 'x' })
	require.Empty(t, said)
	require.Equal(t, pd.FinishFailed, last.Finish)
	require.ErrorIs(t, last.Err, pd.CodeIntegrity)

	p, d = newBench(t, 1, nil), newBench(t, 1, nil)
	_, last = handOverAs(t, p, d, bound(t, p, "weather"), func(a *engine.Adoption, _ pages.Grant) { a.Continuation.OutputParser = "another" })
	require.ErrorIs(t, last.Err, pd.CodeUnsupported)
}

// Behaviour 149: reasoning comes first, under the same grammar on both nodes, and
// what is bound behind it stays bound.
func TestReasoningComesBeforeWhatIsBound(t *testing.T) {
	for name, constraint := range map[string]string{"free": `{"reasoning":true}`, "bound": `{"reasoning":true,` + paragraph[1:]} {
		t.Run(name, func(t *testing.T) {
			ask := func(b *bench) pd.Continuation {
				c := bound(t, b, "think")
				c.Constraint = constraint
				return c
			}
			one := newBench(t, 4, nil)
			s, err := one.engine.Generate(t.Context(), engine.Request{Continuation: ask(one)})
			require.NoError(t, err)
			want, _, last := drain(t, s)
			require.Equal(t, pd.FinishStop, last.Finish)
			rest, ok := strings.CutPrefix(want, "<think>")
			require.True(t, ok, want)
			reasoning, answer, ok := strings.Cut(rest, "</think>")
			require.True(t, ok, want)
			require.NotEmpty(t, reasoning)
			require.NotEmpty(t, answer)
			require.Equal(t, name == "bound", json.Valid([]byte(answer)), answer)
			p, d := newBench(t, 2, nil), newBench(t, 1, nil)
			got, _ := handOverAs(t, p, d, ask(p), func(*engine.Adoption, pages.Grant) {})
			require.Equal(t, want, got)
		})
	}
}

func TestTemplateShowsToolsAndCalls(t *testing.T) {
	e := newBench(t, 1, nil).engine
	length := func(p engine.Prompt) int {
		tokens, err := e.Tokenize(p)
		require.NoError(t, err)
		return len(tokens)
	}
	turns := []engine.Message{{Role: "user", Content: "a"}}
	plain := length(engine.Prompt{Messages: turns})
	require.Greater(t, length(engine.Prompt{Messages: turns, Tools: []engine.Tool{{Name: "f"}}}), plain)
	turns[0].ToolCalls = []engine.ToolCall{{ID: "1", Name: "f", Arguments: "{}"}}
	require.Greater(t, length(engine.Prompt{Messages: turns}), plain)
	plainTurn := turns[0]
	turns[0].Reasoning = "because"
	require.Greater(t, length(engine.Prompt{Messages: turns}), length(engine.Prompt{Messages: []engine.Message{plainTurn}}))
	turns[0] = engine.Message{Role: "tool", Content: "a", ToolCallID: "1"}
	require.Greater(t, length(engine.Prompt{Messages: turns}), plain)
}
