package pdrouter

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// result is one generation as logs and metrics see it. Except for prefilled it
// belongs to the call's goroutine.
type result struct {
	kind    openai.Kind
	request pd.RequestID
	fence   pd.Fence
	stream  bool
	started time.Time
	// Times since started; 0 where that did not come to pass.
	chosen     time.Duration
	decodeHead time.Duration
	first      time.Duration
	ended      time.Duration
	// prefilled is written by prefill's leg, in nanoseconds, maybe after the end.
	prefilled atomic.Int64

	status int
	sent   int64
	events int
	// code is 0 unless the router failed the request; failed says that decode's
	// own error event passed.
	code   pd.Code
	failed bool
}

func (r *result) since() time.Duration { return time.Since(r.started) }

// took notes how long it took to get here.
func (r *result) took(at *time.Duration) { *at = r.since() }

// The ends of a generation.
const (
	stateCompleted = "completed"
	stateFailed    = "failed"
	stateCancelled = "cancelled"
)

func (r *result) state() string {
	switch {
	case r.code == pd.CodeClientGone:
		return stateCancelled
	case r.code != 0 || r.failed:
		return stateFailed
	}
	return stateCompleted
}

// maxTerminal bounds how many ended generations are remembered.
const maxTerminal = 128

// terminal is one ended generation as /metrics/json shows it.
type terminal struct {
	Request   pd.RequestID `json:"request_id"`
	State     string       `json:"state"`
	Code      string       `json:"error_code"`
	Prefill   pd.NodeID    `json:"prefill"`
	Decode    pd.NodeID    `json:"decode"`
	Status    int          `json:"status"`
	Events    int          `json:"events"`
	Timestamp int64        `json:"timestamp_ns"`
}

// duration sums up one kind of time.
type duration struct {
	Count int64 `json:"count"`
	Sum   int64 `json:"sum_ns"`
	Max   int64 `json:"max_ns"`
}

func (d *duration) add(t time.Duration) {
	d.Count++
	d.Sum += int64(t)
	d.Max = max(d.Max, int64(t))
}

// stats counts generations.
type stats struct {
	mu sync.Mutex
	// guarded by mu
	active    int
	peak      int
	total     int64
	states    map[string]int64
	codes     map[pd.Code]int64
	aborts    int64
	durations map[string]*duration
	recent    []terminal // the oldest is at next once it is full
	next      int
	receipts  []receipt // the last ones, the oldest first
}

// The names of durations.
const (
	durationFirst = "request.ttft"
	durationInter = "request.inter_output"
	durationWhole = "request.e2e"
)

func newStats() *stats {
	return &stats{
		states: map[string]int64{stateCompleted: 0, stateFailed: 0, stateCancelled: 0}, codes: map[pd.Code]int64{},
		durations: map[string]*duration{durationFirst: {}, durationInter: {}, durationWhole: {}},
	}
}

func (s *stats) begin(kind openai.Kind) *result {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total++
	s.active++
	s.peak = max(s.peak, s.active)
	return &result{kind: kind, started: time.Now()}
}

func (s *stats) end(r *result) {
	r.took(&r.ended)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active--
	s.states[r.state()]++
	if r.code != 0 {
		s.codes[r.code]++
	}
	if r.state() == stateCompleted {
		s.durations[durationWhole].add(r.ended)
		if r.first > 0 {
			s.durations[durationFirst].add(r.first)
		}
		if r.events > 1 {
			s.durations[durationInter].add((r.ended - r.first) / time.Duration(r.events-1))
		}
	}
	t := terminal{
		Request: r.request, State: r.state(), Prefill: r.fence.Prefill.Node, Decode: r.fence.Decode.Node,
		Status: r.status, Events: r.events, Timestamp: time.Now().UnixNano(),
	}
	if r.code != 0 {
		t.Code = r.code.String()
	}
	if len(s.recent) < maxTerminal {
		s.recent = append(s.recent, t)
		return
	}
	s.recent[s.next] = t
	s.next = (s.next + 1) % maxTerminal
}

// maxReceipts bounds how many abort receipts are remembered.
const maxReceipts = 32

// confirmed counts and keeps an abort that its node has answered.
func (s *stats) confirmed(got *receipt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aborts++
	if len(s.receipts) == maxReceipts {
		s.receipts = append(s.receipts[:0], s.receipts[1:]...)
	}
	s.receipts = append(s.receipts, *got)
}

func (s *stats) running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active
}
