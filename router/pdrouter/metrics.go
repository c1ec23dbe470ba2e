package pdrouter

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/router/relay"
)

var (
	metricRequests    = prometheus.NewDesc("pypto_router_requests_total", "Generations that have ended, by how.", []string{"state"}, nil)
	metricFailures    = prometheus.NewDesc("pypto_router_failures_total", "Generations that did not complete, by code.", []string{"code"}, nil)
	metricActive      = prometheus.NewDesc("pypto_router_active_requests", "Generations that run or wait.", nil, nil)
	metricWaiting     = prometheus.NewDesc("pypto_router_waiting_requests", "Generations that wait for a pair.", nil, nil)
	metricPairs       = prometheus.NewDesc("pypto_router_serving_pairs", "Pairs that can serve, full or not.", nil, nil)
	metricAborts      = prometheus.NewDesc("pypto_router_confirmed_aborts_total", "Aborts that a node has confirmed.", nil, nil)
	metricNodeActive  = prometheus.NewDesc("pypto_router_node_active_requests", "Slots that are taken on a node.", []string{"role", "node"}, nil)
	metricUnconfirmed = prometheus.NewDesc("pypto_router_node_unconfirmed_slots", "Slots whose node has not confirmed the end.", []string{"role", "node"}, nil)
	metricNodeReady   = prometheus.NewDesc("pypto_router_node_ready", "1 for the state that a node is in.", []string{"role", "node", "state"}, nil)
)

// times are the histograms of completed generations; all else is read from the
// router when it is asked.
type times struct {
	first *prometheus.HistogramVec
	whole *prometheus.HistogramVec
}

func newTimes() *times {
	return &times{
		first: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pypto_router_first_byte_seconds", Help: "Time from a request's arrival to the first byte of its answer.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 16),
		}, []string{"kind"}),
		whole: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pypto_router_request_seconds", Help: "Time from a request's arrival to the end of its answer.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 18),
		}, []string{"kind"}),
	}
}

func (t *times) observe(r *result) {
	if r.state() != stateCompleted {
		return
	}
	t.whole.WithLabelValues(r.kind.String()).Observe(r.ended.Seconds())
	if r.first > 0 {
		t.first.WithLabelValues(r.kind.String()).Observe(r.first.Seconds())
	}
}

type collector struct{ router *Router }

func newMetrics(r *Router) edge.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collector{r}, r.times.first, r.times.whole,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return relay.MetricsHandler(registry)
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
	}
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
