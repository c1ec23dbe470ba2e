package pdrouter

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/router/relay"
)

var (
	metricRequests     = prometheus.NewDesc("pypto_router_requests_total", "Generations that have ended, by how.", []string{"state"}, nil)
	metricFailures     = prometheus.NewDesc("pypto_router_failures_total", "Generations that did not complete, by code.", []string{"code"}, nil)
	metricActive       = prometheus.NewDesc("pypto_router_active_requests", "Generations that run or wait.", nil, nil)
	metricWaiting      = prometheus.NewDesc("pypto_router_waiting_requests", "Generations that wait for a pair.", nil, nil)
	metricPairs        = prometheus.NewDesc("pypto_router_serving_pairs", "Pairs that can serve, full or not.", nil, nil)
	metricAborts       = prometheus.NewDesc("pypto_router_confirmed_aborts_total", "Aborts that a node has confirmed.", nil, nil)
	metricNodeActive   = prometheus.NewDesc("pypto_router_node_active_requests", "Slots that are taken on a node.", []string{"role", "node"}, nil)
	metricUnconfirmed  = prometheus.NewDesc("pypto_router_node_unconfirmed_slots", "Slots whose node has not confirmed the end.", []string{"role", "node"}, nil)
	metricRequested    = prometheus.NewDesc("pypto_router_node_requests_total", "Generations that a node was chosen for.", []string{"role", "node"}, nil)
	metricSilent       = prometheus.NewDesc("pypto_router_node_silent_seconds", "Time since a node has last said what it is; since the router's start if it never has.", []string{"role", "node"}, nil)
	metricCapacity     = prometheus.NewDesc("pypto_router_node_capacity_requests", "Slots that a node has.", []string{"role", "node"}, nil)
	metricPolicy       = prometheus.NewDesc("pypto_router_policy", "1 for the policy that chooses pairs.", []string{"policy"}, nil)
	metricUnauthorized = prometheus.NewDesc("pypto_router_unauthorized_total", "Calls without a valid API key.", nil, nil)
	metricReloads      = prometheus.NewDesc("pypto_router_reloads_total", "How often pd.json was read again, by what came of it.", []string{"result"}, nil)
	metricConnections  = prometheus.NewDesc("pypto_router_open_connections", "Client connections that are open.", nil, nil)
	metricNodeReady    = prometheus.NewDesc("pypto_router_node_ready", "1 for the state that a node is in.", []string{"role", "node", "state"}, nil)
)

// times are histograms; all else is read from the router when it is asked.
// Those of whole requests hold completed generations only.
type times struct {
	chosen  prometheus.Histogram
	prefill prometheus.Histogram
	first   *prometheus.HistogramVec
	inter   *prometheus.HistogramVec
	whole   *prometheus.HistogramVec
}

func newTimes() *times {
	options := func(name, help string, least float64, buckets int) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(least, 2, buckets)}
	}
	kind := []string{"kind"}
	return &times{
		chosen:  prometheus.NewHistogram(options("pypto_router_pair_seconds", "Time from a request's arrival to its pair.", 0.0005, 16)),
		prefill: prometheus.NewHistogram(options("pypto_router_prefill_seconds", "Time from a request's arrival to the end of prefill's answer, however that ended.", 0.005, 17)),
		first:   prometheus.NewHistogramVec(options("pypto_router_first_byte_seconds", "Time from a request's arrival to the first byte of its answer.", 0.005, 16), kind),
		inter:   prometheus.NewHistogramVec(options("pypto_router_inter_event_seconds", "Mean time between the events of one stream.", 0.001, 14), kind),
		whole:   prometheus.NewHistogramVec(options("pypto_router_request_seconds", "Time from a request's arrival to the end of its answer.", 0.01, 18), kind),
	}
}

func (t *times) all() []prometheus.Collector {
	return []prometheus.Collector{t.chosen, t.prefill, t.first, t.inter, t.whole}
}

func (t *times) observe(r *result) {
	if r.chosen > 0 {
		t.chosen.Observe(r.chosen.Seconds())
	}
	if r.state() != stateCompleted {
		return
	}
	kind := r.kind.String()
	t.whole.WithLabelValues(kind).Observe(r.ended.Seconds())
	if r.first > 0 {
		t.first.WithLabelValues(kind).Observe(r.first.Seconds())
	}
	if r.events > 1 {
		t.inter.WithLabelValues(kind).Observe((r.ended - r.first).Seconds() / float64(r.events-1))
	}
}

// prefilled takes the end of a prefill leg in, which may be after the request's.
func (t *times) prefilled(took time.Duration) { t.prefill.Observe(took.Seconds()) }

type collector struct{ router *Router }

func newMetrics(r *Router) edge.Handler {
	return relay.MetricsHandler(append(r.times.all(), collector{r})...)
}

// Describe implements prometheus.Collector.
func (c collector) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	count := func(d *prometheus.Desc, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	v := c.router.pool.view()
	gauge(metricWaiting, v.Waiting)
	gauge(metricPairs, v.Pairs)
	for _, n := range v.Nodes {
		role, node := n.Role.String(), string(n.Node)
		gauge(metricNodeActive, n.Active, role, node)
		gauge(metricUnconfirmed, n.Unconfirmed, role, node)
		gauge(metricNodeReady, 1, role, node, n.State)
		gauge(metricCapacity, n.Capacity, role, node)
		count(metricRequested, n.requests, role, node)
		heard := n.heard
		if heard.IsZero() {
			heard = c.router.started
		}
		out <- prometheus.MustNewConstMetric(metricSilent, prometheus.GaugeValue, time.Since(heard).Seconds(), role, node)
	}
	count(metricUnauthorized, c.router.unauthorized.Load())
	gauge(metricPolicy, 1, v.Policy)
	for result, n := range c.router.reloads() {
		count(metricReloads, n, result)
	}
	gauge(metricConnections, c.router.options.Connections())
	s := c.router.stats
	s.mu.Lock()
	defer s.mu.Unlock()
	gauge(metricActive, s.active)
	count(metricAborts, s.aborts)
	for state, n := range s.states {
		count(metricRequests, n, state)
	}
	for code, n := range s.codes {
		count(metricFailures, n, code.String())
	}
}
