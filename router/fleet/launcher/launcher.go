package launcher

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/hw-native-sys/pypto-pd/router/fleet"
)

const (
	// DefaultCommandLimit bounds a launch, a stop and a look into a log.
	DefaultCommandLimit = 120 * time.Second
	// stopMargin is what a stop may take beyond the grace: to connect, and to look
	// at all processes of a busy machine.
	stopMargin = 20 * time.Second
	// tailMax is how much of a failed command's output is told, in bytes.
	tailMax = 800
)

// Options say how commands are run.
type Options struct {
	// Env is the environment that commands and replicas inherit, without the
	// admin token; nil is the process's own.
	Env []string
	// CommandLimit is how long one command may take before it is killed with all
	// that it has started; 0 is DefaultCommandLimit. A stop gets at least the grace
	// and a margin.
	CommandLimit time.Duration
	Log          *slog.Logger
}

// Launcher implements fleet.Launcher.
type Launcher struct {
	o      Options
	reaper reaper
}

var _ fleet.Launcher = (*Launcher)(nil)

// New makes a launcher. Close it; the replicas that it has launched stay.
func New(o Options) *Launcher {
	if o.Env == nil {
		o.Env = os.Environ()
	}
	if o.CommandLimit == 0 {
		o.CommandLimit = DefaultCommandLimit
	}
	l := &Launcher{o: o}
	l.reaper.init(o.Log)
	return l
}

// Close ends what the launcher does, and waits for it: no exit is reported
// afterwards. Launched processes stay as they are.
func (l *Launcher) Close() { l.reaper.close() }

// Launch implements fleet.Launcher.
func (l *Launcher) Launch(ctx context.Context, x fleet.Launch, exited func(err error)) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("launch %s: %w", x.Slot.Name, context.Cause(ctx))
	}
	if x.Host.Local() {
		if err := l.start(x, exited); err != nil {
			return fmt.Errorf("launch %s: %w", x.Slot.Name, err)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.o.CommandLimit)
	defer cancel()
	if f := l.run(ctx, x.ReachCommand(), nil); f != nil {
		return fmt.Errorf("launch %s: host %s cannot be used: %w", x.Slot.Name, x.Host.Name, f)
	}
	switch f := l.run(ctx, x.LaunchCommand(), nil); {
	case f == nil:
		return nil
	case f.begun && (f.status < 0 || x.Uncertain(f.status)):
		return fmt.Errorf("launch %s on host %s: %w; %w", x.Slot.Name, x.Host.Name, f, fleet.ErrLaunchUncertain)
	default:
		return fmt.Errorf("launch %s on host %s: %w", x.Slot.Name, x.Host.Name, f)
	}
}

// Stop implements fleet.Launcher.
func (l *Launcher) Stop(ctx context.Context, x fleet.Launch) error {
	l.reaper.expect(x.Slot.Name, x.Instance)
	ctx, cancel := context.WithTimeout(ctx, max(l.o.CommandLimit, x.Grace+stopMargin))
	defer cancel()
	if f := l.run(ctx, x.StopCommand(), nil); f != nil {
		return fmt.Errorf("stop %s on host %s: %w", x.Slot.Name, x.Host.Name, f)
	}
	return nil
}

// Log implements fleet.Launcher.
func (l *Launcher) Log(ctx context.Context, x fleet.Launch, limit int) ([]byte, error) {
	if x.Host.Local() {
		b, err := readTail(x.LogPath(), limit)
		if err != nil {
			return nil, fmt.Errorf("log of %s: %w", x.Slot.Name, err)
		}
		return b, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.o.CommandLimit)
	defer cancel()
	out := tail{limit: limit}
	if f := l.run(ctx, x.LogCommand(limit), &out); f != nil {
		return nil, fmt.Errorf("log of %s on host %s: %w", x.Slot.Name, x.Host.Name, f)
	}
	return out.bytes(), nil
}

// readTail reads the last bytes of a file that may grow meanwhile.
func readTail(path string, limit int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-int64(limit)), int64(limit)))
}
