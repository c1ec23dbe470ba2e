package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// result is one generation as log and metrics see it. It belongs to the call's
// goroutine.
type result struct {
	route   string
	id      string
	session string
	fresh   bool
	started time.Time
	// replica is the last one that was tried, "" if there was none.
	replica string
	tries   int
	// first and ended are times since started; 0 where that did not come to pass.
	first time.Duration
	ended time.Duration
	// status is that of the answer, or statusGone.
	status int
	// asked and sent are bytes of the bodies.
	asked int
	sent  int64
	// failed is nil for a generation whose answer went out whole.
	failed *failure
}

// statusGone stands where a client has left before its answer began.
const statusGone = 499

func (r *result) took(at *time.Duration) { *at = time.Since(r.started) }

// retries is how often it was given to another replica.
func (r *result) retries() int { return max(r.tries-1, 0) }

// cause is why it did not complete, "" if it did.
func (r *result) cause() string {
	if r.failed == nil {
		return ""
	}
	return r.failed.cause
}

// answered is what requests are counted by.
type answered struct {
	replica, route string
	status         int
}

// stats count generations.
type stats struct {
	times times

	mu sync.Mutex
	// guarded by mu
	active   int
	requests map[answered]int64
	failures map[string]int64
	retries  int64
}

func newStats() *stats {
	s := &stats{times: newTimes(), requests: map[answered]int64{}, failures: map[string]int64{}}
	for _, c := range causes {
		s.failures[c] = 0
	}
	return s
}

func (s *stats) begin(path string) *result {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active++
	return &result{route: routeOf(path), id: newRequestID(), started: time.Now()}
}

// routeOf is a path as logs and metrics have it.
func routeOf(path string) string {
	if path == pathChat {
		return "chat"
	}
	return "completion"
}

func (s *stats) end(r *result) {
	s.mu.Lock()
	s.active--
	s.requests[answered{r.replica, r.route, r.status}]++
	s.retries += int64(r.retries())
	if cause := r.cause(); cause != "" {
		s.failures[cause]++
	}
	s.mu.Unlock()
	s.times.observe(r)
}

func (s *stats) running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active
}

// finish counts a generation and writes its one line. It holds no text of the
// client, and of the conversation a digest, which is enough to find its other
// turns.
func (r *Router) finish(c *edge.Call, res *result) {
	res.took(&res.ended)
	res.status, res.sent = c.Status(), c.Sent()
	if res.status == 0 {
		res.status = statusGone
	}
	r.stats.end(res)
	sum := sha256.Sum256([]byte(res.session))
	attrs := []any{
		"request", res.id, "route", res.route, "status", res.status, "replica", res.replica, "session", hex.EncodeToString(sum[:6]),
		"fresh", res.fresh, "first", res.first, "ended", res.ended, "asked", res.asked, "bytes", res.sent,
	}
	if n := res.retries(); n > 0 {
		attrs = append(attrs, "retries", n)
	}
	if cause := res.cause(); cause != "" {
		attrs = append(attrs, "cause", cause)
	}
	r.log.Info("request", attrs...)
}
