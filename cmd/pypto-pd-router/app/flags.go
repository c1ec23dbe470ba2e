package app

import (
	"errors"
	"fmt"
	"time"

	"github.com/hw-native-sys/pypto-pd/cmd/program"
)

const name = "pypto-pd-router"

// flags are the command line.
type flags struct {
	program.Common

	PDConfig string `name:"pd-config" required:"" help:"Path of pd.json, the same file that all nodes read."`
	Host     string `default:"127.0.0.1" help:"Address to listen on."`
	Port     int    `default:"8110" help:"Port to listen on; 0 picks a free one."`

	PollInterval time.Duration `name:"node-poll-interval" default:"1s" help:"How often each node is asked for its state."`
	PollTimeout  time.Duration `name:"node-poll-timeout" default:"2s" help:"How long a node may take to tell its state."`
	QueueSize    int           `name:"queue-size" default:"0" help:"Requests that may wait for a pair; 0 answers 503 at once."`
	QueueTimeout time.Duration `name:"queue-timeout" default:"10s" help:"How long a request may wait for a pair."`
	DrainTimeout time.Duration `name:"drain-timeout" help:"How long a stopping router waits for running requests (default: request_timeout of pd.json)."`

	TLSCert    string `name:"tls-cert" help:"PEM file with the server's certificate and its chain; read again on SIGHUP."`
	TLSKey     string `name:"tls-key" help:"PEM file with the key of --tls-cert."`
	APIKeyFile string `name:"api-key-file" help:"File with the API keys of clients, one per line; read again on SIGHUP. Without it every client is served."`

	ControlSecretFile string `name:"control-secret-file" help:"File with the secret that all nodes have; control calls then prove that they come from the deployment. Off by default."`

	MaxBody        int    `name:"max-body-bytes" aliases:"max-body" default:"33554432" help:"Largest request body."`
	MaxConnections int    `name:"max-connections" default:"4096" help:"Most client connections."`
	Pprof          string `name:"pprof" help:"Serve Go profiles on this address; off by default."`
}

// check reports every defect of the flags at once.
func (f flags) check() error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if f.Port < 0 || f.Port > 65535 {
		bad("--port %d: want 0..65535", f.Port)
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
		low   time.Duration
	}{
		{"node-poll-interval", f.PollInterval, 10 * time.Millisecond},
		{"node-poll-timeout", f.PollTimeout, 10 * time.Millisecond},
		{"queue-timeout", f.QueueTimeout, time.Millisecond},
		{"drain-timeout", f.DrainTimeout, 0},
	} {
		if d.value < d.low {
			bad("--%s %v: want at least %v", d.flag, d.value, d.low)
		}
	}
	if (f.TLSCert == "") != (f.TLSKey == "") {
		bad("--tls-cert and --tls-key go together")
	}
	if f.QueueSize < 0 || f.QueueSize > maxQueue {
		bad("--queue-size %d: want 0..%d", f.QueueSize, maxQueue)
	}
	if f.MaxBody < 1 || f.MaxBody > 1<<30 {
		bad("--max-body-bytes %d: want 1..%d", f.MaxBody, 1<<30)
	}
	if f.MaxConnections < 1 || f.MaxConnections > 1<<20 {
		bad("--max-connections %d: want 1..%d", f.MaxConnections, 1<<20)
	}
	return errors.Join(all...)
}

// maxQueue bounds the requests that wait, each of which holds its whole body.
const maxQueue = 4096
