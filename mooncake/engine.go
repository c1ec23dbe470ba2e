package mooncake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/cgo/acl"
	"github.com/hw-native-sys/pypto-pd/cgo/te"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

const (
	// closeTimeout is how long Close waits for the library before it leaves an
	// engine to itself.
	closeTimeout = 90 * time.Second
	// maxCreates bounds how often an engine is created to get a port that none of
	// its earlier lives had.
	maxCreates = 8
	// maxSessions bounds the sessions of one engine: every rank of every peer.
	maxSessions = 4096
)

// creating is held while an engine is created, so that the ports that appear
// meanwhile are its own.
var creating = make(chan struct{}, 1)

// region is one registered component, in the order of registration.
type region struct {
	component pd.ComponentID
	memory    transfer.Memory
}

type engine struct {
	*transfer.Verdicts

	// constant
	provider *Provider
	api      *te.API
	hostname string
	location string
	timeout  time.Duration
	portUsed func(int) bool // nil: none was
	keeper   *keeper
	home     *home

	// owned by the caller's goroutine
	identity   transfer.Identity
	endpoint   string
	life       *life
	dying      <-chan struct{} // closed when the destroy that is under way returned
	dead       *life           // whose engine dying destroys
	regions    []region
	extents    transfer.Extents
	memory     map[pd.ComponentID]transfer.Memory
	ports      []int
	used       map[int]bool // ports of every life; none comes back
	sessions   map[sessionKey]*session
	frozen     bool
	closed     bool
	ended      bool // nothing native is left
	lastTicket transfer.Ticket
}

// begin prepares the thread, the identity row and the first native engine.
func (e *engine) begin(ctx context.Context, device *acl.API) error {
	allocator := allocator(hostAllocator{})
	e.location = "cpu:0"
	if device != nil {
		id := e.provider.options.Device(e.identity.Rank)
		a, err := openDevice(device, e.keeper, id)
		if err != nil {
			return err
		}
		allocator, e.location = a, fmt.Sprintf("npu:%d", id)
	}
	var err error
	if e.home, err = newHome(allocator); err != nil {
		return err
	}
	if err = e.create(ctx); err != nil {
		return errors.Join(err, e.home.free())
	}
	return nil
}

// create makes a native engine on ports that no life before had.
func (e *engine) create(ctx context.Context) error {
	if err := e.home.write(e.identity); err != nil {
		return fmt.Errorf("write the identity row: %w", err)
	}
	for range maxCreates {
		var native *te.Engine
		var err error
		var before, after map[int]bool
		var known bool
		e.keeper.do(func() {
			creating <- struct{}{}
			defer func() { <-creating }()
			before, _ = ownListeners()
			if native, err = e.api.Create(e.hostname); err == nil {
				after, known = ownListeners()
			}
		})
		if err != nil {
			return err
		}
		var ports []int
		for port := range after {
			if !before[port] {
				ports = append(ports, port)
			}
		}
		if ports, err = e.checkPorts(native.Name(), ports, known); err == nil {
			for _, port := range ports {
				e.used[port] = true
			}
			slices.Sort(ports)
			_, port, _ := splitName(native.Name()) // checked before
			e.endpoint = net.JoinHostPort(e.hostname, strconv.Itoa(port))
			e.ports, e.life = ports, startLife(e, native)
			return nil
		}
		e.keeper.do(func() { native.Destroy() })
		if !errors.Is(err, errUsedPort) {
			return err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("%w in %d tries; widen the port range %d..%d", errUsedPort, maxCreates, e.provider.options.MinPort, e.provider.options.MaxPort)
}

var _ transfer.Ported = (*engine)(nil)

// errUsedPort: whoever still sends to an earlier engine would reach this one,
// whose memory may be at the same addresses.
var errUsedPort = errors.New("createTransferEngine: the library took a port that an earlier engine had")

// checkPorts holds the library to the name that it announces and keeps it from
// ports that are burnt. opened are the ports that this process began to listen
// on meanwhile: the announced one, and one for data that only peers learn. It
// returns all that are the engine's.
func (e *engine) checkPorts(name string, opened []int, known bool) ([]int, error) {
	host, port, err := splitName(name)
	o := &e.provider.options
	switch {
	case err != nil:
		return nil, fmt.Errorf("getLocalIpAndPort: %w", err)
	case host != e.hostname:
		return nil, fmt.Errorf("getLocalIpAndPort: the engine answers to %s, not to %s", host, e.hostname)
	case port < o.MinPort || port > o.MaxPort:
		return nil, fmt.Errorf("getLocalIpAndPort: port %d, want %d..%d; a library that was loaded before, or a variable MC_MIN_RPC_PORT, says otherwise", port, o.MinPort, o.MaxPort)
	case known && !slices.Contains(opened, port):
		return nil, fmt.Errorf("getLocalIpAndPort: the engine announces port %d and does not listen on it", port)
	case !known:
		opened = []int{port}
	}
	for _, p := range opened {
		if e.used[p] || e.portUsed != nil && e.portUsed(p) {
			return nil, fmt.Errorf("%w: %d", errUsedPort, p)
		}
	}
	return opened, nil
}

// splitName takes an engine's name apart. The library writes IPv6 addresses
// without the brackets that it wants to see in the name of a segment.
func splitName(name string) (host string, port int, err error) {
	i := strings.LastIndexByte(name, ':')
	if i < 0 {
		return "", 0, errors.New("the engine's name is not host:port")
	}
	n, err := strconv.ParseUint(name[i+1:], 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("port %q is no number", name[i+1:])
	}
	return strings.TrimSuffix(strings.TrimPrefix(name[:i], "["), "]"), int(n), nil
}

// Ports implements transfer.Ported.
func (e *engine) Ports() []int { return slices.Clone(e.ports) }

// check refuses calls to an engine that has ended.
func (e *engine) check(op string) error {
	if e.closed {
		return pd.Errorf(pd.CodeOwnerLost, op, "the engine is closed")
	}
	return nil
}

// Register implements transfer.Engine.
func (e *engine) Register(component pd.ComponentID, m transfer.Memory) (string, error) {
	op := "register " + string(component)
	if err := e.check(op); err != nil {
		return "", err
	}
	switch {
	case e.frozen:
		return "", pd.Errorf(pd.CodeFrozen, op, "regions are frozen; register all before the first connection")
	case component == "":
		return "", pd.Errorf(pd.CodeInvalidConfig, op, "component is empty")
	case m.Len() <= 0 || m.Base() == 0:
		return "", pd.Errorf(pd.CodeInvalidConfig, op, "memory of %d bytes: want more than 0 and an address", m.Len())
	case m.Base()%transfer.Alignment != 0:
		return "", pd.Errorf(pd.CodeInvalidConfig, op, "base address is not a multiple of %d", transfer.Alignment)
	}
	if _, twice := e.memory[component]; twice {
		return "", pd.Errorf(pd.CodeConflict, op, "the component is registered already")
	}
	if err := e.register(m); err != nil {
		return "", &pd.Error{Op: op, Code: pd.CodeInternal, Text: e.registerHint(), Err: err}
	}
	e.regions = append(e.regions, region{component, m})
	e.extents[component], e.memory[component] = m.Len(), m
	return envelope{e.provider.options.Protocol, m.Base(), m.Len(), e.home.memory.Base()}.String(), nil
}

// register makes memory known to the library.
func (e *engine) register(m transfer.Memory) (err error) {
	e.keeper.do(func() { err = e.life.native.Register(m.Base(), m.Len(), e.location) })
	return err
}

func (e *engine) registerHint() string {
	if e.provider.options.Protocol == TCP {
		return "memory that overlaps a registered region is refused"
	}
	return "the region is pinned: check the memlock limit (" + memlockText() + "; ulimit -l unlimited) and free device memory"
}

// Freeze implements transfer.Engine. From here on peers find the identity row.
func (e *engine) Freeze() error {
	const op = "freeze regions"
	if err := e.check(op); err != nil {
		return err
	}
	switch {
	case e.frozen:
		return pd.Errorf(pd.CodeFrozen, op, "regions are frozen already")
	case len(e.regions) == 0:
		return pd.Errorf(pd.CodeInvalidConfig, op, "nothing is registered")
	}
	if err := e.register(e.home.memory); err != nil {
		return &pd.Error{Op: op, Code: pd.CodeInternal, Text: "register the identity row", Err: err}
	}
	e.frozen = true
	return nil
}

// Endpoint implements transfer.Engine.
func (e *engine) Endpoint() string { return e.endpoint }

// Epoch implements transfer.Engine.
func (e *engine) Epoch() pd.Epoch { return e.identity.Epoch }

// Fence implements transfer.Engine. After an error the engine takes and makes
// no writes; Fence may be called again.
func (e *engine) Fence(ctx context.Context) error {
	op := fmt.Sprintf("fence epoch %d of rank %d", e.identity.Epoch, e.identity.Rank)
	if err := e.check(op); err != nil {
		return err
	}
	if !e.frozen {
		return pd.Errorf(pd.CodeInternal, op, "freeze the regions first")
	}
	if err := e.destroy(ctx); err != nil {
		return &pd.Error{Op: op, Code: pd.CodeDeadline, Text: "destroyTransferEngine has not returned; writes may land", Err: err}
	}
	e.identity.Epoch++
	if err := e.recreate(ctx); err != nil {
		// Nobody was told of this epoch, and the row of it is registered nowhere.
		e.identity.Epoch--
		return &pd.Error{Op: op, Code: pd.CodeInternal, Text: "no earlier write lands any more, but the new engine could not be made", Err: err}
	}
	return nil
}

// recreate makes the next life over the same memory.
func (e *engine) recreate(ctx context.Context) error {
	if e.provider.options.Protocol == TCP {
		e.home.reset()
	}
	if err := e.create(ctx); err != nil {
		return err
	}
	for _, r := range append(e.regions[:len(e.regions):len(e.regions)], region{"identity row", e.home.memory}) {
		if err := e.register(r.memory); err != nil {
			return errors.Join(fmt.Errorf("register %s: %w", r.component, err), e.destroy(context.WithoutCancel(ctx)))
		}
	}
	return nil
}

// destroy ends the current life, if there is one, and returns nil when nothing
// of it is left. It may be called again after an error.
func (e *engine) destroy(ctx context.Context) error {
	if l := e.life; l != nil {
		l.halt()
		for key, s := range e.sessions {
			s.dead.Store(true)
			delete(e.sessions, key)
		}
		if err := l.idle(ctx); err != nil {
			l.abandon(false)
			return fmt.Errorf("a connection attempt is still in the library: %w", err)
		}
		quiet := l.native.Live() == 0
		ended, err := e.keeper.start(ctx, func() { e.end(l, quiet) })
		if err != nil {
			l.abandon(false)
			return err
		}
		e.life, e.dead, e.dying = nil, l, ended
	}
	if e.dying == nil {
		return nil
	}
	select {
	case <-e.dying:
	case <-ctx.Done():
		e.dead.abandon(false)
		return ctx.Err()
	}
	e.dead.abandon(true)
	e.dead, e.dying = nil, nil
	return nil
}

// end unregisters and destroys, on the keeper's thread. Memory that a batch may
// still read is left registered: on a device, taking it back disconnects peers
// while it is read.
func (e *engine) end(l *life, quiet bool) {
	if quiet {
		list := e.regions
		if e.frozen {
			list = append(list[:len(list):len(list)], region{"identity row", e.home.memory})
		}
		for _, r := range list {
			// After a half-made life some are not registered.
			if err := l.native.Unregister(r.memory.Base()); err != nil {
				e.provider.options.Log.Debug("not unregistered", slog.String("region", string(r.component)), slog.Any("error", err))
			}
		}
	}
	if leaked := l.native.Destroy(); leaked > 0 {
		e.provider.leaked.Add(int64(leaked))
		e.provider.options.Log.Warn("native batches had not ended", slog.Int("rank", int(e.identity.Rank)), slog.Int("batches", leaked))
	}
}

// Close implements transfer.Engine. It is idempotent. An error says that the
// library still holds the memory, which must then stay; Close may be called
// again.
func (e *engine) Close() error {
	if e.ended {
		return nil
	}
	again := e.closed
	e.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), e.provider.closeTimeout)
	defer cancel()
	if err := e.destroy(ctx); err != nil {
		if !again {
			e.provider.hung.Add(1)
		}
		return &pd.Error{
			Op: fmt.Sprintf("close engine of rank %d", e.identity.Rank), Code: pd.CodeDeadline,
			Text: "the library does not let go of the registered memory; only the end of the process frees it", Err: err,
		}
	}
	if again {
		e.provider.hung.Add(-1)
	}
	e.ended = true
	err := e.home.free()
	e.keeper.end()
	if err != nil {
		return &pd.Error{Op: "free the identity row", Code: pd.CodeInternal, Err: err}
	}
	return nil
}
