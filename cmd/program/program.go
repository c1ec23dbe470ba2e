// Package program is the frame that every command of this project shares:
// flags to exit codes, logging, version, signals, readiness and profiling.
//
// Main starts one goroutine that listens for signals and lives as long as the
// process; ServePprof starts one that ends with its context.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// Exit codes of every program.
const (
	Done   = 0
	Failed = 1
	// Usage: bad flags or configuration; nothing was started.
	Usage = 2
)

// Common are the flags of every program; embed it in a program's flags.
type Common struct {
	LogLevel  string           `name:"log-level" enum:"debug,info,warn,error" default:"info" help:"Least severe level that is logged: ${enum}."`
	LogFormat string           `name:"log-format" enum:"text,json" default:"text" help:"Format of the log on stderr: ${enum}."`
	Version   kong.VersionFlag `name:"version" help:"Print the version and exit."`
}

// Version is the module version and revision of this build.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			version += " " + s.Value
		}
	}
	return strings.TrimSpace(version + " " + info.GoVersion)
}

// exit carries kong's wish to end the program after --help or --version.
type exit int

// Parse reads arguments into flags, which is a pointer to a struct of kong tags.
// It returns false and the exit code where the program should not go on: after
// --help or --version, or after an error, which it prints in one line.
func Parse(name, description string, flags any, args []string, stdout, stderr io.Writer) (code int, ok bool) {
	_, code, ok = ParseCommand(name, description, flags, args, stdout, stderr)
	return code, ok
}

// ParseCommand is Parse for a program with commands; it also gives the command
// that was chosen, as kong words it ("demo", "validate <file>").
func ParseCommand(name, description string, flags any, args []string, stdout, stderr io.Writer) (command string, code int, ok bool) {
	parser, err := kong.New(flags, kong.Name(name), kong.Description(description), kong.Vars{"version": name + " " + Version()},
		kong.Writers(stdout, stderr), kong.Exit(func(c int) { panic(exit(c)) }))
	if err != nil {
		panic(err) // the flag struct itself is wrong; every test of a program would show it
	}
	defer func() {
		if p := recover(); p != nil {
			c, is := p.(exit)
			if !is {
				panic(p)
			}
			command, code, ok = "", int(c), false
		}
	}()
	if err := repeated(parser, args); err != nil {
		return "", Complain(name, stderr, Usage, err), false
	}
	k, err := parser.Parse(args)
	if err != nil {
		return "", Complain(name, stderr, Usage, err), false
	}
	return k.Command(), Done, true
}

// repeated refuses a flag that is given twice: kong would silently take the
// last one.
func repeated(parser *kong.Kong, args []string) error {
	many := map[string]bool{}
	for _, f := range parser.Model.Flags {
		many["--"+f.Name] = f.IsCumulative()
	}
	seen := map[string]bool{}
	for _, a := range args {
		if a == "--" {
			break
		}
		name, _, _ := strings.Cut(a, "=")
		if !strings.HasPrefix(name, "--") {
			continue
		}
		if seen[name] && !many[name] {
			return fmt.Errorf("%s is given twice", name)
		}
		seen[name] = true
	}
	return nil
}

// Complain prints one line and gives the code back.
func Complain(name string, stderr io.Writer, code int, err error) int {
	fmt.Fprintf(stderr, "%s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", "; "))
	return code
}

// Logger makes the program's logger.
func (c Common) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // an enum of slog's own names
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// Main runs a program with signals: the first SIGTERM or SIGINT ends its
// context, the second ends the process with code 1.
func Main(run func(ctx context.Context, args, env []string, stdout, stderr io.Writer) int) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		s := <-signals
		cancel(fmt.Errorf("signal %v", s))
		<-signals
		fmt.Fprintln(os.Stderr, "second signal: leaving at once")
		os.Exit(Failed)
	}()
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// Env looks a variable up in an environment list; the last one counts.
func Env(env []string, name string) string {
	value := ""
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			value = v
		}
	}
	return value
}

// Notify tells the service manager a state such as READY=1 or STOPPING=1
// (sd_notify protocol); without NOTIFY_SOCKET it does nothing.
func Notify(env []string, state string) error {
	path := Env(env, "NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	if strings.HasPrefix(path, "@") {
		path = "\x00" + path[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return nil
}

// ServePprof serves Go's profiles on an address until the context ends; an
// empty address serves nothing. It returns once the address is bound.
func ServePprof(ctx context.Context, address string, log *slog.Logger) error {
	if address == "" {
		return nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("--pprof: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux}
	context.AfterFunc(ctx, func() { server.Close() })
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Warn("profiling ended", "err", err)
		}
	}()
	return nil
}
