package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Options say who writes and where.
type Options struct {
	// Root is the log folder; it need not exist.
	Root string
	Run  pd.RunID
	Role Role
	// Identity is the node id, or a router's listen address.
	Identity string
	Boot     pd.BootID
	// Enabled is observability.enabled: false writes the state folder only.
	Enabled bool
	// Program, Version, Provider and ContractDigest go into the startup record.
	Program        string
	Version        string
	Provider       string
	ContractDigest string
}

// Journal is one process's open journal. Emit, Log and the counters are safe
// for concurrent use.
type Journal struct {
	// constant
	opts      Options
	start     time.Time
	leftovers []Leftover
	wake      chan struct{}
	ended     chan struct{}

	// owned by Run, and by Close once Run has ended
	events *file
	log    *file
	state  *file
	seq    uint64

	// guarded by mu
	mu       sync.Mutex
	queue    []Event
	text     []byte
	missing  int64
	dropped  uint64
	running  bool
	closing  bool
	failures error
}

// Open creates the folders and files and writes the startup record. The caller
// runs Run and ends with Close.
func Open(o Options) (*Journal, error) {
	j, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("open journal of %s %s: %w", o.Role, o.Identity, err)
	}
	return j, nil
}

func open(o Options) (*Journal, error) {
	files := FilesOf(o.Root, o.Run, o.Role, o.Identity)
	if err := os.MkdirAll(filepath.Dir(files.State), 0o755); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(files.State, 0o700); err != nil {
		return nil, err
	}
	j := &Journal{
		opts: o, start: time.Now(), wake: make(chan struct{}, 1), ended: make(chan struct{}),
		state: &file{path: files.state(o.Boot)},
	}
	var err error
	if j.leftovers, err = leftovers(files); err != nil {
		return nil, err
	}
	if err := j.state.open(); err != nil {
		return nil, err
	}
	if !o.Enabled {
		return j, nil
	}
	j.events, j.log = &file{path: files.Events}, &file{path: files.Log}
	err = errors.Join(j.events.open(), j.log.open(), j.writeStartup(files.Startup))
	if err != nil {
		j.closeFiles()
		return nil, err
	}
	return j, nil
}

func (j *Journal) writeStartup(path string) error {
	b, err := json.MarshalIndent(Startup{
		Role: j.opts.Role, Run: j.opts.Run, Node: j.opts.Identity, Boot: j.opts.Boot, Started: j.start.UTC(), PID: os.Getpid(),
		Program: j.opts.Program, Version: j.opts.Version, Go: runtime.Version(),
		Provider: j.opts.Provider, ContractDigest: j.opts.ContractDigest,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), fileMode)
}

// Leftovers are the earlier boots of this identity that ended with handoffs
// begun and not ended. They are a report; nothing is decided by them.
func (j *Journal) Leftovers() []Leftover { return j.leftovers }

// Nanos is a moment on the journal's monotonic clock, for Event.BeganNanos and
// Event.EndedNanos.
func (j *Journal) Nanos(t time.Time) int64 { return int64(t.Sub(j.start)) }

// Emit queues an event and never blocks. The journal keeps e.Regions; the
// caller must not change it afterwards. A time of zero means now.
func (j *Journal) Emit(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if !j.opts.Enabled && !isLifecycle(e.Event) {
		return
	}
	j.mu.Lock()
	if j.closing || len(j.queue) >= pd.MaxJournalEvents {
		j.missing++
		j.dropped++
	} else {
		j.queue = append(j.queue, e)
	}
	j.mu.Unlock()
	j.poke()
}

// Log is the process's log file as a writer that never blocks and never fails.
// Each Write is one line. It discards everything when observability is off.
func (j *Journal) Log() io.Writer { return logWriter{j} }

type logWriter struct{ j *Journal }

// Write queues one line.
func (w logWriter) Write(line []byte) (int, error) {
	j := w.j
	if !j.opts.Enabled {
		return len(line), nil
	}
	j.mu.Lock()
	if j.closing || len(j.text)+len(line) > pd.MaxJournalLogBytes {
		j.missing++
		j.dropped++
	} else {
		j.text = append(j.text, line...)
	}
	j.mu.Unlock()
	j.poke()
	return len(line), nil
}

// Dropped counts the lines that were lost because the writer could not keep up
// or the disk refused them.
func (j *Journal) Dropped() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.dropped
}

func (j *Journal) poke() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// Run writes what is queued until Close. It is called once.
func (j *Journal) Run() {
	j.mu.Lock()
	closing := j.closing
	j.running = !closing
	j.mu.Unlock()
	if closing {
		return // Close came first and does the writing
	}
	defer close(j.ended)
	for range j.wake {
		if j.write() {
			return
		}
	}
}

// write takes everything that is queued, and says whether the journal closes.
func (j *Journal) write() (closing bool) {
	j.mu.Lock()
	queue, text, missing := j.queue, j.text, j.missing
	j.queue, j.text, j.missing, closing = nil, nil, 0, j.closing
	j.mu.Unlock()
	if missing > 0 {
		queue = append(queue, Event{Event: Dropped, Time: time.Now(), Count: missing})
	}
	var events, state []byte
	for _, e := range queue {
		line := j.encode(e)
		if j.opts.Enabled {
			events = append(events, line...)
		}
		if isLifecycle(e.Event) {
			state = append(state, line...)
		}
	}
	for _, part := range []struct {
		to   *file
		text []byte
	}{{j.state, state}, {j.events, events}, {j.log, text}} {
		if part.to == nil || len(part.text) == 0 {
			continue
		}
		if err := part.to.write(part.text); err != nil {
			j.mu.Lock()
			j.dropped++
			if j.failures == nil {
				j.failures = err
			}
			j.mu.Unlock()
		}
	}
	return closing
}

// maxDetailBytes bounds the text for people in an event.
const maxDetailBytes = 512

func (j *Journal) encode(e Event) []byte {
	j.seq++
	e.Sequence, e.Time = j.seq, e.Time.UTC()
	e.Run, e.Role, e.Node, e.Boot = j.opts.Run, j.opts.Role, j.opts.Identity, j.opts.Boot
	if len(e.Detail) > maxDetailBytes {
		e.Detail = e.Detail[:maxDetailBytes]
	}
	b, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("encode event %s: %v", e.Event, err)) // it holds strings, integers and a time only
	}
	return append(b, '\n')
}

// Close writes what is queued, closes the files and returns the first error of
// writing. It is called once; later events are dropped.
func (j *Journal) Close() error {
	j.mu.Lock()
	j.closing = true
	running := j.running
	j.mu.Unlock()
	j.poke()
	if running {
		<-j.ended
	}
	j.write()
	return errors.Join(j.failures, j.closeFiles())
}

func (j *Journal) closeFiles() error {
	return errors.Join(j.state.close(), j.events.close(), j.log.close())
}
