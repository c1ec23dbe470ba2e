package fleet

import (
	"sync"
	"time"
)

// The results of reading files again.
const (
	reloadApplied = "applied"
	reloadRefused = "refused"
)

// lastReload is what came of reading files again, as /health shows it.
type lastReload struct {
	Result string    `json:"result"`
	At     time.Time `json:"at"`
	// Text says why it was refused.
	Text string `json:"text,omitempty"`
}

type reloads struct {
	mu sync.Mutex
	// guarded by mu
	last             *lastReload
	applied, refused int64
}

// Reloaded notes that files were read again; err is what could not be taken in.
func (r *Router) Reloaded(err error) {
	l := &r.reloads
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = &lastReload{Result: reloadApplied, At: time.Now().UTC().Truncate(time.Second)}
	if err == nil {
		l.applied++
		return
	}
	l.last.Result, l.last.Text = reloadRefused, err.Error()
	l.refused++
}

func (l *reloads) shown() *lastReload {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

func (l *reloads) counts() map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return map[string]int64{reloadApplied: l.applied, reloadRefused: l.refused}
}
