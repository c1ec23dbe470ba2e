package app

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// newServerID names one life of a replica: whoever launched it, or finds it
// after a restart of its own, tells this one from a later one at its port.
func newServerID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// replicaSnapshot is /metrics/json of a replica. The names are those that
// routers of this model server ask for.
type replicaSnapshot struct {
	ServerID         string  `json:"server_id"`
	Running          int64   `json:"pypto:num_requests_running"`
	Waiting          int64   `json:"pypto:num_requests_waiting"`
	CacheUsage       float64 `json:"pypto:kv_cache_usage_perc"`
	PromptTokens     int64   `json:"pypto:prompt_tokens_total"`
	GenerationTokens int64   `json:"pypto:generation_tokens_total"`
	PrefixQueries    int64   `json:"pypto:prefix_cache_queries_total"`
	PrefixHits       int64   `json:"pypto:prefix_cache_hits_total"`
}

func (r *replica) snapshot() replicaSnapshot {
	stats, active := r.engine.Stats(), r.active.Load()
	out := replicaSnapshot{
		ServerID: r.id, Running: min(active, int64(r.settings.MaxNumSeqs)), PromptTokens: stats.PrefillTokens + stats.HitTokens,
		GenerationTokens: r.generated.Load(), PrefixHits: stats.HitTokens,
	}
	out.Waiting = active - out.Running
	if r.settings.PrefixCaching {
		out.PrefixQueries = out.PromptTokens
	}
	// The tightest group decides when a request has to wait.
	for _, u := range r.engine.Pool().Usage() {
		if u.Total > 0 {
			out.CacheUsage = max(out.CacheUsage, float64(u.Held)/float64(u.Total))
		}
	}
	return out
}

func (r *replica) answerSnapshot(c *edge.Call) {
	b, err := json.Marshal(r.snapshot())
	if err != nil {
		panic(err) // strings and finite numbers only
	}
	c.Reply(200, "application/json", b)
}
