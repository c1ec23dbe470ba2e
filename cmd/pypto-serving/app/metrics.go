package app

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/engine/reference"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
	"github.com/hw-native-sys/pypto-pd/pd/shell"
	"github.com/hw-native-sys/pypto-pd/router/relay"
)

var (
	metricPrefillTokens = prometheus.NewDesc("pypto_pd_computed_prompt_tokens_total", "Prompt tokens that this node computed.", nil, nil)
	metricEngineHits    = prometheus.NewDesc("pypto_pd_cached_prompt_tokens_total", "Prompt tokens that this node had in its prefix cache and did not compute.", nil, nil)
	metricReserveHits   = prometheus.NewDesc("pypto_pd_reserved_hit_tokens_total", "Prompt tokens that this node had in its prefix cache and did not receive.", nil, nil)
	metricVerify        = prometheus.NewDesc("pypto_pd_verify_steps_total", "Speculative verification steps.", nil, nil)
	metricAccepted      = prometheus.NewDesc("pypto_pd_accepted_tokens_total", "Tokens that verifications yielded.", nil, nil)
	metricSteps         = prometheus.NewDesc("pypto_pd_engine_steps_total", "Batch steps of the engine.", nil, nil)
	metricPages         = prometheus.NewDesc("pypto_pd_pages", "Pages by cache group and state.", []string{"group", "state"}, nil)
	metricActive        = prometheus.NewDesc("pypto_pd_active_requests", "Requests in progress.", nil, nil)
	metricCapacity      = prometheus.NewDesc("pypto_pd_capacity_requests", "Requests that may be active.", nil, nil)
	metricReservations  = prometheus.NewDesc("pypto_pd_reservations", "Leases that hold memory, quarantined ones included.", nil, nil)
	metricQuarantined   = prometheus.NewDesc("pypto_pd_quarantined_leases", "Leases whose memory may still be written.", nil, nil)
	metricPins          = prometheus.NewDesc("pypto_pd_source_pins", "Chunks whose source pages are pinned.", nil, nil)
	metricGated         = prometheus.NewDesc("pypto_pd_gated", "1 while the node admits nothing because a write may still land.", nil, nil)
	metricMoved         = prometheus.NewDesc("pypto_transfer_written_bytes_total", "Bytes written into decode nodes.", nil, nil)
	metricChunks        = prometheus.NewDesc("pypto_transfer_chunks_total", "Chunks whose writes have settled.", nil, nil)
	metricDropped       = prometheus.NewDesc("pypto_pd_journal_dropped_total", "Journal lines lost because the disk could not keep up.", nil, nil)
)

// collect is a prometheus.Collector made of one function.
type collect func(chan<- prometheus.Metric)

// Describe implements prometheus.Collector.
func (c collect) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

// Collect implements prometheus.Collector.
func (c collect) Collect(out chan<- prometheus.Metric) { c(out) }

func gauge(out chan<- prometheus.Metric, d *prometheus.Desc, v int, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
}

func counter(out chan<- prometheus.Metric, d *prometheus.Desc, v int64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func engineMetrics(out chan<- prometheus.Metric, s reference.Stats) {
	counter(out, metricPrefillTokens, s.PrefillTokens)
	counter(out, metricEngineHits, s.HitTokens)
	counter(out, metricVerify, s.VerifySteps)
	counter(out, metricAccepted, s.AcceptedTokens)
	counter(out, metricSteps, s.Steps)
}

func pageMetrics(out chan<- prometheus.Metric, usage map[pd.GroupName]lease.Usage) {
	for g, u := range usage {
		gauge(out, metricPages, u.Free, string(g), "free")
		gauge(out, metricPages, u.Held-u.Quarantined, string(g), "held")
		gauge(out, metricPages, u.Quarantined, string(g), "quarantined")
	}
}

func replicaMetrics(r *replica) edge.Handler {
	return relay.MetricsHandler(collect(func(out chan<- prometheus.Metric) {
		engineMetrics(out, r.engine.Stats())
		pageMetrics(out, r.engine.Pool().Usage())
		gauge(out, metricActive, int(r.active.Load()))
	}))
}

func pdMetrics(n *pdNode) edge.Handler {
	return relay.MetricsHandler(collect(func(out chan<- prometheus.Metric) {
		engineMetrics(out, n.engine.Stats())
		v := n.node.Shell.Snapshot()
		pageMetrics(out, v.Pages)
		gauge(out, metricActive, v.Capacity.Active)
		gauge(out, metricCapacity, v.Capacity.Limit)
		gauge(out, metricReservations, v.Capacity.Reservations)
		gauge(out, metricQuarantined, v.Capacity.Quarantined)
		gauge(out, metricPins, v.Pins)
		gated := 0
		if v.Health == pd.RecoveryRequired {
			gated = 1
		}
		gauge(out, metricGated, gated)
		chunks, bytes, hits := n.moved.totals()
		counter(out, metricChunks, chunks)
		counter(out, metricMoved, bytes)
		counter(out, metricReserveHits, hits)
		counter(out, metricDropped, int64(n.node.Dropped()))
	}))
}

// movedBytes counts what the data plane has settled, and what it did not have to
// move.
type movedBytes struct {
	mu                       sync.Mutex
	chunks, bytes, hitTokens int64
}

func (m *movedBytes) add(l shell.Line) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch l.Event {
	case journal.Transfer:
		m.chunks++
		m.bytes += l.Bytes
	case journal.HandoffReserved:
		m.hitTokens += l.Count
	}
}

func (m *movedBytes) totals() (chunks, bytes, hitTokens int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.chunks, m.bytes, m.hitTokens
}
