package edge_test

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// copied is a server that passes on what an upstream answers; each call's end comes
// through ends.
func copied(t *testing.T, request edge.Request) (address string, ends chan error, firsts chan struct{}) {
	t.Helper()
	up := client(t, edge.ClientConfig{})
	ends, firsts = make(chan error, 8), make(chan struct{}, 8)
	_, address = serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		x, err := up.Open(c.Context(), request)
		if err != nil {
			ends <- err
			return
		}
		defer x.Close()
		c.Stream(200, "text/plain", func(w *edge.StreamWriter) error {
			n, err := x.CopyTo(w, func() { firsts <- struct{}{} })
			if err == nil && n != c.Sent() && !x.Complete() {
				err = fmt.Errorf("passed on %d bytes, sent %d", n, c.Sent())
			}
			ends <- err
			return err
		})
	})
	return address, ends, firsts
}

func ask(t *testing.T, address string) *bufio.Reader {
	nc := dial(t, address)
	_, err := io.WriteString(nc, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	require.NoError(t, err)
	return bufio.NewReader(nc)
}

// Case B23: whatever the bytes and however they are cut, the client gets the same.
func TestCopyPassesOnEveryByte(t *testing.T) {
	body := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{1}).Read(body)
	for name, framed := range map[string]func(nc io.Writer, cuts []int){
		"chunked": func(nc io.Writer, cuts []int) {
			io.WriteString(nc, "Transfer-Encoding: chunked\r\n\r\n")
			rest := body
			for _, n := range cuts {
				fmt.Fprintf(nc, "%x\r\n%s\r\n", n, rest[:n])
				rest = rest[n:]
			}
			io.WriteString(nc, "0\r\n\r\n")
		},
		"length": func(nc io.Writer, cuts []int) {
			fmt.Fprintf(nc, "Content-Length: %d\r\n\r\n", len(body))
			nc.Write(body)
		},
		"to close": func(nc io.Writer, cuts []int) {
			io.WriteString(nc, "Connection: close\r\n\r\n")
			nc.Write(body)
		},
	} {
		t.Run(name, func(t *testing.T) {
			seed := rand.New(rand.NewPCG(1, 2))
			var cuts []int
			for left := len(body); left > 0; {
				n := min(left, 1+seed.IntN(1<<seed.IntN(17)))
				cuts = append(cuts, n)
				left -= n
			}
			up := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
				readHead(br)
				io.WriteString(nc, "HTTP/1.1 200 OK\r\n")
				framed(nc, cuts)
			})
			address, ends, _ := copied(t, edge.Request{Method: "GET", Address: up, Target: "/"})
			r, got := readResponse(t, ask(t, address), "GET")
			require.Equal(t, []string{"chunked"}, r.TransferEncoding)
			require.Equal(t, sha256.Sum256(body), sha256.Sum256([]byte(got)))
			require.NoError(t, await(t, ends))
		})
	}
}

// What has arrived leaves at once, over plain and secured connections: the next
// piece comes only after the client has the one before.
func TestCopyHoldsNothingBack(t *testing.T) {
	pieces := []string{"a", "bc", "no line end", "\n"}
	next := make(chan struct{}, 1)
	send := func(c *edge.Call) {
		c.Stream(200, "", func(w *edge.StreamWriter) error {
			for _, p := range pieces {
				<-next
				w.WriteString(p)
				w.Flush()
			}
			<-next
			return nil
		})
	}
	_, plain := serve(t, edge.ServerConfig{}, send)
	secured := serveTLS(t, edge.ServerConfig{}, send)
	for name, request := range map[string]edge.Request{
		"plain": {Address: plain}, "TLS": {Address: secured.address, Trust: loadTrust(t, secured.certFile)},
	} {
		t.Run(name, func(t *testing.T) {
			request.Method, request.Target = "GET", "/"
			address, ends, firsts := copied(t, request)
			r, err := http.ReadResponse(ask(t, address), nil)
			require.NoError(t, err, "the head is there before any byte of the body")
			require.Empty(t, firsts)
			for _, p := range pieces {
				next <- struct{}{}
				got := make([]byte, len(p))
				_, err := io.ReadFull(r.Body, got)
				require.NoError(t, err)
				require.Equal(t, p, string(got))
			}
			next <- struct{}{}
			rest, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Empty(t, rest)
			require.NoError(t, await(t, ends))
			require.Len(t, firsts, 1)
		})
	}
}

// Case B06: an answer that breaks upstream is not whole for the client either.
func TestCopyOfABrokenAnswerIsBroken(t *testing.T) {
	for _, reset := range []bool{false, true} {
		got := make(chan struct{})
		up := upstream(t, func(nc *net.TCPConn, br *bufio.Reader) {
			readHead(br)
			io.WriteString(nc, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n4\r\nan")
			await(t, got)
			if reset {
				nc.SetLinger(0)
			}
		})
		address, ends, _ := copied(t, edge.Request{Method: "GET", Address: up, Target: "/"})
		r, err := http.ReadResponse(ask(t, address), nil)
		require.NoError(t, err)
		half := make([]byte, 6)
		_, err = io.ReadFull(r.Body, half)
		require.NoError(t, err)
		close(got)
		require.ErrorIs(t, await(t, ends), edge.ErrEarlyEnd)
		_, err = io.ReadAll(r.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
}

func TestCopyEndsWithItsClient(t *testing.T) {
	ended := make(chan struct{})
	_, up := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		c.Stream(200, "", func(w *edge.StreamWriter) error {
			w.WriteString("x")
			w.Flush()
			<-c.Context().Done()
			close(ended)
			return errors.New("over")
		})
	})
	address, ends, firsts := copied(t, edge.Request{Method: "GET", Address: up, Target: "/"})
	nc := dial(t, address)
	send(t, nc, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	await(t, firsts)
	nc.Close()
	require.ErrorIs(t, await(t, ends), edge.ErrClientGone)
	await(t, ended)
}

func TestSizedStreamAnnouncesItsLengthAndKeepsIt(t *testing.T) {
	ends := make(chan error, 1)
	_, address := serve(t, edge.ServerConfig{}, func(c *edge.Call) {
		ends <- c.StreamSized(200, "text/plain", 10, func(w *edge.StreamWriter) error {
			w.WriteString("01234")
			w.Flush()
			w.WriteString(c.Query())
			return nil
		})
	})
	for rest, whole := range map[string]bool{"56789": true, "5678": false, "567890": false, "": false} {
		nc := dial(t, address)
		send(t, nc, "GET /?"+rest+" HTTP/1.1\r\nHost: h\r\n\r\n")
		br := bufio.NewReader(nc)
		r, err := http.ReadResponse(br, nil)
		require.NoError(t, err)
		require.EqualValues(t, 10, r.ContentLength)
		require.Empty(t, r.TransferEncoding)
		got, err := io.ReadAll(r.Body)
		if !whole {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, rest)
			require.Error(t, await(t, ends))
			continue
		}
		require.NoError(t, err)
		require.Equal(t, "0123456789", string(got))
		require.NoError(t, await(t, ends))
		// The connection goes on.
		send(t, nc, "HEAD /?56789 HTTP/1.1\r\nHost: h\r\n\r\n")
		r, body := readResponse(t, br, "HEAD")
		require.EqualValues(t, 10, r.ContentLength)
		require.Empty(t, body)
		require.NoError(t, await(t, ends))
	}
}
