package pdrouter

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/control"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
	"github.com/hw-native-sys/pypto-pd/router/relay"
)

// QueueOptions let requests wait for a pair. By default none waits.
type QueueOptions struct {
	// Size bounds how many requests wait; 0 refuses at once.
	Size int
	// Timeout bounds how long one waits.
	Timeout time.Duration
}

// Options are what a router is made of. Zero durations take the defaults.
type Options struct {
	Config *config.Config
	// Boot is this life of the router.
	Boot pd.BootID
	// PollInterval is how often each node is asked (1 s), PollTimeout how long
	// it may take to answer (2 s).
	PollInterval time.Duration
	PollTimeout  time.Duration
	Queue        QueueOptions
	// Record, if set, is told of every handoff's beginning and end. It must not
	// block and is called from several goroutines.
	Record func(Event)
	// Keys, if set, are what clients of the OpenAI API must show. The header that
	// carries one then goes no further.
	Keys *relay.Keys
	// Secret, if set, proves the router to the nodes' control ports and them to it.
	Secret *control.Secret
	// Connections, if set, counts the open client connections, for metrics.
	Connections func() int
	Log         *slog.Logger
}

// Event is one step of a handoff as the router sees it.
type Event struct {
	// Name is EventCreated, EventCompleted or EventFailed.
	Name  string
	Fence pd.Fence
	// Code is why it failed, 0 if decode's own error event said so.
	Code pd.Code
}

// Names of events, as in the journal.
const (
	EventCreated   = "HANDOFF_CREATED"
	EventCompleted = "HANDOFF_COMPLETED"
	EventFailed    = "HANDOFF_FAILED"
)

// Router is the external PD router. Serve answers calls once Run runs.
type Router struct {
	// constant
	options Options
	config  *config.Config
	pool    *pool
	stats   *stats
	times   *times
	metrics edge.Handler
	started time.Time
	// base ends with Run; everything that outlives a call ends with it.
	base context.Context
	stop context.CancelFunc
	// Pools apart: a stream never waits behind a probe, nor an abort behind
	// either.
	legs    *edge.Client
	control *control.Client
	probes  *control.Client

	draining     atomic.Bool
	unauthorized atomic.Int64
	polling      polling
	polls        sync.WaitGroup
	// calls are running generations, tasks what may outlive them.
	calls sync.WaitGroup
	tasks sync.WaitGroup
}

// New makes a router.
func New(o Options) *Router {
	o.PollInterval = cmp.Or(o.PollInterval, time.Second)
	o.PollTimeout = cmp.Or(o.PollTimeout, 2*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Record == nil {
		o.Record = func(Event) {}
	}
	if o.Connections == nil {
		o.Connections = func() int { return 0 }
	}
	signer := control.NewSigner(o.Secret, o.Boot)
	base, stop := context.WithCancel(context.Background())
	r := &Router{
		options: o, config: o.Config, pool: newPool(o.Config, o.Queue), started: time.Now(),
		base: base, stop: stop,
		// A generation must not be sent twice, so each leg has a connection of
		// its own: an idle one may be closed just as the request is on its way.
		legs:    edge.NewClient(edge.ClientConfig{MaxIdle: -1}),
		control: control.NewClient(control.ClientConfig{Signer: signer}),
		probes:  control.NewClient(control.ClientConfig{DialTimeout: o.PollTimeout, Signer: signer}),
	}
	r.stats, r.times = newStats(), newTimes()
	r.metrics = newMetrics(r)
	return r
}

// Run asks the nodes until ctx ends. It then cuts what still runs and returns
// when everything has ended. It is called once, and its context ends after the
// edge server that Serve serves.
func (r *Router) Run(ctx context.Context) {
	stopped := context.AfterFunc(ctx, r.stop)
	defer stopped()
	r.polling.begin(r.pool.nodes(), r.startPoll)
	<-r.base.Done()
	r.polling.end()
	r.polls.Wait()
	r.calls.Wait()
	r.tasks.Wait()
	r.legs.Close()
	r.control.Close()
	r.probes.Close()
}

// Drain refuses new generations from now on; /health says draining.
func (r *Router) Drain() { r.draining.Store(true) }

// Settle waits until no generation runs on the router or, as far as it is
// known, on a node, or until ctx ends, whose cause it then returns. It is called
// after Drain.
func (r *Router) Settle(ctx context.Context) error {
	return wait(ctx, func() bool {
		running, _ := r.pool.taken()
		return running == 0 && r.stats.running() == 0
	})
}

// Confirm waits until the nodes have confirmed the end of every generation that
// did not end by itself, or until ctx ends, whose cause it then returns. A node
// that is gone never confirms.
func (r *Router) Confirm(ctx context.Context) error {
	return wait(ctx, func() bool {
		_, unconfirmed := r.pool.taken()
		return unconfirmed == 0
	})
}

func wait(ctx context.Context, done func() bool) error {
	tick := time.NewTicker(settleInterval)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

const settleInterval = 20 * time.Millisecond

// Serve answers the calls of a server until that is shut down. It is called once.
func (r *Router) Serve(s *edge.Server) error {
	s.Admit(r.admit)
	return s.Serve(r.handle)
}

// admit answers a client without a key before it has sent its request whole.
func (r *Router) admit(c *edge.Call) {
	if !strings.HasPrefix(c.Path(), "/v1/") {
		return
	}
	if err := r.options.Keys.Check(c); err != nil {
		r.unauthorized.Add(1)
		relay.ReplyError(c, err)
	}
}

// handle answers one call that was admitted.
func (r *Router) handle(c *edge.Call) {
	path := c.Path()
	want := "GET"
	var handler edge.Handler
	kind, generates := openai.KindOf(path)
	switch {
	case generates:
		want = "POST"
		handler = func(c *edge.Call) { r.generate(c, kind) }
	case path == "/":
		handler = r.page
	case path == "/health":
		handler = r.health
	case path == openai.PathModels:
		handler = r.models
	case strings.HasPrefix(path, openai.PathModels+"/"):
		handler = r.model
	case path == "/metrics":
		handler = r.metrics
	case path == "/metrics/json":
		handler = r.snapshot
	default:
		relay.ReplyError(c, pd.Errorf(pd.CodeNotFound, "route request", "there is no such path here"))
		return
	}
	if m := c.Method(); m != want && (m != "HEAD" || want != "GET") {
		c.SetHeader("Allow", want)
		relay.ReplyError(c, pd.Errorf(pd.CodeMethodNotAllowed, "route request", "%s takes %s", path, want))
		return
	}
	handler(c)
}

func (r *Router) models(c *edge.Call) {
	list := r.served()
	if len(list) == 0 {
		relay.ReplyError(c, pd.Errorf(pd.CodeNoPair, "list models", "no node has told its model yet; /health says why"))
		return
	}
	c.Reply(200, openai.TypeJSON, openai.AppendModels(nil, list...))
}

func (r *Router) model(c *edge.Call) {
	name := strings.TrimPrefix(c.Path(), openai.PathModels+"/")
	for _, m := range r.served() {
		if m.ID == name {
			c.Reply(200, openai.TypeJSON, openai.AppendModel(nil, m))
			return
		}
	}
	relay.ReplyError(c, &pd.Error{Op: "find model", Code: pd.CodeModelNotFound, Text: "this model is not served here", Param: "model"})
}
