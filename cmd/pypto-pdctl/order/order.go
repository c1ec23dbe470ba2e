// Package order gives operators' orders to running nodes over their admin
// sockets, and shows what nodes say of themselves. It starts no goroutine.
package order

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/control"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
)

// Config is the flag of every order: the file that names the nodes.
type Config struct {
	PDConfig string        `name:"pd-config" required:"" help:"Path of pd.json, as the nodes read it; run it in their working directory unless observability.root is absolute."`
	Timeout  time.Duration `default:"330s" help:"How long to wait for the answer."`
}

// receipt is what a node answers; a cancelled request answers with its status.
type receipt struct {
	Text     string `json:"text"`
	State    string `json:"state"`
	Why      string `json:"why"`
	Fact     string `json:"stop_fact"`
	Released int    `json:"released_pages"`
	Held     int    `json:"held_pages"`
	Gates    []struct {
		Handoff string  `json:"handoff"`
		Request string  `json:"request"`
		Peer    pd.Peer `json:"peer"`
		Pages   int     `json:"pages"`
		Why     string  `json:"why"`
	} `json:"gates"`
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// Give sends one order to one node and prints its receipt.
func Give(ctx context.Context, c Config, node, order string, values url.Values, stdout io.Writer) error {
	file, err := config.Load(c.PDConfig)
	if err != nil {
		return err
	}
	e, err := entry(file, node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	r, err := post(ctx, file, e, order, values)
	if err != nil {
		return err
	}
	r.print(e, stdout)
	return nil
}

// Everywhere sends an order to every node of this machine that runs, and needs
// at least one that knows what it is about.
func Everywhere(ctx context.Context, c Config, order string, values url.Values, stdout io.Writer) error {
	file, err := config.Load(c.PDConfig)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	answered := 0
	var all []error
	for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
		for _, e := range file.Entries(role) {
			r, err := post(ctx, file, e, order, values)
			if err != nil {
				all = append(all, err)
				continue
			}
			answered++
			r.print(e, stdout)
		}
	}
	if answered == 0 {
		return errors.Join(all...)
	}
	return nil
}

// entry finds a node by node_id or host:port in either role.
func entry(c *config.Config, node string) (config.Entry, error) {
	for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
		for _, e := range c.Entries(role) {
			if string(e.NodeID) == node || e.HTTPAddress() == node {
				return e, nil
			}
		}
	}
	return config.Entry{}, fmt.Errorf("pd.json has no node %q", node)
}

// post sends an order over the node's admin socket.
func post(ctx context.Context, c *config.Config, e config.Entry, order string, values url.Values) (*receipt, error) {
	f := journal.FilesOf(c.Observability.Root, c.Run(), journal.RoleOf(e.Role), string(e.NodeID))
	path, done, err := program.UnixSocket(f.State, f.Admin)
	if err != nil {
		return nil, fmt.Errorf("%s node %s: %w; is it a node of this machine and run?", e.Role, e.NodeID, err)
	}
	defer done()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://node/"+order, strings.NewReader(values.Encode()))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := client.Do(q)
	if err != nil {
		return nil, fmt.Errorf("%s node %s does not answer on %s: %w", e.Role, e.NodeID, filepath.Join(f.State, f.Admin), errors.Unwrap(err))
	}
	defer answer.Body.Close()
	var r receipt
	if err := json.NewDecoder(io.LimitReader(answer.Body, pd.MaxControlBytes)).Decode(&r); err != nil {
		return nil, fmt.Errorf("%s node %s: read the answer: %w", e.Role, e.NodeID, err)
	}
	if r.Error != nil {
		return nil, fmt.Errorf("%s node %s refuses: %s (%s)", e.Role, e.NodeID, r.Error.Message, r.Error.Code)
	}
	return &r, nil
}

func (r *receipt) print(e config.Entry, stdout io.Writer) {
	text := r.Text
	if text == "" {
		text = "the request is " + r.State
		if r.Why != "" {
			text += ": " + r.Why
		}
		if r.Fact != "" {
			text += "; prefill's writes: " + r.Fact
		}
	}
	fmt.Fprintf(stdout, "%s node %s: %s (%d pages released, %d held)\n", e.Role, e.NodeID, text, r.Released, r.Held)
	for _, g := range r.Gates {
		if g.Handoff == "" {
			fmt.Fprintf(stdout, "  gated: %s\n", g.Why)
			continue
		}
		fmt.Fprintf(stdout, "  gated by request %s, handoff %s with %s: %d pages: %s\n", g.Request, g.Handoff, g.Peer, g.Pages, g.Why)
	}
}

// Status prints what every node of a pd.json says of itself, and what a router
// says if one is named; secretFile is "" where nodes have no control secret. It is an error if no node answers, or that router does
// not.
func Status(ctx context.Context, path, secretFile, router string, stdout io.Writer) error {
	c, err := config.Load(path)
	if err != nil {
		return err
	}
	var signer *control.Signer
	if secretFile != "" {
		secret, err := control.LoadSecret(secretFile)
		if err != nil {
			return err
		}
		signer = control.NewSigner(secret, pd.NewBootID())
	}
	client := control.NewClient(control.ClientConfig{DialTimeout: 2 * time.Second, Signer: signer})
	defer client.Close()
	answered := 0
	fmt.Fprintf(stdout, "%-8s %-28s %-18s %6s %6s %5s  %s\n", "role", "node", "state", "active", "leases", "quar.", "boot, reason")
	for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
		for _, e := range c.Entries(role) {
			asking, cancel := context.WithTimeout(ctx, 5*time.Second)
			d, err := client.Node(asking, control.Target{Node: e.NodeID, Address: e.ControlAddress()})
			cancel()
			if err != nil {
				fmt.Fprintf(stdout, "%-8s %-28s %-18s %6s %6s %5s  %v\n", role, e.NodeID, "UNREACHABLE", "-", "-", "-", err)
				continue
			}
			answered++
			fmt.Fprintf(stdout, "%-8s %-28s %-18s %3d/%-2d %6d %5d  %s %s\n", role, e.NodeID, d.Health, d.Capacity.Active, d.Capacity.Limit,
				d.Capacity.Reservations, d.Capacity.Quarantined, d.Boot, d.Reason)
		}
	}
	if answered == 0 {
		return errors.New("no node answers")
	}
	if router == "" {
		return nil
	}
	return routerStatus(ctx, router, stdout)
}
