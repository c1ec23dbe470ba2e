package fleet

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/router/relay"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	metricRequests     = desc("pypto_fleet_requests_total", "Generations that have ended, by the last replica that was tried and the answer's status.", "replica", "route", "status")
	metricFailures     = desc("pypto_fleet_failures_total", "Generations whose answer did not go out whole, by why.", "cause")
	metricRetries      = desc("pypto_fleet_connect_retries_total", "Times that a generation was given to another replica because one could not be connected to.")
	metricActive       = desc("pypto_fleet_active_requests", "Generations that run.")
	metricConnections  = desc("pypto_fleet_open_connections", "Client connections that are open.")
	metricOutstanding  = desc("pypto_fleet_replica_outstanding_requests", "Generations that run on a replica.", "replica")
	metricPhase        = desc("pypto_fleet_replica_phase", "1 for the phase that a replica is in.", "replica", "phase")
	metricRoutable     = desc("pypto_fleet_routable_replicas", "Replicas that take requests.")
	metricRouted       = desc("pypto_fleet_routed_total", "Generations that were given to a replica.")
	metricRejected     = desc("pypto_fleet_rejected_total", "Generations for which no replica was routable.")
	metricHits         = desc("pypto_fleet_affinity_hits_total", "Generations that went where their conversation was.")
	metricMisses       = desc("pypto_fleet_affinity_misses_total", "Generations that did not, by why.", "cause")
	metricPins         = desc("pypto_fleet_session_pins", "Conversations that are pinned.")
	metricEvicted      = desc("pypto_fleet_evicted_pins_total", "Pins that were dropped because there were too many.")
	metricReserved     = desc("pypto_fleet_reserved_slots", "Launch slots that count against the ceiling.")
	metricCeiling      = desc("pypto_fleet_slot_ceiling", "Launch slots that may be reserved.")
	metricSlot         = desc("pypto_fleet_slot_state", "1 for the state that a launch slot is in.", "slot", "state")
	metricStrikes      = desc("pypto_fleet_slot_strikes", "Replicas that a slot has lost in a row.", "slot")
	metricUnconfirmed  = desc("pypto_fleet_unconfirmed_slots", "Slots and records that may hold a process which nobody could confirm to be gone.")
	metricHeld         = desc("pypto_fleet_replacements_held", "1 while replacements wait because the router suspects its own network.")
	metricProbes       = desc("pypto_fleet_probes_total", "Probes, by what came of them.", "result")
	metricLaunches     = desc("pypto_fleet_launches_total", "Launch commands, by what came of them.", "result")
	metricTimeouts     = desc("pypto_fleet_launch_timeouts_total", "Launched replicas that were not ready in time.")
	metricStops        = desc("pypto_fleet_stops_total", "Stops, by what came of them.", "result")
	metricReplaced     = desc("pypto_fleet_replacements_total", "Launches in the place of a replica that was lost.")
	metricAdopted      = desc("pypto_fleet_adopted_total", "Replicas that were taken over from an earlier life of the router.")
	metricStateErrors  = desc("pypto_fleet_state_write_errors_total", "Times that the state file could not be written.")
	metricUnauthorized = desc("pypto_fleet_unauthorized_total", "Calls of the admin API without the admin token.")
	metricReloads      = desc("pypto_fleet_reloads_total", "How often the files were read again, by what came of it.", "result")
)

// times are histograms of generations that completed.
type times struct {
	first *prometheus.HistogramVec
	whole *prometheus.HistogramVec
}

func newTimes() times {
	route := []string{"route"}
	return times{
		first: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pypto_fleet_first_byte_seconds", Help: "Time from a request's arrival to the first byte of its answer's body.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 16),
		}, route),
		whole: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pypto_fleet_request_seconds", Help: "Time from a request's arrival to the end of its answer.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 18),
		}, route),
	}
}

func (t times) observe(r *result) {
	if r.failed != nil {
		return
	}
	t.whole.WithLabelValues(r.route).Observe(r.ended.Seconds())
	if r.first > 0 {
		t.first.WithLabelValues(r.route).Observe(r.first.Seconds())
	}
}

type collector struct{ router *Router }

func newMetrics(r *Router) edge.Handler {
	return relay.MetricsHandler(collector{r}, r.stats.times.first, r.stats.times.whole)
}

// Describe implements prometheus.Collector.
func (c collector) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

// Collect implements prometheus.Collector. It reads everything when it is asked.
func (c collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	count := func(d *prometheus.Desc, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	v := c.router.pool.Snapshot()
	routable := 0
	for _, m := range v.Replicas {
		gauge(metricOutstanding, m.Outstanding, m.Name)
		gauge(metricPhase, 1, m.Name, m.Phase)
		if m.routable() {
			routable++
		}
	}
	gauge(metricRoutable, routable)
	count(metricRouted, v.Counts.Routed)
	count(metricRejected, v.Counts.Rejected)
	count(metricHits, v.Counts.Hits)
	count(metricEvicted, v.Counts.Evicted)
	for miss := MissNew; miss < missEnd; miss++ {
		count(metricMisses, v.Counts.Misses[miss], miss.String())
	}
	gauge(metricPins, v.Sessions)
	gauge(metricReserved, v.Owned)
	gauge(metricCeiling, v.Ceiling)
	gauge(metricUnconfirmed, len(v.Unconfirmed))
	for _, s := range v.Slots {
		gauge(metricSlot, 1, s.Name, s.State.String())
		gauge(metricStrikes, s.Strikes, s.Name)
	}
	held := 0
	if v.Held {
		held = 1
	}
	gauge(metricHeld, held)
	s := v.Stats
	count(metricProbes, s.ProbesOK, "ok")
	count(metricProbes, s.ProbesAnswered, "answered")
	count(metricProbes, s.ProbesFailed, "failed")
	count(metricProbes, s.ProbesSkipped, "skipped")
	count(metricLaunches, s.LaunchesAccepted, "accepted")
	count(metricLaunches, s.LaunchesRefused, "refused")
	count(metricLaunches, s.LaunchesUncertain, "uncertain")
	count(metricTimeouts, s.LaunchTimeouts)
	count(metricStops, s.StopsConfirmed, "confirmed")
	count(metricStops, s.StopsUnconfirmed, "unconfirmed")
	count(metricReplaced, s.Replaced)
	count(metricAdopted, s.Adopted)
	count(metricStateErrors, s.StateWriteErrors)
	c.own(gauge, count)
}

// own are the facts of the router's HTTP side.
func (c collector) own(gauge func(*prometheus.Desc, int, ...string), count func(*prometheus.Desc, int64, ...string)) {
	gauge(metricConnections, c.router.options.Connections())
	count(metricUnauthorized, c.router.unauthorized.Load())
	for result, n := range c.router.reloads.counts() {
		count(metricReloads, n, result)
	}
	s := c.router.stats
	s.mu.Lock()
	defer s.mu.Unlock()
	gauge(metricActive, s.active)
	count(metricRetries, s.retries)
	for k, n := range s.requests {
		count(metricRequests, n, k.replica, k.route, strconv.Itoa(k.status))
	}
	for cause, n := range s.failures {
		count(metricFailures, n, cause)
	}
}
