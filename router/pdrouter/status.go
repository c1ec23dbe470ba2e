package pdrouter

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// healthBody is what /health answers.
type healthBody struct {
	Status          string     `json:"status"`
	Reason          string     `json:"reason,omitempty"`
	ProtocolVersion int        `json:"protocol_version"`
	Run             pd.RunID   `json:"run_id"`
	Boot            pd.BootID  `json:"boot_id"`
	Pairs           int        `json:"pairs"`
	Active          int        `json:"active"`
	Waiting         int        `json:"waiting"`
	Nodes           []nodeView `json:"nodes"`
	// Reload is what came of reading pd.json again, if that was ever done.
	Reload *reload `json:"last_reload,omitempty"`
}

// health is 200 only while at least one pair serves, full or not.
func (r *Router) health(c *edge.Call) {
	v := r.pool.view()
	b := healthBody{
		Status: "ok", ProtocolVersion: pd.ProtocolVersion, Run: r.config.Run(), Boot: r.options.Boot,
		Pairs: v.Pairs, Active: r.stats.running(), Waiting: v.Waiting, Nodes: v.Nodes,
		Reload: r.lastReload(),
	}
	status := 200
	switch {
	case r.draining.Load():
		status, b.Status, b.Reason = 503, "draining", "the router is stopping"
	case v.Pairs == 0:
		status, b.Status, b.Reason = 503, "error", "no pair of a prefill and a decode node can serve"
		if v.Mismatch != "" {
			b.Reason += ": " + v.Mismatch
		}
	}
	replyJSON(c, status, b)
}

func replyJSON(c *edge.Call, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic("status page: " + err.Error()) // its types have only strings and numbers
	}
	c.Reply(status, openai.TypeJSON, body)
}

func (r *Router) served() []openai.Model {
	v := r.pool.view()
	var out []openai.Model
	for _, name := range slices.Sorted(maps.Keys(v.Models)) {
		out = append(out, openai.Model{ID: name, Created: r.started.Unix(), MaxTokens: v.Models[name]})
	}
	return out
}

// snapshotBody is the bounded snapshot of pd-domain §10.1.
type snapshotBody struct {
	SchemaVersion int                 `json:"schema_version"`
	Component     string              `json:"component"`
	Identity      map[string]string   `json:"identity"`
	Started       int64               `json:"started_ns"`
	Timestamp     int64               `json:"timestamp_ns"`
	Counters      map[string]int64    `json:"counters"`
	Gauges        map[string]int64    `json:"gauges"`
	Durations     map[string]duration `json:"durations"`
	Recent        []terminal          `json:"recent_terminal"`
	Receipts      []receipt           `json:"recent_aborts"`
	Process       processFacts        `json:"process"`
}

type processFacts struct {
	PID     int   `json:"pid"`
	RSS     int64 `json:"rss_bytes"`
	Threads int64 `json:"threads"`
	FDs     int64 `json:"fds"`
}

func (r *Router) snapshot(c *edge.Call) {
	v := r.pool.view()
	b := snapshotBody{
		SchemaVersion: 1, Component: "router",
		Identity: map[string]string{"run_id": string(r.config.Run()), "boot_id": string(r.options.Boot)},
		Started:  r.started.UnixNano(), Timestamp: time.Now().UnixNano(),
		Process: readProcess(),
	}
	s := r.stats
	s.mu.Lock()
	b.Counters = map[string]int64{
		"requests.total": s.total, "requests.completed": s.states[stateCompleted], "requests.failed": s.states[stateFailed],
		"requests.cancelled": s.states[stateCancelled], "aborts.confirmed": s.aborts,
	}
	for code, n := range s.codes {
		b.Counters["requests.failed."+code.String()] = n
	}
	b.Gauges = map[string]int64{
		"handoffs.active": int64(s.active), "handoffs.active_peak": int64(s.peak), "handoffs.queued": int64(v.Waiting),
		"node.active_peak": int64(v.Peak), "pairs": int64(v.Pairs),
	}
	b.Durations = map[string]duration{}
	for name, d := range s.durations {
		b.Durations[name] = *d
	}
	b.Receipts = append([]receipt{}, s.receipts...)
	b.Recent = append(append([]terminal{}, s.recent[s.next:]...), s.recent[:s.next]...)
	s.mu.Unlock()
	unconfirmed := 0
	for _, n := range v.Nodes {
		unconfirmed += n.Unconfirmed
	}
	b.Gauges["slots.unconfirmed"] = int64(unconfirmed)
	replyJSON(c, 200, b)
}

// readProcess reads what the kernel says of this process; what it does not say
// stays 0.
func readProcess() processFacts {
	f := processFacts{PID: os.Getpid()}
	if b, err := os.ReadFile("/proc/self/status"); err == nil {
		for line := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(line, ":")
			fields := strings.Fields(value)
			if len(fields) == 0 {
				continue
			}
			n, _ := strconv.ParseInt(fields[0], 10, 64)
			switch name {
			case "VmRSS":
				f.RSS = n << 10
			case "Threads":
				f.Threads = n
			}
		}
	}
	if list, err := os.ReadDir("/proc/self/fd"); err == nil {
		f.FDs = int64(len(list))
	}
	return f
}

// access writes the one line of a request. It holds no text of the client.
func (r *Router) access(res *result) {
	attrs := []any{
		"request", res.request, "kind", res.kind.String(), "stream", res.stream, "status", res.status, "state", res.state(),
		"handoff", res.fence.Handoff, "prefill", res.fence.Prefill.Node, "decode", res.fence.Decode.Node,
		"chosen", res.chosen, "prefilled", time.Duration(res.prefilled.Load()), "decode_head", res.decodeHead,
		"first", res.first, "ended", res.ended, "events", res.events, "bytes", res.sent,
	}
	if res.code != 0 {
		attrs = append(attrs, "code", res.code.String())
	}
	r.options.Log.Info("request", attrs...)
}
