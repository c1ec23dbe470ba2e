package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/hw-native-sys/pypto-pd/cmd/pdnode"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// Owner is the memory of one rank in a process of its own: registration and
// writes run here, under the orders of a node elsewhere on this machine. It
// serves one node after the other.
type Owner struct {
	// constant
	log *slog.Logger

	// guarded by mu
	mu      sync.Mutex
	arena   arena
	frozen  bool
	meeting *owner.Rendezvous
	stop    context.CancelFunc
	serving bool
	last    error
	running sync.WaitGroup
}

// OpenOwner reads the configuration; see OwnerConfig.
func OpenOwner(text []byte) (*Owner, error) {
	var c OwnerConfig
	if err := strictjson.Decode(text, &c, strictjson.Limits{}); err != nil {
		return nil, &pd.Error{Op: "open", Code: pd.CodeInvalidConfig, Err: err}
	}
	level := slog.LevelWarn
	if c.LogLevel != "" {
		if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
			return nil, invalid("log_level %q: want debug, info, warn or error", c.LogLevel)
		}
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("owner", os.Getpid())
	return &Owner{log: log, arena: arena{}}, nil
}

// OwnerConfig is the JSON text that OpenOwner takes. What is to be served is
// ordered by the node.
type OwnerConfig struct {
	// LogLevel is debug, info, warn (the default) or error; the log goes to stderr.
	LogLevel string `json:"log_level,omitempty"`
}

// Memory gives one arena, as the node's Regions describe it.
func (o *Owner) Memory(component pd.ComponentID, address uintptr, bytes int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.frozen {
		return pd.Errorf(pd.CodeFrozen, "memory", "the memory of this owner is frozen")
	}
	if err := pd.CheckID("component", string(component)); err != nil {
		return pd.Errorf(pd.CodeInvalidRequest, "memory", "%v", err)
	}
	return o.arena.give(component, address, bytes, o.arena)
}

// Freeze ends the giving of memory.
func (o *Owner) Freeze() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.arena) == 0 {
		return pd.Errorf(pd.CodeInvalidRequest, "freeze", "no memory was given")
	}
	o.frozen = true
	return nil
}

// Serve waits at a socket for the node, and for the next one when it has ended.
func (o *Owner) Serve(path string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.frozen:
		return pd.Errorf(pd.CodeInvalidRequest, "serve", "the memory is not frozen yet")
	case o.meeting != nil:
		return pd.Errorf(pd.CodeInvalidRequest, "serve", "the owner serves already")
	}
	meeting, err := owner.Meet(path)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	o.meeting, o.stop = meeting, stop
	o.running.Go(func() { o.serve(ctx, meeting) })
	return nil
}

func (o *Owner) serve(ctx context.Context, meeting *owner.Rendezvous) {
	for ctx.Err() == nil {
		c, err := meeting.Accept(ctx)
		if err != nil {
			o.note(false, err)
			return
		}
		o.note(true, nil)
		c.Log = o.log
		c.Provider = func(name, options string) (transfer.Provider, error) { return pdnode.Provider(name, options, o.log) }
		c.NewArena = func(transfer.Provider, pd.Rank) (transfer.Arena, error) { return o.arena, nil }
		err = owner.Serve(ctx, c)
		c.Lock.Close()
		if err != nil {
			o.log.Warn("the node has left", "err", err)
		}
		o.note(false, err)
	}
}

func (o *Owner) note(serving bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.serving, o.last = serving, err
}

// State says whether a node is being served, and how the last one ended.
func (o *Owner) State() (serving bool, last error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.serving, o.last
}

// Close ends the service, whatever the node thinks of it. After nil the memory
// is the host's again.
func (o *Owner) Close(ctx context.Context) error {
	o.mu.Lock()
	o.frozen = true
	meeting, stop := o.meeting, o.stop
	o.mu.Unlock()
	if meeting == nil {
		return nil
	}
	stop()
	done := make(chan struct{})
	go func() {
		o.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return pd.Errorf(pd.CodeDeadline, "close", "the data plane is still ending")
	}
	if err := meeting.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close the socket: %w", err)
	}
	return nil
}
