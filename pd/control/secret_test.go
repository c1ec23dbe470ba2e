package control

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	stdhttp "net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

func secretOf(t testing.TB, text string) *Secret {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	s, err := LoadSecret(path)
	require.NoError(t, err)
	return s
}

var (
	oneSecret     = strings.Repeat("one secret ", 4)
	anotherSecret = strings.Repeat("another secret ", 4)
)

// guarded serves a node that demands a secret and gives its address.
func guarded(t testing.TB, secret *Secret, service Service, boot pd.BootID) string {
	t.Helper()
	s, err := Listen(ServerConfig{Address: "127.0.0.1:0", Secret: secret, Self: boot})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(service) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, s.Shutdown(ctx))
		require.NoError(t, <-ended)
	})
	return s.Addr().String()
}

func (s *scriptedNode) seen() any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func signing(t testing.TB, secret *Secret) *Client {
	c := NewClient(ClientConfig{Signer: NewSigner(secret, pd.NewBootID())})
	t.Cleanup(c.Close)
	return c
}

// bootOf is the boot that the golden descriptor says.
func bootOf(t testing.TB) pd.BootID { return read[wire.Node](t, "node").Boot }

func TestSecretFilesWithMistakesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "it has 0 bytes",
		strings.Repeat("x", 31):    "it has 31 bytes, want 32..4096",
		strings.Repeat("x", 4097):  "want 32..4096",
		strings.Repeat("x", 20000): "want 32..4096",
	} {
		path := filepath.Join(t.TempDir(), "secret")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := LoadSecret(path)
		require.ErrorContains(t, err, want)
	}
	_, err := LoadSecret("missing")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestEveryMessageIsProvenBothWays(t *testing.T) {
	node := &scriptedNode{t: t}
	to := target.at(guarded(t, secretOf(t, oneSecret), node, bootOf(t)))
	for name, f := range calls(t, signing(t, secretOf(t, oneSecret)), to) {
		_, _, err := f(bound(t))
		require.NoError(t, err, name)
	}
	// Refusals of the node itself keep their code.
	node.err = pd.Errorf(pd.CodeBusy, "op", "full")
	_, err := signing(t, secretOf(t, oneSecret)).Abort(bound(t), to, read[wire.Abort](t, "abort"))
	require.ErrorIs(t, err, pd.CodeBusy)
}

func TestWhoHasNotTheSecretIsNeitherHeardNorBelieved(t *testing.T) {
	for name, c := range map[string]struct {
		server, client string
		want           string
	}{
		"the caller has none":    {oneSecret, "", "this node has a control secret, and the call carries no proof of it"},
		"the node has none":      {"", oneSecret, "the answer carries no proof"},
		"they have not the same": {oneSecret, anotherSecret, "another control secret"},
	} {
		t.Run(name, func(t *testing.T) {
			load := func(text string) *Secret {
				if text == "" {
					return nil
				}
				return secretOf(t, text)
			}
			node := &scriptedNode{t: t}
			to := target.at(guarded(t, load(c.server), node, bootOf(t)))
			for call, f := range calls(t, signing(t, load(c.client)), to) {
				_, _, err := f(bound(t))
				require.ErrorIs(t, err, pd.CodeUnauthorized, call)
				require.ErrorContains(t, err, c.want, call)
			}
			require.Nil(t, node.seen(), "no message reached the node")
		})
	}
}

// recording keeps what passes to a server, byte for byte.
type recording struct {
	mu   sync.Mutex
	sent []string
}

func record(t *testing.T, address string) (*recording, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &recording{}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer in.Close()
				br := bufio.NewReader(in)
				for {
					q, err := stdhttp.ReadRequest(br)
					if err != nil {
						return
					}
					body, _ := io.ReadAll(q.Body)
					var b bytes.Buffer
					fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: h\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s", q.Method, q.RequestURI, headerProof, q.Header.Get(headerProof), len(body), body)
					r.mu.Lock()
					r.sent = append(r.sent, b.String())
					r.mu.Unlock()
					out, err := net.Dial("tcp", address)
					if err != nil {
						return
					}
					out.Write(b.Bytes())
					a, err := stdhttp.ReadResponse(bufio.NewReader(out), q)
					if err == nil {
						a.Write(in)
					}
					out.Close()
				}
			})
		}
	})
	return r, l.Addr().String()
}

// What a stranger has recorded is worth nothing: not again, not with another
// body, path or receiver, not to the node's next life.
func TestRecordedCallsAreWorthNothing(t *testing.T) {
	node := &scriptedNode{t: t}
	boot := bootOf(t)
	address := guarded(t, secretOf(t, oneSecret), node, boot)
	tape, tapped := record(t, address)
	_, err := signing(t, secretOf(t, oneSecret)).Abort(bound(t), target.at(tapped), read[wire.Abort](t, "abort"))
	require.NoError(t, err)
	require.Len(t, tape.sent, 2, "hello and abort")
	hello, abort := tape.sent[0], tape.sent[1]
	node.mu.Lock()
	node.last = nil
	node.mu.Unlock()
	say := func(address, text string) (int, string) {
		nc, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(20 * time.Second))
		_, err = io.WriteString(nc, text)
		require.NoError(t, err)
		r, err := stdhttp.ReadResponse(bufio.NewReader(nc), nil)
		require.NoError(t, err)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return r.StatusCode, string(body)
	}
	next := guarded(t, secretOf(t, oneSecret), node, pd.NewBootID())
	for name, c := range map[string]struct{ address, text, want string }{
		"again":              {address, abort, "heard before"},
		"another body":       {address, strings.Replace(abort, "handoff", "Handoff", 1), "another control secret"},
		"another path":       {address, strings.Replace(abort, wire.PathAbort, wire.PathStatus, 1), "another control secret"},
		"another counter":    {address, strings.Replace(abort, ";1;", ";2;", 1), "another control secret"},
		"another receiver":   {address, strings.Replace(abort, string(boot), anyBoot, 1), "another control secret"},
		"a later life":       {next, abort, "another life"},
		"no proof":           {address, strings.Replace(abort, headerProof, "X-Other", 1), "no proof"},
		"half a proof":       {address, strings.Replace(abort, ";1;", ";", 1), "no proof"},
		"hello as something": {address, strings.Replace(hello, "GET "+wire.PathNode, "POST "+wire.PathAbort, 1), "another control secret"},
	} {
		require.Equal(t, name == "again" || name == "a later life", c.text == abort, name)
		status, body := say(c.address, c.text)
		require.Equal(t, 401, status, "%s: %s", name, body)
		require.Contains(t, body, c.want, name)
	}
	require.Nil(t, node.seen(), "nothing reached the node")
	status, _ := say(address, hello)
	require.Equal(t, 200, status, "a question for the descriptor changes nothing and may be repeated")
}

// A node that restarted at its address is greeted again by itself.
func TestNewLifeOfANodeIsLearnt(t *testing.T) {
	secret := secretOf(t, oneSecret)
	node := &scriptedNode{t: t}
	address := guarded(t, secret, node, bootOf(t))
	c := signing(t, secret)
	c.signer.learn(address, pd.NewBootID()) // what it had been
	_, err := c.Abort(bound(t), target.at(address), read[wire.Abort](t, "abort"))
	require.NoError(t, err)
	require.Equal(t, bootOf(t), c.signer.peers[address].boot)
}

func TestManyProvenCallsAtOnceAreAllHeard(t *testing.T) {
	secret := secretOf(t, oneSecret)
	to := target.at(guarded(t, secret, &scriptedNode{t: t}, bootOf(t)))
	c := signing(t, secret)
	abort := read[wire.Abort](t, "abort")
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 25 {
				if _, err := c.Abort(bound(t), to, abort); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// The window hears each counter at most once, whatever the order, and every one
// that fewer than its width of later ones overtook.
func TestWindowHearsEachCounterOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w window
		heard := map[uint64]bool{}
		highest := uint64(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			base := int64(highest)
			n := base + rapid.OneOf(rapid.Int64Range(-1100, 1100), rapid.Int64Range(-3, 3), rapid.Int64Range(0, 5000)).Draw(t, "step")
			if n < 1 {
				continue
			}
			u := uint64(n)
			want := !heard[u] && (u > highest || highest-u < windowCounters)
			if got := w.hear(u); got != want {
				t.Fatalf("counter %d after %d: heard %t, want %t", u, highest, got, want)
			}
			if want {
				heard[u] = true
			}
			highest = max(highest, u)
		}
	})
}

func TestSendersAreBounded(t *testing.T) {
	g := newGuard(secretOf(t, oneSecret), bootOf(t))
	for i := range maxSenders {
		g.senders[fmt.Sprint(i)] = &window{}
	}
	s, err := Listen(ServerConfig{Address: "127.0.0.1:0"})
	require.NoError(t, err)
	s.guard = g
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(&scriptedNode{t: t}) }()
	defer func() {
		require.NoError(t, s.Shutdown(context.Background()))
		require.NoError(t, <-ended)
	}()
	c := signing(t, g.secret)
	_, err = c.Abort(bound(t), target.at(s.Addr().String()), read[wire.Abort](t, "abort"))
	require.ErrorContains(t, err, "restart it")
	require.Len(t, g.senders, maxSenders)
	c.Close()
}
