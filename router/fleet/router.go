package fleet

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// The paths that the router answers.
const (
	pathCompletions = "/v1/completions"
	pathChat        = "/v1/chat/completions"
	pathModels      = "/v1/models"
	pathHealth      = "/health"
	pathMetrics     = "/metrics"
	pathReplicas    = "/replicas"
)

// RouterOptions are what a router is made of.
type RouterOptions struct {
	Options Options
	Pool    *Pool
	// Connections, if set, counts the open client connections, for metrics.
	Connections func() int
	// Log is nil to discard.
	Log *slog.Logger
}

// Router is the HTTP side of the fleet: it relays generations to the replicas
// that the pool chooses, and answers for the fleet itself. Handle is safe for
// concurrent use.
type Router struct {
	// constant
	options RouterOptions
	pool    *Pool
	log     *slog.Logger
	stats   *stats
	metrics edge.Handler
	// legs carry generations, each on a connection of its own: an idle one may be
	// closed just as a request is on its way, and nothing then tells whether it was
	// taken. lists ask for models, so that none waits behind a stream.
	legs  *edge.Client
	lists *edge.Client

	token        adminToken
	draining     atomic.Bool
	unauthorized atomic.Int64
	reloads      reloads
}

// NewRouter makes a router. Close releases it when no call runs any more.
func NewRouter(o RouterOptions) *Router {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Connections == nil {
		o.Connections = func() int { return 0 }
	}
	dial := o.Options.ConnectTimeout
	r := &Router{
		options: o, pool: o.Pool, log: o.Log, stats: newStats(),
		legs:  edge.NewClient(edge.ClientConfig{DialTimeout: dial, MaxIdle: -1}),
		lists: edge.NewClient(edge.ClientConfig{DialTimeout: dial, MaxIdle: -1}),
	}
	r.SetToken(o.Options.AdminToken)
	r.metrics = newMetrics(r)
	return r
}

// Close ends the router's clients.
func (r *Router) Close() {
	r.legs.Close()
	r.lists.Close()
}

// Drain refuses new generations and launches from now on; /health says draining.
func (r *Router) Drain() { r.draining.Store(true) }

// Settle waits until no generation runs, or until ctx ends, whose cause it then
// returns.
func (r *Router) Settle(ctx context.Context) error {
	tick := time.NewTicker(settleInterval)
	defer tick.Stop()
	for r.stats.running() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

const settleInterval = 20 * time.Millisecond

// Handle answers one call; it is an edge.Handler.
func (r *Router) Handle(c *edge.Call) {
	switch path := c.Path(); {
	case path == pathCompletions || path == pathChat:
		r.generation(c)
	case path == pathModels:
		r.only(c, r.models, "GET")
	case path == pathHealth:
		r.only(c, r.health, "GET")
	case path == pathMetrics:
		r.only(c, r.metrics, "GET")
	case path == pathReplicas || strings.HasPrefix(path, pathReplicas+"/"):
		r.admin(c)
	default:
		reply(c, 404, errorBody{Message: "there is no such path here"})
	}
}

// only calls the handler for the methods that a path has. HEAD is a GET whose
// answer has no body.
func (r *Router) only(c *edge.Call, h edge.Handler, methods ...string) {
	got := c.Method()
	for _, m := range methods {
		if got == m || m == "GET" && got == "HEAD" {
			h(c)
			return
		}
	}
	allow := strings.Join(methods, ", ")
	c.SetHeader("Allow", allow)
	reply(c, 405, errorBody{Message: c.Path() + " takes " + allow})
}
