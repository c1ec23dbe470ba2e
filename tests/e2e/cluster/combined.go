package cluster

import (
	"context"
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
	// guarded by mu: texts that were asked for, by kind, prompt and length
	texts map[string]string
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
	c = &Combined{URL: "http://" + Address(port), process: p, texts: map[string]string{}}
	run.mu.Lock()
	run.combined = c
	run.mu.Unlock()
	return c
}

var starting sync.Mutex

// Text is what a request must be answered with; it is asked once.
func (c *Combined) Text(t testing.TB, q Completion) string {
	t.Helper()
	text, err := c.text(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (c *Combined) text(ctx context.Context, q Completion) (string, error) {
	q.Stream = false
	key := string(q.Body())
	c.mu.Lock()
	text, known := c.texts[key]
	c.mu.Unlock()
	if known {
		return text, nil
	}
	a, err := Complete(ctx, c.URL, q)
	if err == nil {
		err = a.Check(q)
	}
	if err != nil {
		return "", fmt.Errorf("combined replica: %w", err)
	}
	c.mu.Lock()
	c.texts[key] = a.Text
	c.mu.Unlock()
	return a.Text, nil
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
