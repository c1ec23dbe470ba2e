package owner

import (
	"context"
	"log/slog"
	"sync"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// agent is one rank's owner: the only caller of its engine.
type agent struct {
	// constant
	group  *Group
	rank   pd.Rank
	engine transfer.Engine
	memory map[pd.ComponentID]transfer.Memory
	kick   chan struct{} // something was ordered

	// owned by run
	lanes    map[laneKey]*lane
	posted   map[transfer.Ticket]posted
	verdicts []transfer.Verdict

	mu     sync.Mutex // taken after the group's, if both
	orders orders
}

// orders are what others asked of an agent since it last looked. The jobs are
// bounded by the group's open chunks.
type orders struct {
	jobs   []*job
	fences []fenceOrder
	sweep  bool
	close  bool
}

type fenceOrder struct {
	ctx    context.Context
	answer chan<- error // room for one
}

// laneKey is one life of one target rank.
type laneKey struct {
	identity transfer.Identity
	endpoint string
}

// lane is the work for one target rank, in order.
type lane struct {
	queue []*job
	// tasks counts the segments that are posted and not settled.
	tasks int
}

// posted is one batch that the provider accepted.
type posted struct {
	job      *job
	segments []pd.Segment
	lane     *lane
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

func (a *agent) queue(j *job) { a.order(func(o *orders) { o.jobs = append(o.jobs, j) }) }
func (a *agent) orderSweep()  { a.order(func(o *orders) { o.sweep = true }) }
func (a *agent) orderClose()  { a.order(func(o *orders) { o.close = true }) }
func (a *agent) orderFence(f fenceOrder) {
	a.order(func(o *orders) { o.fences = append(o.fences, f) })
}

func (a *agent) take() orders {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.orders
	a.orders = orders{}
	return o
}

// run serves until Close. The engine's Wake is asked for anew each time: a
// fence may change it.
func (a *agent) run() {
	defer a.group.agentEnded()
	for {
		select {
		case <-a.kick:
		case <-a.engine.Wake():
		}
		o := a.take()
		for _, j := range o.jobs {
			l := a.lane(j)
			l.queue = append(l.queue, j)
		}
		if o.sweep {
			a.sweep()
		}
		for _, f := range o.fences {
			a.fence(f)
		}
		a.collect()
		if o.close {
			a.shut()
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
	t := &j.peer.targets[j.target]
	key := laneKey{identity: t.Identity, endpoint: t.Endpoint}
	l := a.lanes[key]
	if l == nil {
		l = &lane{}
		a.lanes[key] = l
	}
	return l
}

// dead says why a job must not be posted, or "".
func (j *job) dead() string {
	switch {
	case j.chunk.handoff.sealed.Load():
		return "sealed before it was posted"
	case j.peer.stale[j.target].Load():
		return "the peer was fenced or restarted before it was posted"
	}
	return ""
}

// pump posts what the window of a lane has room for.
func (a *agent) pump(l *lane) {
	for len(l.queue) > 0 {
		j := l.queue[0]
		if why := j.dead(); why != "" {
			a.drop(l, neverPosted(why))
			continue
		}
		n := min(len(j.rest), pd.MaxSegmentTasks)
		if l.tasks+n > pd.MaxOutstandingTasks {
			return
		}
		if j.session == nil {
			session, err := a.connect(j)
			if err != nil {
				// Whoever waits behind it wants the same peer: let nobody wait for
				// another time-out.
				a.logRefusal("connect", j, err)
				for len(l.queue) > 0 {
					a.drop(l, neverPosted(pd.CodeOf(err).String()))
				}
				return
			}
			j.session = session
			// Connecting took time; look again whether the job may go.
			continue
		}
		ticket, err := j.session.Submit(j.rest[:n])
		if err != nil {
			a.logRefusal("submit", j, err)
			a.drop(l, neverPosted(pd.CodeOf(err).String()))
			continue
		}
		a.group.began(j.chunk)
		a.posted[ticket] = posted{job: j, segments: j.rest[:n], lane: l}
		l.tasks += n
		if j.rest = j.rest[n:]; len(j.rest) == 0 {
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
	j := l.queue[0]
	l.pop()
	rest := j.rest
	j.rest = nil
	a.group.settle(j, rest, o)
}

func (a *agent) connect(j *job) (transfer.Session, error) {
	ctx, cancel := context.WithTimeout(a.group.life, a.group.config.ConnectTimeout)
	defer cancel()
	return a.engine.Connect(ctx, j.peer.targets[j.target])
}

func (a *agent) logRefusal(op string, j *job, err error) {
	a.group.log.Warn("transfer not begun", slog.String("op", op), slog.Int("rank", int(a.rank)),
		slog.String("peer", string(j.peer.peer.Node)), slog.Int("target", int(j.target)),
		slog.String("handoff", string(j.chunk.handoff.id)), slog.String("code", pd.CodeOf(err).String()),
		slog.Any("error", err))
}

// collect settles what the provider has verdicts for.
func (a *agent) collect() {
	a.verdicts = a.engine.Poll(a.verdicts[:0])
	for _, v := range a.verdicts {
		p, ok := a.posted[v.Ticket]
		if !ok {
			// A provider that answers twice or for nothing has broken its contract;
			// the safe reading is that the answer says nothing.
			a.group.log.Error("verdict for no batch", slog.Int("rank", int(a.rank)), slog.Uint64("ticket", uint64(v.Ticket)))
			continue
		}
		delete(a.posted, v.Ticket)
		p.lane.tasks -= len(p.segments)
		o := outcome{settlement: v.Settlement, sourceFree: v.SourceFree, detail: v.Detail}
		switch v.Settlement {
		case pd.Done:
			o.sourceFree = true // acknowledged: there is nothing left to read
		case pd.Failed, pd.Uncertain:
		default:
			o.settlement = pd.Uncertain // anything else proves nothing
		}
		a.group.settle(p.job, p.segments, o)
	}
}

// sweep drops queued jobs that must not be posted any more.
func (a *agent) sweep() {
	for _, l := range a.lanes {
		queue := l.queue
		l.queue = nil
		for _, j := range queue {
			if why := j.dead(); why != "" {
				a.group.settle(j, j.rest, neverPosted(why))
				continue
			}
			l.queue = append(l.queue, j)
		}
	}
}

// fence makes the engine anew. A job that was begun on the old one ends with
// its session, at its next submit; those behind it go on over new sessions.
func (a *agent) fence(f fenceOrder) {
	err := a.engine.Fence(f.ctx)
	if err == nil {
		a.group.fenced(a.rank, a.engine.Epoch(), a.engine.Endpoint())
	}
	f.answer <- err
}

// shut ends the engine and settles everything. No order comes after the one to
// close: the group refuses everything from before it on.
func (a *agent) shut() {
	for _, l := range a.lanes {
		for len(l.queue) > 0 {
			a.drop(l, neverPosted("closed before it was posted"))
		}
	}
	if err := a.engine.Close(); err != nil {
		a.group.log.Error("close engine", slog.Int("rank", int(a.rank)), slog.Any("error", err))
	}
	a.collect()
	for ticket, p := range a.posted {
		delete(a.posted, ticket)
		a.group.settle(p.job, p.segments, outcome{settlement: pd.Uncertain, detail: "closed without a verdict"})
	}
}
