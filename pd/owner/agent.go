package owner

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// agentConfig describes the owner of one rank of this process.
type agentConfig struct {
	rank     pd.Rank
	provider transfer.Provider
	options  transfer.Options
	newArena func(pd.Rank) (transfer.Arena, error)
	// regions are what is to be allocated, in order.
	regions        []pd.Region
	connectTimeout time.Duration
	log            *slog.Logger
}

// agent is one rank's owner in this process: the only caller of its engine.
type agent struct {
	// constant
	config agentConfig
	engine transfer.Engine
	arena  transfer.Arena
	memory map[pd.ComponentID]transfer.Memory
	kick   chan struct{}   // something was ordered
	life   context.Context // ends what blocks in the agent
	end    func()          // ends life
	// constant from begin on
	reports rankReports

	// owned by run
	lanes  map[laneKey]*lane
	posted map[transfer.Ticket]batch
	// reading are the batches whose verdict left their source in use.
	reading  map[transfer.Ticket]*job
	verdicts []transfer.Verdict

	mu     sync.Mutex // taken after the group's, if both
	orders orders
}

var _ rankOwner = (*agent)(nil)

// orders are what others asked of an agent since it last looked. The jobs are
// bounded by the open chunks of the node.
type orders struct {
	jobs   []*job
	fences []fenceOrder
	sweep  bool
	close  bool
}

// laneKey is one life of one target rank.
type laneKey struct {
	identity transfer.Identity
	endpoint string
}

// lane is the work for one target rank, in order.
type lane struct {
	queue []*posting
	// tasks counts the segments that are posted and not settled.
	tasks int
}

// posting is a job on its way out.
type posting struct {
	*job
	next    int              // how many segments were posted
	session transfer.Session // nil until the first batch
}

// batch is one batch that the provider accepted.
type batch struct {
	job          *job
	first, count int
	lane         *lane
}

// openAgent makes engine, arena and regions of one rank. After an error nothing
// is left behind.
func openAgent(ctx context.Context, c agentConfig) (_ *agent, err error) {
	engine, err := c.provider.Open(ctx, c.options)
	if err != nil {
		return nil, err
	}
	a := &agent{
		config: c, engine: engine, kick: make(chan struct{}, 1),
		memory: map[pd.ComponentID]transfer.Memory{}, lanes: map[laneKey]*lane{}, posted: map[transfer.Ticket]batch{},
		reading: map[transfer.Ticket]*job{},
	}
	a.life, a.end = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, a.abandon())
		}
	}()
	if a.arena, err = c.newArena(c.rank); err != nil {
		return nil, err
	}
	for i := range c.regions {
		r := &c.regions[i]
		m, err := a.arena.Allocate(r.Component, r.Bytes)
		if err != nil {
			return nil, err
		}
		if r.Envelope, err = engine.Register(r.Component, m); err != nil {
			return nil, err
		}
		a.memory[r.Component] = m
	}
	if err := engine.Freeze(); err != nil {
		return nil, err
	}
	return a, nil
}

// abandon takes back an agent that does not begin.
func (a *agent) abandon() error {
	a.end()
	err := a.engine.Close()
	if a.arena != nil {
		err = errors.Join(err, a.arena.Close())
	}
	return err
}

// begin starts the agent's goroutine. It ends with shut.
func (a *agent) begin(r rankReports) {
	a.reports = r
	go a.run()
}

// current is the present life of the engine. It is the run goroutine's, or the
// opener's before it began.
func (a *agent) current() engineLife {
	l := engineLife{epoch: a.engine.Epoch(), endpoint: a.engine.Endpoint()}
	if p, ok := a.engine.(transfer.Ported); ok {
		l.ports = p.Ports()
	}
	return l
}

func (a *agent) order(change func(o *orders)) {
	a.mu.Lock()
	change(&a.orders)
	a.mu.Unlock()
	select {
	case a.kick <- struct{}{}:
	default: // the agent will look anyway
	}
}

func (a *agent) queue(j *job)       { a.order(func(o *orders) { o.jobs = append(o.jobs, j) }) }
func (a *agent) retire(*target)     { a.order(func(o *orders) { o.sweep = true }) }
func (a *agent) fence(f fenceOrder) { a.order(func(o *orders) { o.fences = append(o.fences, f) }) }
func (a *agent) forget(pd.HandoffID) {
	// All that is kept of a handoff are its jobs, and it has none.
}

// seal implements rankOwner. Whoever ordered it has marked the handoff's jobs
// dropped before; a job that is just being posted is open until it settles.
func (a *agent) seal(pd.HandoffID) bool {
	a.order(func(o *orders) { o.sweep = true })
	return true
}

func (a *agent) shut() {
	a.end()
	a.order(func(o *orders) { o.close = true })
}

func (a *agent) take() orders {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.orders
	a.orders = orders{}
	return o
}

// run serves until shut. The engine's Wake is asked for anew each time: a fence
// may change it.
func (a *agent) run() {
	for {
		select {
		case <-a.kick:
		case <-a.engine.Wake():
		}
		o := a.take()
		for _, j := range o.jobs {
			l := a.lane(j)
			l.queue = append(l.queue, &posting{job: j})
		}
		if o.sweep {
			a.sweep()
		}
		for _, f := range o.fences {
			a.remake(f)
		}
		a.collect()
		if o.close {
			a.close()
			return
		}
		for key, l := range a.lanes {
			a.pump(l)
			if len(l.queue) == 0 && l.tasks == 0 {
				delete(a.lanes, key)
			}
		}
	}
}

func (a *agent) lane(j *job) *lane {
	key := laneKey{identity: j.target.Identity, endpoint: j.target.Endpoint}
	l := a.lanes[key]
	if l == nil {
		l = &lane{}
		a.lanes[key] = l
	}
	return l
}

// pump posts what the window of a lane has room for.
func (a *agent) pump(l *lane) {
	for len(l.queue) > 0 {
		p := l.queue[0]
		if why := p.dead(); why != "" {
			a.drop(l, neverPosted(why))
			continue
		}
		n := min(len(p.segments)-p.next, pd.MaxSegmentTasks)
		if l.tasks+n > pd.MaxOutstandingTasks {
			return
		}
		if p.session == nil {
			session, err := a.connect(p.job)
			if err != nil {
				// Whoever waits behind it wants the same peer: let nobody wait for
				// another time-out.
				a.logRefusal("connect", p.job, err)
				for len(l.queue) > 0 {
					a.drop(l, neverPosted(pd.CodeOf(err).String()))
				}
				return
			}
			p.session = session
			// Connecting took time; look again whether the job may go.
			continue
		}
		ticket, err := p.session.Submit(p.segments[p.next : p.next+n])
		if err != nil {
			a.logRefusal("submit", p.job, err)
			a.drop(l, neverPosted(pd.CodeOf(err).String()))
			continue
		}
		a.reports.began(p.job)
		a.posted[ticket] = batch{job: p.job, first: p.next, count: n, lane: l}
		l.tasks += n
		if p.next += n; p.next == len(p.segments) {
			l.pop()
		}
	}
}

func (l *lane) pop() {
	l.queue[0] = nil
	l.queue = l.queue[1:]
}

// drop takes the first job of a lane out; what of it was not posted settles as
// o, and what was posted gets its own verdicts.
func (a *agent) drop(l *lane, o outcome) {
	p := l.queue[0]
	l.pop()
	a.reports.settled(p.job, p.next, len(p.segments)-p.next, o)
}

func (a *agent) connect(j *job) (transfer.Session, error) {
	ctx, cancel := context.WithTimeout(a.life, a.config.connectTimeout)
	defer cancel()
	return a.engine.Connect(ctx, j.target.Target)
}

func (a *agent) logRefusal(op string, j *job, err error) {
	a.config.log.Warn("transfer not begun", slog.String("op", op), slog.Int("rank", int(a.config.rank)),
		slog.String("peer", string(j.target.Peer.Node)), slog.Int("target", int(j.target.Identity.Rank)),
		slog.String("handoff", string(j.handoff)), slog.String("code", pd.CodeOf(err).String()),
		slog.Any("error", err))
}

// collect settles what the provider has verdicts for.
func (a *agent) collect() {
	a.verdicts = a.engine.Poll(a.verdicts[:0])
	for _, v := range a.verdicts {
		b, ok := a.posted[v.Ticket]
		if j := a.reading[v.Ticket]; j != nil && v.SourceFree {
			delete(a.reading, v.Ticket)
			a.reports.sourceFreed(j)
			continue
		}
		if !ok {
			// A provider that answers twice or for nothing has broken its contract;
			// the safe reading is that the answer says nothing.
			a.config.log.Error("verdict for no batch", slog.Int("rank", int(a.config.rank)), slog.Uint64("ticket", uint64(v.Ticket)))
			continue
		}
		delete(a.posted, v.Ticket)
		b.lane.tasks -= b.count
		o := outcome{settlement: v.Settlement, sourceFree: v.SourceFree, detail: v.Detail}
		switch v.Settlement {
		case pd.Done:
			o.sourceFree = true // acknowledged: there is nothing left to read
		case pd.Failed, pd.Uncertain:
		default:
			o.settlement = pd.Uncertain // anything else proves nothing
		}
		if !o.sourceFree {
			a.reading[v.Ticket] = b.job
		}
		a.reports.settled(b.job, b.first, b.count, o)
	}
}

// sweep drops queued jobs that must not be posted any more.
func (a *agent) sweep() {
	for _, l := range a.lanes {
		queue := l.queue
		l.queue = nil
		for _, p := range queue {
			if why := p.dead(); why != "" {
				a.reports.settled(p.job, p.next, len(p.segments)-p.next, neverPosted(why))
				continue
			}
			l.queue = append(l.queue, p)
		}
	}
}

// remake makes the engine anew. A job that was begun on the old one ends with
// its session, at its next submit; those behind it go on over new sessions.
func (a *agent) remake(f fenceOrder) {
	err := a.engine.Fence(f.ctx)
	if err == nil {
		// No more is heard of the batches of the old engine; what the fence proves of
		// them is for who ordered it.
		a.collect()
		clear(a.reading)
		err = a.reports.fenced(a.config.rank, a.current())
	}
	f.answer(err)
}

// close ends the engine, settles everything and then frees the memory, which no
// engine can have registered any more.
func (a *agent) close() {
	for _, l := range a.lanes {
		for len(l.queue) > 0 {
			a.drop(l, neverPosted("closed before it was posted"))
		}
	}
	rank := slog.Int("rank", int(a.config.rank))
	if err := a.engine.Close(); err != nil {
		a.config.log.Error("close engine", rank, slog.Any("error", err))
	}
	a.collect()
	for ticket, b := range a.posted {
		delete(a.posted, ticket)
		a.reports.settled(b.job, b.first, b.count, outcome{settlement: pd.Uncertain, detail: "closed without a verdict"})
	}
	a.reports.ended(a.config.rank)
}
