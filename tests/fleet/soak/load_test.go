package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// turn is one request of a conversation, as its user saw it.
type turn struct {
	user, number int
	request      string // the router's id of it
	session      string
	replica      string // who says that it answered
	begin, end   time.Time
	err          error
}

// load is users that talk, each one turn after the other.
type load struct {
	url string
	// turns bounds each user; 0 talks until the context ends. A conversation has
	// so many turns.
	turns, conversation int
	think               time.Duration

	mu   sync.Mutex
	seen []turn
}

// errCut is an answer that ended before its last event.
var errCut = errors.New("the answer has no end")

// talk runs n users until they are through or the context ends. A turn that is
// under way then is not counted.
func (l *load) talk(ctx context.Context, n int) {
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	var users sync.WaitGroup
	for user := range n {
		users.Go(func() {
			session := ""
			for number := 0; ctx.Err() == nil && (l.turns == 0 || number < l.turns); number++ {
				if number%l.conversation == 0 {
					session = ""
				}
				t := turn{user: user, number: number, session: session, begin: time.Now()}
				t.err = l.say(ctx, client, &t)
				t.end = time.Now()
				if t.session != "" {
					session = t.session
				}
				if ctx.Err() != nil {
					return
				}
				l.mu.Lock()
				l.seen = append(l.seen, t)
				l.mu.Unlock()
				select {
				case <-time.After(l.think):
				case <-ctx.Done():
				}
			}
		})
	}
	users.Wait()
}

// say makes one turn and notes who answered. The error is how it failed.
func (l *load) say(ctx context.Context, client *http.Client, t *turn) error {
	q, err := http.NewRequestWithContext(ctx, "POST", l.url+"/v1/chat/completions", strings.NewReader(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "application/json")
	if t.session != "" {
		q.Header.Set("X-Session-Id", t.session)
	}
	a, err := client.Do(q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	t.session, t.request = a.Header.Get("X-Session-Id"), a.Header.Get("X-Request-Id")
	done := false
	lines := bufio.NewScanner(a.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case a.StatusCode != 200:
			return fmt.Errorf("status %d: %s", a.StatusCode, lines.Text())
		case data == "[DONE]":
			done = true
		case ok:
			var event struct {
				By string `json:"served_by"`
			}
			if err := json.Unmarshal([]byte(data), &event); err != nil {
				return err
			}
			t.replica = event.By
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !done {
		return errCut
	}
	return nil
}

// turnsSeen are the turns that have ended so far.
func (l *load) turnsSeen() []turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]turn(nil), l.seen...)
}

// chosen reads from the router's log which replica each request was given to.
func chosen(log string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(log) {
		var l struct{ Msg, Request, Replica string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "request" {
			out[l.Request] = l.Replica
		}
	}
	return out
}
