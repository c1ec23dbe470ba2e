package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Combined is a replica that does prefill and decode in one process: what every
// pair must say, too. One serves the whole run, because its text depends on
// neither layout nor load. It reuses nothing of earlier prompts.
type Combined struct {
	// URL is where it serves.
	URL     string
	process *Process

	mu sync.Mutex
	// guarded by mu: what was asked for, by path and body
	answers map[string]Answer
}

// SharedCombined gives the run's replica; the first call starts it.
func SharedCombined(t testing.TB) *Combined {
	t.Helper()
	bin := Bin(t)
	run.mu.Lock()
	c, dir := run.combined, filepath.Join(run.dir, "combined")
	run.mu.Unlock()
	if c == nil {
		c = startCombined(t, bin, dir)
	}
	if _, err := c.process.ready(); err != nil {
		t.Fatal(err)
	}
	return c
}

func startCombined(t testing.TB, bin, dir string) *Combined {
	t.Helper()
	port := Ports(t, 1)[0]
	starting.Lock()
	defer starting.Unlock()
	run.mu.Lock()
	c := run.combined
	run.mu.Unlock()
	if c != nil {
		return c // another test was first
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := spawn(bin, dir, Command{Label: "combined", Program: Serving, Args: append(Layout(t, "dp2tp1"),
		"--port", strconv.Itoa(port), "--served-model-name", Model, "--max-num-seqs", "16", "--no-enable-prefix-caching")})
	if err != nil {
		t.Fatal(err)
	}
	c = &Combined{URL: "http://" + Address(port), process: p, answers: map[string]Answer{}}
	run.mu.Lock()
	run.combined = c
	run.mu.Unlock()
	return c
}

var starting sync.Mutex

// Text is what a request must be answered with; its output has exactly the
// tokens that are asked for.
func (c *Combined) Text(t testing.TB, q Completion) string {
	t.Helper()
	a := c.Answer(t, q)
	if err := a.Check(q); err != nil {
		t.Fatalf("combined replica: %v", err)
	}
	return a.Text
}

// Answer is how the replica answers a request that is not streamed; it is asked
// once.
func (c *Combined) Answer(t testing.TB, q Completion) Answer {
	t.Helper()
	q.Stream = false
	key := q.Path() + string(q.Body())
	c.mu.Lock()
	a, known := c.answers[key]
	c.mu.Unlock()
	if known {
		return a
	}
	a, err := Complete(t.Context(), c.URL, q)
	if err != nil {
		t.Fatalf("combined replica: %v", err)
	}
	c.mu.Lock()
	c.answers[key] = a
	c.mu.Unlock()
	return a
}

// end stops the replica, which must be as healthy as at the start.
func (c *Combined) end() error {
	c.process.Signal(syscall.SIGTERM)
	defer c.process.Kill()
	select {
	case <-c.process.ended:
	case <-time.After(Patience):
		return fmt.Errorf("the combined replica has not ended within %v\n%s", Patience, c.process.Tail())
	}
	if code := c.process.command.ProcessState.ExitCode(); code != 0 || errorLine.MatchString(c.process.Stderr()) {
		return fmt.Errorf("the combined replica ended with exit code %d\n%s", code, c.process.Tail())
	}
	return nil
}
