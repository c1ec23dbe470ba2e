package mooncake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/cgo/acl"
	"github.com/hw-native-sys/pypto-pd/cgo/te"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// Name is the provider's name in pd.json.
const Name = "mooncake"

// Protocol is how bytes move.
type Protocol string

// The protocols.
const (
	// TCP moves host memory over TCP.
	TCP Protocol = "tcp"
	// Ascend moves device memory between Ascend NPUs.
	Ascend Protocol = "ascend"
)

// Defaults of Options.
const (
	// DefaultMinPort and DefaultMaxPort are where engines listen: the library's
	// own range, written down so that a firewall can know it.
	DefaultMinPort = 15000
	DefaultMaxPort = 17000
	// DefaultAscendBasePort is where the device transport's ports begin.
	DefaultAscendBasePort = 20000
	// DefaultConnectTimeout and DefaultTransferTimeout bound one step of the
	// device transport.
	DefaultConnectTimeout  = 10 * time.Second
	DefaultTransferTimeout = 10 * time.Second
)

// Options describe the data plane of one process. The library reads its
// variables once, so a process has one protocol.
type Options struct {
	// Protocol is TCP or Ascend; "" is TCP.
	Protocol Protocol
	// Library is the path of the Transfer Engine; "" means the variable
	// PYPTO_MOONCAKE_LIBRARY, then the usual places.
	Library string
	// AscendLibrary is the path of the Ascend runtime; "" means the variable
	// PYPTO_ASCENDCL_LIBRARY, then the usual places. Only Ascend needs it.
	AscendLibrary string
	// AllowGoRuntime lets libraries in that bring a second Go runtime.
	AllowGoRuntime bool
	// LogLevel is how much the library writes to standard error: TRACE, INFO,
	// WARNING or ERROR; "" is ERROR.
	LogLevel string
	// MinPort and MaxPort bound the ports that engines listen on; 0 is the
	// default. The range may be given to the library once per process.
	MinPort, MaxPort int
	// Device says which logical device holds a rank's memory; nil means device 0
	// for every rank, which fits one card per process. Only Ascend asks.
	Device func(pd.Rank) int
	// AscendBasePort, ConnectTimeout and TransferTimeout are the device
	// transport's; 0 is the default. A write that completes later than
	// TransferTimeout after its submit is Uncertain.
	AscendBasePort  int
	ConnectTimeout  time.Duration
	TransferTimeout time.Duration
	// AscendAsync chooses the library's asynchronous executor (CANN 8.5 and
	// later), which repeats only what was refused and never what was posted.
	AscendAsync bool
	// Log gets what an operator should see; nil means nothing.
	Log *slog.Logger
}

func (o *Options) withDefaults() {
	if o.Protocol == "" {
		o.Protocol = TCP
	}
	if o.LogLevel == "" {
		o.LogLevel = "ERROR"
	}
	if o.MinPort == 0 && o.MaxPort == 0 {
		o.MinPort, o.MaxPort = DefaultMinPort, DefaultMaxPort
	}
	if o.AscendBasePort == 0 {
		o.AscendBasePort = DefaultAscendBasePort
	}
	if o.ConnectTimeout == 0 {
		o.ConnectTimeout = DefaultConnectTimeout
	}
	if o.TransferTimeout == 0 {
		o.TransferTimeout = DefaultTransferTimeout
	}
	if o.Device == nil {
		o.Device = func(pd.Rank) int { return 0 }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// check reports every defect of options with defaults.
func (o *Options) check() error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if o.Protocol != TCP && o.Protocol != Ascend {
		bad("protocol %q: want %s or %s", o.Protocol, TCP, Ascend)
	}
	switch o.LogLevel {
	case "TRACE", "INFO", "WARNING", "ERROR":
	default:
		bad("log level %q: want TRACE, INFO, WARNING or ERROR", o.LogLevel)
	}
	// Two random ports per engine, and a fence needs other ones.
	if o.MinPort < 1024 || o.MaxPort > 65535 || o.MaxPort-o.MinPort < 16 {
		bad("ports %d..%d: want at least 17 ports within 1024..65535", o.MinPort, o.MaxPort)
	}
	if o.AscendBasePort < 1024 || o.AscendBasePort > 65535-100*pd.MaxRanks {
		bad("ascend base port %d: want 1024..%d", o.AscendBasePort, 65535-100*pd.MaxRanks)
	}
	if o.ConnectTimeout < time.Millisecond || o.TransferTimeout < time.Millisecond {
		bad("connect timeout %s, transfer timeout %s: want 1ms or more", o.ConnectTimeout, o.TransferTimeout)
	}
	return errors.Join(all...)
}

// Stats count what went wrong since the process began.
type Stats struct {
	// LateBatches are batches that their attempt's time-out settled; Open ones
	// among them have still not ended.
	LateBatches, OpenLate int64
	// LeakedBatches are native batches that had not ended when their engine was
	// destroyed. Their memory in the library is lost.
	LeakedBatches int64
	// HungEngines are engines that Close gave up on, with their memory.
	HungEngines int64
}

// Provider makes engines of the Transfer Engine. It is safe for concurrent use.
type Provider struct {
	// constant
	options      Options
	closeTimeout time.Duration

	late, openLate, leaked, hung atomic.Int64

	mu  sync.Mutex
	te  *te.API
	acl *acl.API
	sum string // of the library's file, as far as it is known
}

var (
	_ transfer.Provider = (*Provider)(nil)
	_ transfer.Checker  = (*Provider)(nil)
)

// New checks the options. It loads and starts nothing.
func New(o Options) (*Provider, error) {
	o.withDefaults()
	if err := o.check(); err != nil {
		return nil, &pd.Error{Op: "configure mooncake", Code: pd.CodeInvalidConfig, Err: err}
	}
	return &Provider{options: o, closeTimeout: closeTimeout}, nil
}

// OnDevice says whether the memory that moves is that of devices.
func (p *Provider) OnDevice() bool { return p.options.Protocol == Ascend }

// Name is "mooncake".
func (p *Provider) Name() string { return Name }

// Facts declares what is proven for the protocol. Build is the digest of the
// library's file, which is looked for and not loaded; a library that is not
// there has a build that fits no peer.
func (p *Provider) Facts() transfer.Facts {
	tcp := p.options.Protocol == TCP
	return transfer.Facts{
		// Measured on TCP: after destroying returned no byte landed, with the sender
		// alive. Nobody has measured a device.
		FenceProves: tcp,
		// The target's socket may hold bytes of a dead sender.
		DeathSuffices:       false,
		TerminalFreesSource: tcp,
		Acknowledged:        true,
		LocksMemory:         !tcp,
		Build:               p.build(),
	}
}

// build names protocol and library. Equal builds are the only way to know that
// both ends acknowledge writes.
func (p *Provider) build() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.te != nil {
		p.sum = p.te.Info().SHA256
	} else if p.sum == "" {
		info, err := te.Identify(p.libraryOptions(nil))
		if err != nil {
			return fmt.Sprintf("%s-%s/1/absent", Name, p.options.Protocol)
		}
		p.sum = info.SHA256
	}
	return fmt.Sprintf("%s-%s/1/%s", Name, p.options.Protocol, p.sum)
}

func (p *Provider) libraryOptions(env map[string]string) te.Options {
	return te.Options{Path: p.options.Library, Env: env, AllowGoRuntime: p.options.AllowGoRuntime}
}

// Locate says whether the libraries are there for this program to load, and
// loads nothing. The error has CodeNativeLibraryMissing.
func (p *Provider) Locate() error {
	_, err := te.Identify(p.libraryOptions(nil))
	if err == nil && p.options.Protocol == Ascend {
		_, err = acl.Identify(p.runtimeOptions())
	}
	if err != nil {
		return &pd.Error{Op: "find mooncake", Code: pd.CodeNativeLibraryMissing, Text: "libtransfer_engine.so cannot be used", Err: err}
	}
	return nil
}

func (p *Provider) runtimeOptions() acl.Options {
	return acl.Options{Path: p.options.AscendLibrary, AllowGoRuntime: p.options.AllowGoRuntime}
}

// Stats counts what went wrong.
func (p *Provider) Stats() Stats {
	return Stats{
		LateBatches: p.late.Load(), OpenLate: p.openLate.Load(),
		LeakedBatches: p.leaked.Load(), HungEngines: p.hung.Load(),
	}
}

// load checks the environment and loads the libraries, once. hostname says
// which family of addresses the library is to use, if it is an address.
func (p *Provider) load(hostname string) (*te.API, *acl.API, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.te != nil {
		return p.te, p.acl, nil
	}
	const op = "load mooncake"
	env, err := environment(&p.options, hostname)
	if err != nil {
		return nil, nil, &pd.Error{Op: op, Code: pd.CodeInvalidConfig, Err: err}
	}
	var device *acl.API
	if p.options.Protocol == Ascend {
		device, err = acl.Load(p.runtimeOptions())
		if err != nil {
			return nil, nil, &pd.Error{Op: op, Code: pd.CodeNativeLibraryMissing, Err: err}
		}
	}
	engine, err := te.Load(p.libraryOptions(env))
	if err != nil {
		return nil, nil, &pd.Error{Op: op, Code: pd.CodeNativeLibraryMissing, Err: err}
	}
	info := engine.Info()
	p.options.Log.Info("transfer engine loaded", slog.String("path", info.Path), slog.String("found_by", info.Source),
		slog.String("sha256", info.SHA256), slog.String("protocol", string(p.options.Protocol)))
	p.te, p.acl = engine, device
	return engine, device, nil
}

// Open makes an engine that peers reach by Options.Hostname. It loads the
// library if nobody has.
func (p *Provider) Open(ctx context.Context, o transfer.Options) (transfer.Engine, error) {
	const op = "open mooncake engine"
	identity, err := o.First()
	if err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeInvalidConfig, Err: err}
	}
	native, device, err := p.load(o.Hostname)
	if err != nil {
		return nil, err
	}
	e := &engine{
		provider: p, api: native, identity: identity, hostname: o.Hostname, timeout: o.AttemptTimeout,
		portUsed: o.PortUsed, keeper: startKeeper(), Verdicts: transfer.NewVerdicts(),
		extents: transfer.Extents{}, memory: map[pd.ComponentID]transfer.Memory{},
		used: map[int]bool{}, sessions: map[sessionKey]*session{},
	}
	if err := e.begin(ctx, device); err != nil {
		e.keeper.end()
		return nil, &pd.Error{Op: op, Code: codeOr(err, pd.CodeInternal), Text: "hostname " + o.Hostname, Err: err}
	}
	return e, nil
}

// codeOr is the code of an error that has one.
func codeOr(err error, other pd.Code) pd.Code {
	var known *pd.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return other
}
