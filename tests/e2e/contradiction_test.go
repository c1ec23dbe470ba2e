package e2e

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

var thought = regexp.MustCompile(`"reasoning":"((?:[^"\\]|\\.)*)"`)

// reasoning is what an answer says of its reasoning, as JSON text.
func reasoning(a cluster.Answer) (out string) {
	for _, m := range thought.FindAllSubmatch(a.Raw, -1) {
		out += string(m[1])
	}
	return out
}

// Case B33, Behaviour 149: no field of a request contradicts what prefill makes of it: alone and
// together, each is answered by a pair as by one node.
func TestNoFieldContradictsThePrefillLeg(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	c := cluster.Start(t, cluster.Options{PLayout: "dp1tp1", DLayout: "dp1tp1"})
	var tools []any
	require.NoError(t, json.Unmarshal([]byte("["+clock+"]"), &tools))
	each := map[string]map[string]any{
		"none":                  {},
		"min_tokens":            {"min_tokens": 6},
		"max_completion_tokens": {"max_completion_tokens": 9},
		"stop":                  {"stop": []string{"e", "zz"}},
		"ignore_eos":            {"ignore_eos": true},
		"response_format":       {"response_format": map[string]any{"type": "text"}},
		"tools":                 {"tools": tools, "tool_choice": "auto"},
		"reasoning":             {"reasoning_effort": "low"},
		"thinking":              {"chat_template_kwargs": map[string]any{"enable_thinking": true}, "include_reasoning": false},
		"logprobs":              {"logprobs": true, "top_logprobs": 5},
		"seed":                  {"seed": 9007199254740993, "top_p": 0.95},
	}
	all := map[string]any{}
	for name, fields := range each {
		if name != "logprobs" && name != "reasoning" { // which a pair and one node refuse alike
			maps.Copy(all, fields)
		}
	}
	each["together"] = all
	for _, name := range slices.Sorted(maps.Keys(each)) {
		for _, stream := range []bool{false, true} {
			fields := maps.Clone(each[name])
			q := cluster.Completion{Chat: true, Prompt: "what time is it?", Max: 12, Stream: stream, Fields: fields}
			want, err := cluster.Complete(t.Context(), combined.URL, q)
			require.NoError(t, err)
			got, err := cluster.Complete(t.Context(), c.URL, q)
			require.NoError(t, err)
			require.Equal(t, want.Status, got.Status, "%s: %s", name, got.Raw)
			if want.Status != 200 {
				require.Equal(t, want.Failure, got.Failure, name)
				continue
			}
			require.Equal(t, want.Text, got.Text, name)
			require.Equal(t, want.Finish, got.Finish, name)
			require.Equal(t, reasoning(want), reasoning(got), name)
			require.Equal(t, name == "reasoning", reasoning(got) != "", name)
			require.Equal(t, [2]int{want.PromptTokens, want.CompletionTokens}, [2]int{got.PromptTokens, got.CompletionTokens}, name)
			require.Equal(t, stream, strings.HasPrefix(got.Header.Get("Content-Type"), "text/event-stream"), name)
		}
	}
	c.AssertIdle(t)
}
