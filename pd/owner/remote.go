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
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

const (
	// startTimeout bounds how long the owners of a node may take to allocate and
	// register.
	startTimeout = 2 * time.Minute
	// endGrace is how long an owner process may take to end by itself.
	endGrace = 5 * time.Second
	// deathGrace is how long the end of a connection waits for the news of the
	// process, which says more.
	deathGrace = time.Second
	// maxFence bounds a fence whose context has no end.
	maxFence = 10 * time.Minute
	// longestTick is how often an owner is asked for a sign of life; a short attempt
	// timeout makes it more often. silentTicks are what it may miss beyond the
	// attempt timeout.
	longestTick = time.Second
	silentTicks = 2
)

// Process is the owner process of one rank as its node holds it. The group
// closes the files and ends the process.
type Process struct {
	// Conn is the node's end of the connection.
	Conn *net.UnixConn
	// Memory is the memory file in which the owner may put host memory; nil means
	// that it has none to share.
	Memory *os.File
	// PID is the process's id.
	PID int
	// Ended is closed once the process has ended; How then says how.
	Ended <-chan struct{}
	How   func() error
	// Kill ends the process at once. What is foreign it only lets go.
	Kill func()
	// Foreign: the process is not the node's, and lives on when the node has hung
	// up.
	Foreign bool
}

// remote is the owner of one rank behind a connection.
//
// What is queued here is bounded by the open chunks of the node. Once the
// connection is lost it stays so: whatever comes after is not read.
type remote struct {
	// constant
	rank       pd.Rank
	process    *Process
	link       *link
	components map[pd.ComponentID]uint16
	blocks     []*sharedMemory
	ports      Ports
	log        *slog.Logger
	tick       time.Duration
	// silent and stuck are how many ticks may pass without any word, and without
	// news of open jobs.
	silent, stuck int
	kick          chan struct{} // there is something to write
	ending        chan struct{} // closed by shut
	gone          chan struct{} // closed by lose
	reports       rankReports   // constant from begin on

	// owned by read
	quiet, idle int // ticks
	// reading are the settled jobs with batches that leave their source in use.
	reading map[uint64]*openJob

	mu      sync.Mutex // taken after the group's, if both
	outbox  []message
	jobs    map[uint64]*openJob
	targets map[uint64]struct{}
	fences  []fenceOrder // in the order in which they are answered
	copies  []chan copiedMessage
	why     error // why the rank is lost
	over    bool  // shut was ordered
}

// openJob is a job that the owner was given, with what is settled of it.
type openJob struct {
	*job
	left int
	done []uint64 // a bit for each segment
	// reading counts the outcomes that left the source in use.
	reading int
}

var _ rankOwner = (*remote)(nil)

// openRemote starts the owner process of one rank and waits until it has
// registered everything.
func openRemote(ctx context.Context, log *slog.Logger, c *Config, rank pd.Rank) (_ *opened, err error) {
	fail := func(err error) error {
		return &pd.Error{Op: fmt.Sprintf("start the owner of rank %d", rank), Code: pd.CodeOf(err), Err: err}
	}
	p, err := c.Launch(ctx, rank)
	if err != nil {
		return nil, fail(err)
	}
	tick := min(longestTick, max(c.AttemptTimeout/8, 10*time.Millisecond))
	ticks := func(d time.Duration) int { return int((d+tick-1)/tick) + silentTicks }
	r := &remote{
		rank: rank, process: p, link: newLink(p.Conn), components: map[pd.ComponentID]uint16{}, ports: c.Ports, log: log,
		tick: tick, silent: ticks(c.AttemptTimeout), stuck: ticks(c.AttemptTimeout + c.ConnectTimeout),
		kick: make(chan struct{}, 1), ending: make(chan struct{}), gone: make(chan struct{}),
		jobs: map[uint64]*openJob{}, targets: map[uint64]struct{}{}, reading: map[uint64]*openJob{},
	}
	m, err := r.start(ctx, c)
	if err == nil {
		var o *opened
		if o, err = r.adopt(c, m); err == nil {
			return o, nil
		}
	}
	// Whatever else a connection that was cut for it looks like from here.
	switch ctx.Err() {
	case context.Canceled:
		err = context.Cause(ctx)
	case context.DeadlineExceeded:
		err = pd.Errorf(pd.CodeDeadline, "", "process %d has not allocated and registered its memory within %v", p.PID, startTimeout)
	}
	return nil, fail(errors.Join(err, r.abandon()))
}

// start tells the owner what to make and reads what it made.
func (r *remote) start(ctx context.Context, c *Config) (*startedMessage, error) {
	// A context without an end does not reach this: see openRanks.
	deadline, _ := ctx.Deadline()
	stop := context.AfterFunc(ctx, func() { r.link.conn.Close() })
	defer stop()
	m := startMessage{
		Node: c.Peer.Node, Boot: c.Peer.Boot, Rank: r.rank, Hostname: c.Hostname,
		AttemptNanos: int64(c.AttemptTimeout), ConnectNanos: int64(c.ConnectTimeout),
		Provider: c.Remote.Provider, Options: c.Remote.Options,
	}
	if c.Ports != nil {
		m.UsedPorts = c.Ports.List()
	}
	for i, region := range extentsOf(c.Contract, c.PagesPerLayer, c.BootstrapSlots) {
		m.Regions = append(m.Regions, madeInto{Component: region.Component, Bytes: region.Bytes})
		r.components[region.Component] = uint16(i)
	}
	err := r.link.meet(deadline)
	if err == nil {
		err = r.link.out.send(m)
	}
	var answer message
	if err == nil {
		var f frame
		if f, err = r.link.in.next(); err == nil {
			answer, err = decode(f, false)
		}
	}
	if err != nil {
		return nil, &pd.Error{Code: pd.CodeOwnerLost, Err: r.explain(err)}
	}
	if err := r.link.conn.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	switch a := answer.(type) {
	case refusedMessage:
		return nil, &pd.Error{Code: a.Code, Text: a.Text}
	case startedMessage:
		return &a, a.Life.check()
	}
	return nil, malformed("%T to a start", answer)
}

// explain adds how the process ended to how its connection did.
func (r *remote) explain(err error) error {
	if code := pd.CodeOf(err); code == pd.CodeMalformed || code == pd.CodeVersionMismatch {
		return fmt.Errorf("process %d: %w", r.process.PID, err)
	}
	grace := time.NewTimer(deathGrace)
	defer grace.Stop()
	select {
	case <-r.process.Ended:
		return fmt.Errorf("process %d %w", r.process.PID, r.process.How())
	case <-grace.C:
		if errors.Is(err, io.EOF) {
			err = errors.New("it was closed")
		}
		return fmt.Errorf("process %d runs, but its connection is cut: %w", r.process.PID, err)
	}
}

// adopt takes over what the owner made.
func (r *remote) adopt(c *Config, m *startedMessage) (*opened, error) {
	o := &opened{
		rankOwner: r, life: m.Life.life(), facts: factsOf(m.Facts), memory: map[pd.ComponentID]transfer.Memory{}, pid: r.process.PID,
		begin: r.begin, abandon: r.abandon, free: func() error { return closeBlocks(r.blocks) },
	}
	want := extentsOf(c.Contract, c.PagesPerLayer, c.BootstrapSlots)
	if len(m.Regions) != len(want) {
		return nil, malformed("%d regions were made, want %d", len(m.Regions), len(want))
	}
	shared := false
	for i, made := range m.Regions {
		if made.Component != want[i].Component || made.Bytes != want[i].Bytes || made.Envelope == "" || len(made.Envelope) > maxEnvelopeBytes {
			return nil, malformed("region %d is %q of %d bytes, want %q of %d with an envelope", i, made.Component, made.Bytes, want[i].Component, want[i].Bytes)
		}
		o.regions = append(o.regions, pd.Region{Component: made.Component, Bytes: made.Bytes, Envelope: made.Envelope})
		o.memory[made.Component] = &remoteMemory{remote: r, component: uint16(i), bytes: made.Bytes}
		shared = shared || made.Offset != 0
	}
	if !shared {
		return o, nil
	}
	if r.process.Memory == nil {
		return nil, malformed("memory is shared, but there is no file for it")
	}
	memory, blocks, err := adoptShared(r.process.Memory, m.Regions)
	r.blocks = blocks // also after an error: abandon unmaps them
	if err != nil {
		return nil, err
	}
	o.memory = memory
	return o, nil
}

// abandon ends an owner that does not begin.
func (r *remote) abandon() error {
	r.finish(true)
	return closeBlocks(r.blocks)
}

// finish ends the process; gently, it gets time to end by itself.
func (r *remote) finish(gently bool) {
	r.link.conn.Close()
	if r.process.Memory != nil {
		r.process.Memory.Close()
	}
	if r.process.Foreign {
		r.process.Kill()
		return
	}
	if !gently {
		r.process.Kill()
	}
	for range 2 {
		grace := time.NewTimer(endGrace)
		select {
		case <-r.process.Ended:
			grace.Stop()
			return
		case <-grace.C:
			r.process.Kill()
		}
	}
	r.log.Error("an owner process does not end, not even by SIGKILL", "rank", int(r.rank), "pid", r.process.PID)
}

// begin starts the reader and the writer; both end with shut.
func (r *remote) begin(reports rankReports) {
	r.reports = reports
	var written sync.WaitGroup
	written.Go(r.write)
	go func() {
		why := r.read()
		r.lose(why)
		written.Wait()
		<-r.ending
		r.finish(why == errClosed)
		r.reports.ended(r.rank)
	}()
}

// tell queues a message, unless the rank is lost or ending.
func (r *remote) tell(m message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tellLocked(m)
}

func (r *remote) tellLocked(m message) {
	if r.why != nil || r.over {
		return
	}
	r.outbox = append(r.outbox, m)
	r.kickWriter()
}

func (r *remote) kickWriter() {
	select {
	case r.kick <- struct{}{}:
	default: // it will look anyway
	}
}

// jobMessage stands for all write messages of a job until it is written.
type jobMessage struct {
	message
	job *job
}

// queue implements rankOwner. The group gives nothing to a rank that it knows to
// be lost, so that lose finds every job there ever was.
func (r *remote) queue(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.jobs[j.id] = &openJob{job: j, left: len(j.segments), done: make([]uint64, (len(j.segments)+63)/64)}
	if _, known := r.targets[j.target.id]; !known {
		r.targets[j.target.id] = struct{}{}
		t := &j.target.Target
		r.tellLocked(targetMessage{
			ID: j.target.id, Node: t.Peer.Node, Boot: t.Identity.Boot, Rank: t.Identity.Rank, Epoch: t.Identity.Epoch,
			Endpoint: t.Endpoint, Regions: t.Regions,
		})
	}
	r.tellLocked(jobMessage{job: j})
}

func (r *remote) seal(h pd.HandoffID) bool {
	r.tell(sealMessage{Handoff: h})
	return false
}

func (r *remote) forget(h pd.HandoffID) { r.tell(forgetMessage{Handoff: h}) }

func (r *remote) retire(t *target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.targets[t.id]; known {
		delete(r.targets, t.id)
		r.tellLocked(retireMessage{ID: t.id})
	}
}

func (r *remote) fence(f fenceOrder) {
	m := fenceMessage{UsedPorts: []int{}}
	if r.ports != nil {
		m.UsedPorts = r.ports.List()
	}
	deadline, ok := f.ctx.Deadline()
	m.TimeoutNanos = nanos(deadline, ok, maxFence)
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.ctx.Err() != nil {
		f.answer(&pd.Error{Op: "fence", Code: pd.CodeDeadline, Err: f.ctx.Err()})
		return
	}
	r.fences = append(r.fences, f)
	r.tellLocked(m)
}

func (r *remote) shut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tellLocked(closeMessage{})
	r.over = true
	close(r.ending)
}

// write sends what is queued until the connection is closed.
func (r *remote) write() {
	for {
		select {
		case <-r.kick:
		case <-r.gone:
			return
		}
		r.mu.Lock()
		queue := r.outbox
		r.outbox = nil
		r.mu.Unlock()
		for _, m := range queue {
			if err := r.send(m); err != nil {
				// The reader sees the end of the connection, too, and says why.
				r.link.conn.Close()
				<-r.gone
				return
			}
		}
	}
}

func (r *remote) send(m message) error {
	j, whole := m.(jobMessage)
	if !whole {
		return r.link.out.send(m)
	}
	segments := j.job.segments
	for first := 0; first < len(segments); first += maxFrameSegments {
		part := segments[first:min(first+maxFrameSegments, len(segments))]
		m := writeMessage{
			Job: j.job.id, Target: j.job.target.id, Handoff: j.job.handoff, Chunk: j.job.chunkID, Total: len(segments),
			Segments: make([]wireSegment, len(part)),
		}
		for i, s := range part {
			m.Segments[i] = wireSegment{component: r.components[s.Component], source: s.SourceOffset, target: s.TargetOffset, length: s.Bytes}
		}
		if err := r.link.out.send(m); err != nil {
			return err
		}
	}
	return nil
}
