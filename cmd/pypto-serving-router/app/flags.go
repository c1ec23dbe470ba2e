package app

import (
	"fmt"
	"os"
	"strings"

	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/router/fleet"
)

const name = "pypto-serving-router"

// flags are the command line. Times are seconds, with fractions. A default in
// seconds is that of fleet.DefaultSettings; a test compares them.
type flags struct {
	program.Common

	Replicas string `name:"replicas" required:"" placeholder:"PATH" help:"Fleet file: replicas that run already, and hosts on which replicas may be launched, one per group of devices."`
	Host     string `name:"host" default:"0.0.0.0" help:"Address to listen on."`
	Port     int    `name:"port" default:"8000" help:"Port to listen on; 0 picks a free one."`

	SessionTTL    fleet.Seconds `name:"session-ttl" default:"600" help:"Seconds without a request before a conversation loses its pin."`
	AffinitySlack int           `name:"affinity-slack" default:"8" help:"Requests that a pinned replica may have more than the least loaded one."`
	MaxSessions   int           `name:"max-sessions" default:"100000" help:"Pins that are kept; the least recently used goes first."`
	SessionFields []string      `name:"session-field" sep:"none" placeholder:"NAME" help:"Top-level string field of the body that names a conversation where the client sends no id, such as prompt_cache_key or user; may be repeated. Its value is hashed."`
	SessionCookie string        `name:"session-cookie" placeholder:"NAME" help:"Cookie that holds a conversation's id where the client sends none otherwise."`

	HealthInterval fleet.Seconds `name:"health-interval" default:"5" help:"Seconds between the probes of a replica."`
	RequestTimeout fleet.Seconds `name:"request-timeout" default:"3600" help:"Bound of one whole exchange with a replica."`
	ConnectTimeout fleet.Seconds `name:"connect-timeout" default:"5" help:"Bound of a connection to a replica, TLS included, and of a probe."`
	ConnectRetries int           `name:"connect-retries" default:"1" help:"Other replicas that are tried when one cannot be connected to. A request of which a byte was sent is never repeated."`

	InitialReplicas *int          `name:"initial-replicas" placeholder:"N" help:"Replicas to have after the start, adopted ones included (default: 1 with hosts, else 0)."`
	MaxReplicas     *int          `name:"max-replicas" placeholder:"N" help:"Most replicas that are launched (default: all slots that the hosts' devices make)."`
	LaunchTimeout   fleet.Seconds `name:"launch-timeout" default:"600" help:"Seconds a launched replica may take to be ready before it is stopped."`
	DrainTimeout    fleet.Seconds `name:"drain-timeout" default:"300" help:"Seconds to wait for running requests before a replica, or the router, is stopped."`
	StopGrace       fleet.Seconds `name:"stop-grace" default:"30" help:"Seconds a stopped replica may take to be gone; KILL at half of it."`
	ReplaceAfter    fleet.Seconds `name:"replace-after" default:"30" help:"Seconds a launched replica that served may be down before it is replaced, at least two health intervals; 0 or off never replaces."`
	ReplaceBackoff  fleet.Seconds `name:"replace-backoff" default:"10" help:"Seconds to wait after a slot's first loss, doubled after each."`
	ReplaceStrikes  int           `name:"replace-strikes" default:"3" help:"Losses in a row that give a slot up."`
	StableAfter     fleet.Seconds `name:"stable-after" default:"600" help:"Seconds of service that make a slot's losses forgotten."`
	StateFile       string        `name:"state-file" placeholder:"PATH" help:"Where launched replicas are recorded, so that a restart finds them."`
	DiscardState    bool          `name:"discard-state" help:"Start although the state file cannot be understood; what it recorded may still hold devices."`

	AdminToken     *string `name:"admin-token" placeholder:"TOKEN" help:"Bearer token that /replicas asks for. It can be seen in the list of processes: prefer the environment variable PYPTO_ROUTER_ADMIN_TOKEN or --admin-token-file."`
	AdminTokenFile string  `name:"admin-token-file" placeholder:"PATH" help:"File whose first line is the admin token; read again on SIGHUP."`

	TLSCert        string `name:"tls-cert" placeholder:"PATH" help:"PEM file with the server's certificate and its chain; read again on SIGHUP."`
	TLSKey         string `name:"tls-key" placeholder:"PATH" help:"PEM file with the key of --tls-cert."`
	CAFile         string `name:"ca-file" placeholder:"PATH" help:"PEM file of the authorities that https replicas are believed from, unless one has a ca_file (default: those of the system); read again on SIGHUP."`
	MaxBody        int    `name:"max-body-bytes" default:"67108864" help:"Largest request body."`
	MaxConnections int    `name:"max-connections" default:"4096" help:"Most client connections."`

	Check     bool   `name:"check" help:"Read and check everything, print ok or every defect, and leave."`
	PrintPlan bool   `name:"print-plan" help:"Print slots, ports and the exact commands, and leave."`
	Pprof     string `name:"pprof" placeholder:"ADDRESS" help:"Serve Go profiles on this address; off by default."`
}

// settings are the flags as fleet checks them. The error is a token file that
// cannot be read.
func (f *flags) settings(env []string) (fleet.Settings, error) {
	s := fleet.Settings{
		Host: f.Host, Port: f.Port, SessionTTL: f.SessionTTL, AffinitySlack: f.AffinitySlack, MaxSessions: f.MaxSessions,
		Keys:           fleet.KeyOptions{Fields: f.SessionFields, Cookie: f.SessionCookie},
		HealthInterval: f.HealthInterval, RequestTimeout: f.RequestTimeout, ConnectTimeout: f.ConnectTimeout, ConnectRetries: f.ConnectRetries,
		InitialReplicas: f.InitialReplicas, MaxReplicas: f.MaxReplicas, LaunchTimeout: f.LaunchTimeout, DrainTimeout: f.DrainTimeout,
		ReplaceAfter: f.ReplaceAfter, ReplaceBackoff: f.ReplaceBackoff, ReplaceStrikes: f.ReplaceStrikes, StableAfter: f.StableAfter,
		StopGrace: f.StopGrace, StateFile: f.StateFile, DiscardState: f.DiscardState,
	}
	var err error
	s.AdminToken, err = f.tokens(env)
	return s, err
}

// tokens are the sources of the admin token that were given.
func (f *flags) tokens(env []string) (fleet.TokenSources, error) {
	t := fleet.TokenSources{Flag: f.AdminToken}
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == fleet.TokenVariable {
			t.Environment = &v
		}
	}
	if f.AdminTokenFile != "" {
		text, err := os.ReadFile(f.AdminTokenFile)
		if err != nil {
			return t, fmt.Errorf("--admin-token-file: %w", err)
		}
		line, _, _ := strings.Cut(string(text), "\n")
		line = strings.TrimSuffix(line, "\r")
		t.File = &line
	}
	return t, nil
}

// check finds what is wrong with the flags that only the program knows.
func (f *flags) check() []error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if (f.TLSCert == "") != (f.TLSKey == "") {
		bad("--tls-cert and --tls-key go together")
	}
	if f.MaxBody < 1 || f.MaxBody > 1<<30 {
		bad("--max-body-bytes %d: want 1..%d", f.MaxBody, 1<<30)
	}
	if f.MaxConnections < 1 || f.MaxConnections > 1<<20 {
		bad("--max-connections %d: want 1..%d", f.MaxConnections, 1<<20)
	}
	if f.DiscardState && f.StateFile == "" {
		bad("--discard-state is given without --state-file")
	}
	return all
}
