package e2e

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// Behaviour 37, 83, 159: whatever ends a generation, and however it is asked
// for, the pair's answer is the combined one in every field.
func TestEveryKindOfRequestIsAnsweredAsByOneProcess(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	c := cluster.Start(t, cluster.Options{PLayout: "dp2tp2", DLayout: "dp4tp1"})
	fields := func(pairs ...any) map[string]any {
		out := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			out[pairs[i].(string)] = pairs[i+1]
		}
		return out
	}
	for _, k := range []struct {
		name    string
		request cluster.Completion
		finish  string
	}{
		{"chat", cluster.Completion{Prompt: "Tell me about the Forbidden City.", Max: 40, Chat: true}, "length"},
		{"chat with turns", cluster.Completion{Max: 40, Chat: true, Fields: fields("messages", []map[string]any{
			{"role": "system", "content": "Be short."},
			{"role": "user", "content": []map[string]string{{"type": "text", "text": "Räume, 房间"}, {"type": "text", "text": "?"}}},
			{"role": "assistant", "content": "Many."},
			{"role": "user", "content": strings.Repeat("How many? ", 40)},
		})}, "length"},
		{"one token", cluster.Completion{Prompt: "one", Max: 1}, "length"},
		{"stop string", cluster.Completion{Prompt: "stop", Max: 400, Fields: fields("stop", []string{" the", " of"})}, "stop"},
		{"stop string over two words", cluster.Completion{Prompt: "stop twice", Max: 1200, Fields: fields("stop", ". a")}, ""},
		{"end of text", cluster.Completion{Prompt: "end", Max: 4000, Fields: fields("ignore_eos", nil)}, "stop"},
		{"tokens", cluster.Completion{Max: 20, Fields: fields("prompt", []int{258, 65, 66, 67, 512, 700, 129279})}, "length"},
		{"one list of tokens", cluster.Completion{Max: 20, Fields: fields("prompt", [][]int{{65, 66}})}, "length"},
		{"new name of the limit", cluster.Completion{Prompt: "new", Chat: true, Fields: fields("max_tokens", nil, "max_completion_tokens", 9)}, "length"},
		{"seed and top_p", cluster.Completion{Prompt: "seed", Max: 9, Fields: fields("seed", 7, "top_p", 0.5, "user", "me")}, "length"},
	} {
		want := combined.Answer(t, k.request)
		require.Equal(t, 200, want.Status, "%s: %s", k.name, want.Raw)
		if k.finish != "" {
			require.Equal(t, k.finish, want.Finish, k.name)
		}
		require.NotEmpty(t, want.Text, k.name)
		for _, stream := range []bool{false, true} {
			q := k.request
			q.Stream = stream
			got, err := cluster.Complete(t.Context(), c.URL, q)
			require.NoError(t, err, k.name)
			require.Equal(t, 200, got.Status, "%s: %s", k.name, got.Raw)
			require.Equal(t, want.Text, got.Text, "%s, stream %t", k.name, stream)
			require.Equal(t, want.Finish, got.Finish, "%s, stream %t", k.name, stream)
			require.Equal(t, want.PromptTokens, got.PromptTokens, "%s, stream %t", k.name, stream)
			require.Equal(t, want.CompletionTokens, got.CompletionTokens, "%s, stream %t", k.name, stream)
			require.Equal(t, got.ID, got.Header.Get("X-Request-Id"), k.name)
		}
	}
	c.AssertIdle(t)
	for _, path := range []string{"/v1/models", "/v1/models/" + cluster.Model} {
		status, body, err := cluster.Get(c.URL + path)
		require.NoError(t, err)
		require.Equal(t, 200, status)
		require.Contains(t, string(body), `"id":"`+cluster.Model+`"`)
	}
}

// Behaviour 171, 172: a prefill that goes on, and a generation that goes on,
// may take many times longer than the handoff timeout, for which one step alone
// lasts here.
func TestWhatGoesOnMayTakeLongerThanTheHandoffTimeout(t *testing.T) {
	t.Parallel()
	const handoffSeconds = 2
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			t.Parallel()
			combined := cluster.SharedCombined(t)
			c := cluster.Start(t, cluster.Options{
				PLayout: "dp2tp1", DLayout: "dp2tp1", HandoffSeconds: handoffSeconds,
				PrefillFlags: []string{"--sim-prefill-rate", "50"}, DecodeFlags: []string{"--sim-decode-rate", "10"},
			})
			q := cluster.Completion{Prompt: cluster.Prompt("goes on", 1024), Max: 64, Stream: stream}
			began := time.Now()
			require.Equal(t, combined.Text(t, q), cluster.MustComplete(t, c.URL, q).Text)
			require.Greater(t, time.Since(began), 10*handoffSeconds*time.Second, "the request was not slow")
			c.AssertIdle(t)
			require.Zero(t, c.Decode[0].Count(t, journal.HandoffFailed))
		})
	}
}

// Behaviour 169: an answer ends when its request is over on decode, and not
// before, also where the first token ends it: who has read the end finds the slot
// free. The memory follows at once, as the last effect of the same step.
func TestAnswerEndsWhenItsRequestIsOver(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{PLayout: "dp2tp1", DLayout: "dp2tp1", DecodeFlags: []string{"--no-enable-prefix-caching"}})
	decode := c.Decode[0]
	free := func() int {
		m, err := cluster.Metrics(decode.URL())
		require.NoError(t, err)
		return int(m.Sum("pypto_pd_pages", "state", "free"))
	}
	atStart := free()
	require.Positive(t, atStart)
	for i := range 12 {
		q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint("ends ", i, " "), 140), Max: 1 + 7*(i%2), Stream: i%3 == 0}
		cluster.MustComplete(t, c.URL, q)
		said, err := decode.Describe() // asked once
		require.NoError(t, err)
		require.Zero(t, said.Capacity.Active, "request %d of %d tokens: %+v", i, q.Max, said.Capacity)
		cluster.Eventually(t, func() error {
			if n := free(); n != atStart {
				return fmt.Errorf("request %d of %d tokens: %d pages are free, want %d", i, q.Max, n, atStart)
			}
			return nil
		})
	}
	c.AssertIdle(t)
}

// Everything works over IPv6 too.
func TestPairOverIPv6(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("this machine has no IPv6 loopback: %v", err)
	}
	l.Close()
	combined := cluster.SharedCombined(t)
	c := cluster.Start(t, cluster.Options{PLayout: "dp2tp2", DLayout: "dp4tp1", Host: "::1"})
	q := cluster.Completion{Prompt: cluster.Prompt("six", 300), Max: 16, Stream: true}
	require.Equal(t, combined.Text(t, q), cluster.MustComplete(t, c.URL, q).Text)
	require.Contains(t, string(c.Prefill[0].Entry.NodeID), "[::1]:")
	c.AssertIdle(t)
}

// The service manager is told when a process is ready and when it stops.
func TestServiceManagerIsTold(t *testing.T) {
	t.Parallel()
	path, _ := cluster.WriteConfig(t, cluster.Options{})
	for name, command := range map[string]cluster.Command{
		"node":   {Program: cluster.Serving, Args: append(cluster.Layout(t, "dp2tp1"), "--pd-config", path, "--pd-role", "decode")},
		"router": {Program: cluster.Router, Args: []string{"--pd-config", path, "--port", "0"}},
	} {
		socket := filepath.Join(t.TempDir(), "notify")
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		require.NoError(t, l.SetReadDeadline(time.Now().Add(cluster.Patience)))
		next := func() string {
			buf := make([]byte, 64)
			n, err := l.Read(buf)
			require.NoError(t, err, name)
			return string(buf[:n])
		}
		command.Label, command.Env = name, []string{"NOTIFY_SOCKET=" + socket}
		p := cluster.Spawn(t, command)
		require.Equal(t, "READY=1", next(), name)
		require.Zero(t, p.Stop(t), "%s", p.Tail())
		require.Equal(t, "STOPPING=1", next(), name)
	}
}
