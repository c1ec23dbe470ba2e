package owner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

const (
	// orderTimeout bounds how long an owner waits for its order after it was
	// started.
	orderTimeout = 30 * time.Second
	// maxTargets bounds the target ranks that an owner is told of.
	maxTargets = pd.MaxNodes * pd.MaxRanks
)

// ServeConfig is what an owner process has at hand.
type ServeConfig struct {
	// Conn is its end of the connection to the node; Serve closes it.
	Conn *net.UnixConn
	// Memory is the memory file for host memory that the node's engine computes in;
	// nil means that there is none. It stays the caller's.
	Memory *os.File
	// Lock is the boot lock that was inherited from the node; the caller keeps it
	// open until the process ends. Nil means that the node is this very process.
	Lock *os.File
	// Provider makes the data plane of the start message's name from its options.
	Provider func(name, options string) (transfer.Provider, error)
	// NewArena makes memory for a provider that does not write the host's; nil, or a
	// nil arena, means shared memory in Memory.
	NewArena func(p transfer.Provider, rank pd.Rank) (transfer.Arena, error)
	Log      *slog.Logger
}

// server is the owner of one rank in its own process: an agent whose orders come
// from a connection and whose reports go there.
type server struct {
	// constant
	config ServeConfig
	link   *link
	kick   chan struct{} // there is something to write
	done   chan struct{} // closed when the agent has ended
	// constant once started
	agent      *agent
	components []pd.ComponentID
	used       portSet

	// owned by the reader
	targets map[uint64]*target
	partial map[uint64]*job // jobs that are not whole yet
	sealing map[pd.HandoffID]*atomic.Bool

	mu     sync.Mutex
	outbox []message
}

// Serve runs the owner of one rank until its node closes it or hangs up, or the
// context ends. It returns after the engine has ended and the memory is free,
// nil if the node ordered that.
func Serve(ctx context.Context, c ServeConfig) error {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &server{
		config: c, link: newLink(c.Conn), kick: make(chan struct{}, 1), done: make(chan struct{}),
		targets: map[uint64]*target{}, partial: map[uint64]*job{}, sealing: map[pd.HandoffID]*atomic.Bool{},
	}
	defer c.Conn.Close()
	stop := context.AfterFunc(ctx, func() { c.Conn.Close() })
	defer stop()
	if err := s.start(ctx); err != nil {
		return fmt.Errorf("owner: %w", err)
	}
	s.agent.begin(s)
	var writing sync.WaitGroup
	writing.Go(s.write)
	err := s.read()
	ordered := errors.Is(err, errClosed)
	if errors.Is(err, io.EOF) {
		err = errors.New("owner: the node has hung up")
	}
	if !ordered {
		s.agent.shut()
		c.Conn.Close()
	}
	<-s.done
	writing.Wait()
	if ordered {
		err = nil
	}
	return errors.Join(err, s.agent.arena.Close())
}

// start reads the order and carries it out.
func (s *server) start(ctx context.Context) error {
	if err := s.link.meet(time.Now().Add(orderTimeout)); err != nil {
		return err
	}
	f, err := s.link.in.next()
	if err != nil {
		return err
	}
	m, err := decode(f, true)
	if err != nil {
		return err
	}
	order, ok := m.(startMessage)
	if !ok {
		return malformed("%T before the start", m)
	}
	if err := s.link.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	started, err := s.open(ctx, &order)
	if err != nil {
		return errors.Join(err, s.link.out.send(refusedMessage{Code: pd.CodeOf(err), Text: err.Error()}))
	}
	if err := s.link.out.send(*started); err != nil {
		return errors.Join(err, s.agent.abandon())
	}
	return nil
}

func (s *server) open(ctx context.Context, order *startMessage) (*startedMessage, error) {
	if s.config.Lock != nil {
		// Before anything is registered. The lock is the node's own, so this changes
		// nothing; it fails where the descriptor is no lock at all.
		if err := syscall.Flock(int(s.config.Lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
			return nil, &pd.Error{Code: pd.CodeConflict, Text: "share the boot lock of the node", Err: err}
		}
	}
	if err := order.check(); err != nil {
		return nil, err
	}
	provider, err := s.config.Provider(order.Provider, order.Options)
	if err != nil {
		return nil, err
	}
	if err := checkProvider(ctx, provider, order.Hostname); err != nil {
		return nil, err
	}
	extents := transfer.Extents{}
	config := agentConfig{
		rank: order.Rank, provider: provider, connectTimeout: time.Duration(order.ConnectNanos), log: s.config.Log,
		options: transfer.Options{
			Identity: transfer.Identity{Boot: order.Boot, Rank: order.Rank}, Hostname: order.Hostname,
			AttemptTimeout: time.Duration(order.AttemptNanos), PortUsed: s.used.has,
		},
	}
	for _, r := range order.Regions {
		config.regions = append(config.regions, pd.Region{Component: r.Component, Bytes: r.Bytes})
		s.components = append(s.components, r.Component)
		extents[r.Component] = r.Bytes
	}
	s.used.add(order.UsedPorts)
	facts := provider.Facts()
	if err := checkLocked(facts, order.Rank, extents); err != nil {
		return nil, err
	}
	var shared *SharedArena
	config.newArena = func(rank pd.Rank) (transfer.Arena, error) {
		if s.config.NewArena != nil {
			if a, err := s.config.NewArena(provider, rank); a != nil || err != nil {
				return a, err
			}
		}
		if s.config.Memory == nil {
			return NewHostArena(), nil
		}
		shared = NewSharedArena(s.config.Memory)
		return shared, nil
	}
	if s.agent, err = openAgent(ctx, config); err != nil {
		return nil, err
	}
	if shared != nil {
		if err := shared.seal(); err != nil {
			return nil, errors.Join(err, s.agent.abandon())
		}
	}
	m := &startedMessage{Life: s.agent.current().message(), Facts: factsToSend(facts)}
	for _, r := range s.agent.config.regions {
		made := madeInto{Component: r.Component, Bytes: r.Bytes, Envelope: r.Envelope}
		if b, ok := s.agent.memory[r.Component].(*sharedMemory); ok {
			made.Offset = b.offset + 1
		}
		m.Regions = append(m.Regions, made)
	}
	return m, nil
}

// check refuses an order that no node gives.
func (m *startMessage) check() error {
	if err := pd.CheckHexID("boot", string(m.Boot)); err != nil {
		return malformed("start: %v", err)
	}
	if m.Rank < 0 || m.Rank >= pd.MaxRanks || len(m.Regions) < 1 || len(m.Regions) > pd.MaxComponents+1 || m.AttemptNanos < 1 || m.ConnectNanos < 1 {
		return malformed("start: rank %d with %d regions, attempts of %d ns and connections of %d ns", m.Rank, len(m.Regions), m.AttemptNanos, m.ConnectNanos)
	}
	return nil
}

// read takes orders until the node ends the connection, and says why.
func (s *server) read() error {
	for {
		f, err := s.link.in.next()
		if err != nil {
			return err
		}
		m, err := decode(f, true)
		if err == nil {
			err = s.take(m)
		}
		if err != nil {
			return err
		}
	}
}

func (s *server) take(m message) error {
	switch m := m.(type) {
	case pingMessage:
		s.tell(pongMessage{})
	case targetMessage:
		return s.addTarget(&m)
	case retireMessage:
		t := s.targets[m.ID]
		if t == nil {
			return malformed("retire a target that is not known")
		}
		delete(s.targets, m.ID)
		t.stale.Store(true)
		s.agent.retire(t)
	case writeMessage:
		return s.addJob(&m)
	case sealMessage:
		flag, err := s.flag(m.Handoff)
		if err != nil {
			return err
		}
		flag.Store(true)
		s.agent.seal(m.Handoff)
		s.tell(sealedMessage(m))
	case forgetMessage:
		delete(s.sealing, m.Handoff)
	case fenceMessage:
		s.fence(&m)
	case copyMessage:
		s.tell(s.copy(&m))
	case closeMessage:
		s.agent.shut()
		return errClosed
	default:
		return malformed("%T out of place", m)
	}
	return nil
}

func (s *server) addTarget(m *targetMessage) error {
	if _, twice := s.targets[m.ID]; twice || len(s.targets) >= maxTargets {
		return malformed("target %d again, or one of more than %d", m.ID, maxTargets)
	}
	t := &target{id: m.ID, Target: transfer.Target{
		Peer:     pd.Peer{Node: m.Node, Boot: m.Boot},
		Identity: transfer.Identity{Boot: m.Boot, Rank: m.Rank, Epoch: m.Epoch},
		Endpoint: m.Endpoint, Regions: m.Regions,
	}}
	s.targets[m.ID] = t
	return nil
}

// addJob takes a part of a job, and queues the job once it is whole. The
// segments were checked by the node and will be by the provider.
func (s *server) addJob(m *writeMessage) error {
	j := s.partial[m.Job]
	if j == nil {
		t := s.targets[m.Target]
		if t == nil || len(s.partial) > 0 {
			return malformed("write to a target that is not known, or between the parts of another")
		}
		flag, err := s.flag(m.Handoff)
		if err != nil {
			return err
		}
		j = &job{id: m.Job, handoff: m.Handoff, chunkID: m.Chunk, source: s.agent.config.rank, target: t, dropped: flag, segments: make([]pd.Segment, 0, m.Total)}
	}
	if len(j.segments)+len(m.Segments) > m.Total || cap(j.segments) != m.Total {
		return malformed("write: %d segments and %d of %d", len(j.segments), len(m.Segments), m.Total)
	}
	for _, w := range m.Segments {
		if int(w.component) >= len(s.components) {
			return malformed("write of component %d of %d", w.component, len(s.components))
		}
		j.segments = append(j.segments, pd.Segment{Component: s.components[w.component], SourceOffset: w.source, TargetOffset: w.target, Bytes: w.length})
	}
	if len(j.segments) < m.Total {
		s.partial[m.Job] = j
		return nil
	}
	delete(s.partial, m.Job)
	// A sealed handoff's job is dropped by the agent: there is one place for that.
	s.agent.queue(j)
	return nil
}

// flag is the mark that a handoff is sealed. It is kept until the node forgets
// the handoff.
func (s *server) flag(h pd.HandoffID) (*atomic.Bool, error) {
	if err := pd.CheckHexID("handoff", string(h)); err != nil {
		return nil, malformed("%v", err)
	}
	flag := s.sealing[h]
	if flag == nil {
		if len(s.sealing) >= 3*maxHandoffs {
			return nil, malformed("more than %d handoffs are on record", 3*maxHandoffs)
		}
		flag = &atomic.Bool{}
		s.sealing[h] = flag
	}
	return flag, nil
}

// fence orders a fence; the agent answers in the order of the orders.
func (s *server) fence(m *fenceMessage) {
	s.used.add(m.UsedPorts)
	ctx, cancel := context.WithTimeout(s.agent.life, time.Duration(m.TimeoutNanos))
	s.agent.fence(fenceOrder{ctx: ctx, answer: func(err error) {
		cancel()
		if err != nil {
			s.tell(fencedMessage{Code: pd.CodeOf(err), Text: err.Error()})
		}
	}})
}

// copy moves bytes between the node and memory that it cannot reach.
func (s *server) copy(m *copyMessage) copiedMessage {
	if int(m.Component) >= len(s.components) {
		return copiedMessage{Text: fmt.Sprintf("component %d of %d", m.Component, len(s.components))}
	}
	memory := s.agent.memory[s.components[m.Component]]
	if m.Offset < 0 || int64(m.Length) > memory.Len() || m.Offset > memory.Len()-int64(m.Length) {
		return copiedMessage{Text: fmt.Sprintf("%d bytes at %d of a region of %d", m.Length, m.Offset, memory.Len())}
	}
	var answer copiedMessage
	if m.Data == nil {
		answer.Data = make([]byte, m.Length)
	}
	if b := memory.Bytes(); b != nil {
		copy(b[m.Offset:], m.Data)
		copy(answer.Data, b[m.Offset:])
		return answer
	}
	c, ok := memory.(transfer.Copier)
	if !ok {
		return copiedMessage{Text: "this memory cannot be copied"}
	}
	err := error(nil)
	if m.Data != nil {
		err = c.CopyIn(m.Offset, m.Data)
	} else {
		err = c.CopyOut(m.Offset, answer.Data)
	}
	if err != nil {
		return copiedMessage{Text: err.Error()}
	}
	return answer
}

// tell queues a message. What is queued is bounded by what the node has asked
// for and has not been told.
func (s *server) tell(m message) {
	s.mu.Lock()
	s.outbox = append(s.outbox, m)
	s.mu.Unlock()
	select {
	case s.kick <- struct{}{}:
	default: // the writer will look anyway
	}
}

// write sends what is queued until the agent has ended and everything was said.
func (s *server) write() {
	for over := false; !over; {
		select {
		case <-s.kick:
		case <-s.done:
			over = true
		}
		s.mu.Lock()
		queue := s.outbox
		s.outbox = nil
		s.mu.Unlock()
		for _, m := range queue {
			if err := s.link.out.send(m); err != nil {
				s.link.conn.Close() // the reader ends with it
				<-s.done
				return
			}
		}
	}
}

var _ rankReports = (*server)(nil)

func (s *server) began(j *job) { s.tell(beganMessage{Job: j.id}) }

func (s *server) settled(j *job, first, count int, o outcome) {
	s.tell(settledMessage{Job: j.id, First: first, Count: count, Outcome: o})
}

func (s *server) sourceFreed(j *job) { s.tell(freedMessage{Job: j.id}) }

func (s *server) fenced(_ pd.Rank, l engineLife) error {
	s.used.add(l.ports)
	m := l.message()
	s.tell(fencedMessage{Life: &m})
	return nil
}

func (s *server) ended(pd.Rank) {
	s.tell(closedMessage{})
	close(s.done)
}

// An agent of this process answers a seal at once and is never lost without it.
func (s *server) sealed(pd.Rank, pd.HandoffID) {}
func (s *server) lost(pd.Rank, error)          {}

// portSet is a set of ports that grows.
type portSet struct {
	mu    sync.Mutex
	ports map[int]struct{}
}

func (p *portSet) add(ports []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ports == nil {
		p.ports = map[int]struct{}{}
	}
	for _, port := range ports {
		p.ports[port] = struct{}{}
	}
}

func (p *portSet) has(port int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, used := p.ports[port]
	return used
}
