package pdrouter

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/router/relay"
)

func TestWithoutAValidKeyNothingIsServedAndNoKeyReachesANode(t *testing.T) {
	const key, other = "sk-0123456789abcdef", "sk-fedcba9876543210"
	path := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(path, []byte(key+"\n"+other), 0o600))
	keys, err := relay.LoadKeys(path)
	require.NoError(t, err)
	s := newStand(t, settings{keys: keys})
	for name, header := range map[string][]string{
		"none":       nil,
		"empty":      {"Authorization: "},
		"no scheme":  {"Authorization: " + key},
		"other":      {"Authorization: Basic " + key},
		"wrong":      {"Authorization: Bearer sk-0123456789abcdeF"},
		"longer":     {"Authorization: Bearer " + key + "0"},
		"beginning":  {"Authorization: Bearer sk-0123456789"},
		"two in one": {"Authorization: Bearer " + key + "," + other},
		"second":     {"Authorization: Bearer wrong", "Authorization: Bearer " + key},
	} {
		for _, target := range []string{"/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/nothing"} {
			r, body := s.ask("POST", target, plain, header...)
			require.Equal(t, 401, r.StatusCode, name)
			require.Equal(t, "Bearer", r.Header.Get("WWW-Authenticate"))
			require.Equal(t, "unauthorized", codeOf(t, body))
			require.Contains(t, body, `"type":"authentication_error"`)
			require.NotContains(t, body, "sk-")
		}
	}
	// The head is enough: nobody waits for a body that is not wanted.
	nc := s.dial()
	_, err = io.WriteString(nc, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 30000000\r\n\r\n")
	require.NoError(t, err)
	early, body := s.read(nc)
	require.Equal(t, 401, early.StatusCode)
	require.Equal(t, "unauthorized", codeOf(t, body))
	require.True(t, early.Close)
	// What is refused is not looked into: a request that carries a key within the body
	// of one that has none is no request.
	nc = s.dial()
	hidden := "POST /v1/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + key + "\r\nContent-Length: 26\r\n\r\n" + plain
	_, err = fmt.Fprintf(nc, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%sGET /health HTTP/1.1\r\nHost: h\r\n\r\n", len(hidden), hidden)
	require.NoError(t, err)
	br := bufio.NewReader(nc)
	for _, want := range []int{401, 200} {
		r, err := http.ReadResponse(br, nil)
		require.NoError(t, err)
		require.Equal(t, want, r.StatusCode)
		_, err = io.Copy(io.Discard, r.Body)
		require.NoError(t, err)
	}
	require.Empty(t, s.prefills[0].posts)
	r, _ := s.ask("GET", "/health", "")
	require.Equal(t, 200, r.StatusCode, "probes have no key")
	_, body = s.ask("GET", "/metrics", "")
	require.Contains(t, body, "pypto_router_unauthorized_total 38\n")
	for _, k := range []string{key, other} {
		r, body := s.ask("POST", "/v1/completions", plain, "authorization: bearer  "+k)
		require.Equal(t, 200, r.StatusCode, body)
		for _, n := range s.nodes() {
			require.Empty(t, take(t, n.posts).header.Get("Authorization"))
		}
	}
	require.NoError(t, os.WriteFile(path, []byte(other), 0o600))
	require.NoError(t, keys.Reload())
	r, _ = s.ask("POST", "/v1/completions", plain, "Authorization: Bearer "+key)
	require.Equal(t, 401, r.StatusCode, "a withdrawn key")
	s.untilFree()
}
