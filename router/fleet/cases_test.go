package fleet

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// Case B15: no limit on a step cuts a stream that flows, a client that reads slowly
// holds up nobody, and a slow upload is cut far below the request timeout.
func TestLimitsOfStepsDoNotCutStreams(t *testing.T) {
	const limit = 100 * time.Millisecond
	s := newRig(t, rigOptions{replicas: 1, server: edge.ServerConfig{HeaderTimeout: limit, BodyTimeout: limit, IdleTimeout: limit, WriteStall: 2 * time.Second}})
	s.replicas[0].answer(func(c *edge.Call) {
		c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
			tick := time.NewTicker(limit / 4)
			defer tick.Stop()
			for range 16 {
				<-tick.C
				w.WriteString("data: " + strings.Repeat("x", 1000) + "\n\n")
				if err := w.Flush(); err != nil {
					return err
				}
			}
			return nil
		})
	})
	slow, slowReader := s.raw("POST " + pathChat + " HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\n{}")
	a := s.post(chatBody(""))
	assert.Equal(t, 200, a.status)
	assert.Len(t, a.body, 16*1008)
	r, err := http.ReadResponse(slowReader, nil)
	require.NoError(t, err)
	all, err := io.ReadAll(r.Body)
	require.NoError(t, err, "who reads late gets it all")
	assert.Equal(t, a.body, string(all))
	slow.Close()
	_, br := s.raw("POST " + pathChat + " HTTP/1.1\r\nHost: r\r\nX-Session-Id: mine\r\nContent-Length: 100\r\n\r\nslow")
	r, err = http.ReadResponse(br, nil)
	require.NoError(t, err)
	assert.Equal(t, 408, r.StatusCode)
	assert.Equal(t, "mine", r.Header.Get(SessionHeader))
	assert.Len(t, s.replicas[0].requests(), 2)
}

// Case B25: health is the status of /health, whatever its body says. A body that never
// ends is bounded by the connect timeout and delays no other replica's probes.
func TestHealthIsTheStatusAlone(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 2, edit: func(o *Options) { o.HealthInterval, o.ConnectTimeout = 5*time.Millisecond, 50*time.Millisecond }})
	html, endless := make(chan struct{}, 1000), make(chan struct{}, 1000)
	rawReplica(t, s.replicas[0], func(nc net.Conn, br *bufio.Reader) {
		if _, err := http.ReadRequest(br); err == nil {
			io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>")
			html <- struct{}{}
		}
	})
	rawReplica(t, s.replicas[1], func(nc net.Conn, br *bufio.Reader) {
		if _, err := http.ReadRequest(br); err == nil {
			io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
			endless <- struct{}{}
			io.Copy(io.Discard, br)
		}
	})
	for range 3 {
		await(t, endless)
	}
	for len(html) > 0 {
		<-html
	}
	for range 6 {
		await(t, html)
	}
	assert.True(t, s.view("a").Ready)
}

// Case B29: what a replica says of a late failure passes as it is, and nothing is
// added to it; one that says nothing ends without a proper end.
func TestLateErrorsPassAsTheyAre(t *testing.T) {
	const failed = "data: {\"a\":1}\n\ndata: {\"error\":{\"message\":\"m\",\"type\":\"invalid_model_output\",\"code\":400}}\n\ndata: [DONE]\n\n"
	s := newRig(t, rigOptions{replicas: 1})
	s.replicas[0].answer(func(c *edge.Call) {
		c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
			w.WriteString(failed)
			return nil
		})
	})
	a := s.post(chatBody(""))
	assert.Equal(t, failed, a.body)
	s.replicas[0].answer(func(c *edge.Call) {
		c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
			w.WriteString("data: {\"a\":1}\n\n")
			w.Flush()
			return errors.New("cut")
		})
	})
	a, err := s.try("POST", pathChat, chatBody(""))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.Equal(t, "data: {\"a\":1}\n\n", a.body)
}

// Case B50: of equal names the last counts, as in the engines, however they are
// written; what is deeper, or of another case, is another name.
func TestTheLastOfEqualNamesCounts(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1})
	for body, want := range map[string]string{
		`{"session_id":"first","session_id":"last","stream":false,"stream":true}`: "last",
		`{"session_id":"first","sess\u0069on_id":"last"}`:                         "last",
		`{"session_id":"right","Session_Id":"x","a":{"session_id":"y"}}`:          "right",
		`{"a":"\"session_id\":\"x\"","session_id":"right"}`:                       "right",
	} {
		assert.Equal(t, want, s.post(body).session(), body)
		got := s.replicas[0].requests()
		assert.Equal(t, body, got[len(got)-1].body)
	}
}

// Case B51: many ids cost pins and not memory, and each is answered.
func TestManyConversationsAreBounded(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1, edit: func(o *Options) { o.MaxSessions = 50 }})
	for i := range 200 {
		require.Equal(t, fmt.Sprint("c-", i), s.post("{}", fmt.Sprint("X-Session-Id: c-", i)).session())
	}
	v := s.pool.Snapshot()
	assert.Equal(t, 50, v.Sessions)
	assert.EqualValues(t, 150, v.Counts.Evicted)
}

// A router without descriptors says so, and holds it against no replica.
func TestRouterOutOfDescriptorsBlamesNobody(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1})
	const request = "POST " + pathChat + " HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\n{}"
	nc, br := s.raw(request)
	answer := func() (int, string) {
		t.Helper()
		r, err := http.ReadResponse(br, nil)
		require.NoError(t, err)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return r.StatusCode, string(body)
	}
	status, _ := answer()
	require.Equal(t, 200, status)
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 200, Max: before.Max}))
	var files []*os.File
	back := sync.OnceFunc(func() {
		for _, f := range files {
			f.Close()
		}
		assert.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before))
	})
	defer back()
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			require.ErrorIs(t, err, syscall.EMFILE)
			break
		}
		files = append(files, f)
	}
	_, err := io.WriteString(nc, request)
	require.NoError(t, err)
	status, body := answer()
	back()
	assert.Equal(t, 503, status)
	assert.Contains(t, body, `{"object":"error","message":"the router is out of connections",`)
	s.idle()
	assert.True(t, s.view("a").Ready)
	s.logged(t, "cause="+causeLocal)
	assert.Equal(t, 200, s.post(chatBody("")).status)
}
