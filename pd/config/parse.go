package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
)

// file is pd.json as it is written. Optional fields are pointers, so that an
// empty value is not mistaken for an absent one.
type file struct {
	Runtime       fileRuntime       `json:"runtime"`
	Observability fileObservability `json:"observability,omitempty"`
}

type fileRuntime struct {
	Prefill        []fileEntry `json:"prefill"`
	Decode         []fileEntry `json:"decode"`
	Provider       *string     `json:"provider,omitempty"`
	Policy         *string     `json:"policy,omitempty"`
	Capacity       *int        `json:"capacity,omitempty"`
	HandoffTimeout *float64    `json:"handoff_timeout,omitempty"`
	RequestTimeout *float64    `json:"request_timeout,omitempty"`
	RunID          *string     `json:"run_id,omitempty"`
}

type fileEntry struct {
	Host             string  `json:"host"`
	Port             int     `json:"port"`
	NodeID           *string `json:"node_id,omitempty"`
	ControlPort      *int    `json:"control_port,omitempty"`
	TransferHostname *string `json:"transfer_hostname,omitempty"`
}

type fileObservability struct {
	Enabled *bool   `json:"enabled,omitempty"`
	Root    *string `json:"root,omitempty"`
}

// maxDefects is how many defects one report names; nobody repairs more at once.
const maxDefects = 64

// Parse reads and checks the text of a pd.json. The error is a Defects.
func Parse(data []byte) (*Config, error) {
	p := parser{data: data}
	var f file
	if err := strictjson.Decode(data, &f, strictjson.Limits{Bytes: pd.MaxConfigBytes, Defects: maxDefects}); err != nil {
		for _, e := range strictjson.Defects(err) {
			p.defects = append(p.defects, explain(e))
			if e.Final {
				return nil, p.defects
			}
		}
	}
	c := &Config{
		Provider:       oneOf(&p, "runtime.provider", f.Runtime.Provider, Providers, DefaultProvider),
		Policy:         oneOf(&p, "runtime.policy", f.Runtime.Policy, Policies, DefaultPolicy),
		Capacity:       p.capacity(f.Runtime.Capacity),
		HandoffTimeout: p.seconds("runtime.handoff_timeout", f.Runtime.HandoffTimeout, DefaultHandoffTimeout),
		RequestTimeout: p.seconds("runtime.request_timeout", f.Runtime.RequestTimeout, DefaultRequestTimeout),
		Observability:  p.observability(f.Observability),
	}
	c.Prefill = p.entries(pd.Prefill, f.Runtime.Prefill)
	c.Decode = p.entries(pd.Decode, f.Runtime.Decode)
	p.collisions()
	if f.Runtime.RunID != nil {
		p.runID(*f.Runtime.RunID)
		c.run = pd.RunID(*f.Runtime.RunID)
	}
	if len(p.defects) > 0 {
		slices.SortStableFunc(p.defects, func(a, b *strictjson.Error) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		return nil, p.defects
	}
	if c.run == "" {
		c.run = c.deriveRun()
	}
	if c.RequestTimeout < c.HandoffTimeout {
		c.Warnings = append(c.Warnings, fmt.Sprintf("runtime.request_timeout %v is shorter than runtime.handoff_timeout %v: a request ends before one of its operations may", c.RequestTimeout, c.HandoffTimeout))
	}
	for _, n := range p.nodes {
		if a, err := netip.ParseAddr(n.Host); err == nil && a.IsUnspecified() {
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s.host %s is an address to listen on, not one that other machines can reach", n.path, n.Host))
		}
	}
	return c, nil
}

// parser collects defects.
type parser struct {
	data    []byte
	defects Defects
	nodes   []placed
}

// placed is an entry and where it stands.
type placed struct {
	Entry
	path string
	// explicit: the identity was given as node_id.
	explicit bool
}

// report notes a defect, unless the reader has already said what is wrong there.
func (p *parser) report(path, format string, args ...any) {
	if slices.ContainsFunc(p.defects, func(e *strictjson.Error) bool { return covers(e.Path, path) }) {
		return
	}
	e := &strictjson.Error{Path: path, Text: fmt.Sprintf(format, args...)}
	e.Line, e.Column, _ = strictjson.Locate(p.data, path)
	p.defects = append(p.defects, e)
}

func oneOf(p *parser, path string, value *string, allowed []string, def string) string {
	if value == nil {
		return def
	}
	if !slices.Contains(allowed, *value) {
		p.report(path, "%.64q is not supported; want %s", *value, strings.Join(allowed, " or "))
	}
	return *value
}

func (p *parser) capacity(value *int) int {
	if value == nil {
		return DefaultCapacity
	}
	if *value < 1 || *value > pd.MaxCapacity {
		p.report("runtime.capacity", "%d is out of range; want 1..%d requests", *value, pd.MaxCapacity)
	}
	return *value
}

func (p *parser) seconds(path string, value *float64, def time.Duration) time.Duration {
	if value == nil {
		return def
	}
	if *value < pd.MinTimeout.Seconds() || *value > pd.MaxTimeout.Seconds() {
		p.report(path, "%v seconds is out of range; want %v..%v seconds", *value, pd.MinTimeout.Seconds(), pd.MaxTimeout.Seconds())
		return def
	}
	return time.Duration(*value * float64(time.Second))
}

func (p *parser) observability(f fileObservability) Observability {
	o := Observability{Enabled: f.Enabled == nil || *f.Enabled, Root: defaultRoot}
	if f.Root == nil || *f.Root == "" {
		return o
	}
	switch root := *f.Root; {
	case len(root) > maxPathBytes:
		p.report("observability.root", "the path has %d bytes, the limit is %d", len(root), maxPathBytes)
	case strings.ContainsRune(root, 0):
		p.report("observability.root", "the path holds a zero byte")
	default:
		o.Root = filepath.Clean(root)
	}
	return o
}

const (
	// maxPathBytes is PATH_MAX and maxFolderBytes NAME_MAX of Linux.
	maxPathBytes   = 4096
	maxFolderBytes = 255
)

func (p *parser) runID(id string) {
	const path = "runtime.run_id"
	switch {
	case len(id) > maxFolderBytes:
		p.report(path, "has %d bytes; it names a folder, which holds %d", len(id), maxFolderBytes)
	case id == "." || id == ".." || strings.ContainsRune(id, '/'):
		p.report(path, "%.64q names a folder: it must not be . or .. and must not contain /", id)
	default:
		if err := pd.CheckID("it", id); err != nil {
			p.report(path, "%v", err)
		}
	}
}

func (p *parser) entries(role pd.Role, list []fileEntry) []Entry {
	path := "runtime." + role.String()
	if len(list) == 0 || len(list) > pd.MaxNodes {
		p.report(path, "has %d entries; want 1..%d", len(list), pd.MaxNodes)
		return nil
	}
	out := make([]Entry, len(list))
	for i, f := range list {
		n := p.entry(fmt.Sprintf("%s[%d]", path, i), f)
		n.Role = role
		p.nodes = append(p.nodes, n)
		out[i] = n.Entry
	}
	return out
}

func (p *parser) entry(path string, f fileEntry) placed {
	n := placed{path: path, explicit: f.NodeID != nil}
	n.Host, n.Port, n.TransferHostname = f.Host, f.Port, f.Host
	p.host(path+".host", f.Host)
	p.port(path+".port", f.Port)
	n.ControlPort = f.Port + ControlPortOffset
	switch {
	case f.ControlPort != nil:
		n.ControlPort = *f.ControlPort
		p.port(path+".control_port", n.ControlPort)
		if n.ControlPort == n.Port {
			p.report(path+".control_port", "is the same as port")
		}
	case f.Port <= maxPort && n.ControlPort > maxPort:
		p.report(path+".port", "%d + %d is no port; set control_port", f.Port, ControlPortOffset)
	}
	if f.TransferHostname != nil {
		n.TransferHostname = *f.TransferHostname
		p.host(path+".transfer_hostname", n.TransferHostname)
	}
	n.NodeID = pd.NodeID(n.HTTPAddress())
	if f.NodeID != nil {
		n.NodeID = pd.NodeID(*f.NodeID)
		if err := pd.CheckID("it", *f.NodeID); err != nil {
			p.report(path+".node_id", "%v", err)
		}
	}
	return n
}

const maxPort = 65535

func (p *parser) port(path string, port int) {
	if port < 1 || port > maxPort {
		p.report(path, "%d is no port; want 1..%d", port, maxPort)
	}
}

func (p *parser) host(path, host string) {
	_, noAddress := netip.ParseAddr(host)
	switch {
	case host == "" || len(host) > pd.MaxIDBytes:
		p.report(path, "has %d bytes; want 1..%d", len(host), pd.MaxIDBytes)
	case strings.Contains(host, "://"):
		p.report(path, "%.64q is a URL; give the name or address alone", host)
	case strings.ContainsAny(host, "[]"):
		p.report(path, "%.64q: write an IPv6 address without brackets", host)
	case noAddress != nil && strings.ContainsRune(host, ':'):
		p.report(path, "%.64q is no address; the port has a field of its own", host)
	case strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '/' || r == '@' || r == '?' || r == '#' }):
		p.report(path, "%.64q holds a character that no host name has", host)
	}
}

// collisions refuses entries that cannot be told apart or cannot all listen.
func (p *parser) collisions() {
	for i, b := range p.nodes {
		for _, a := range p.nodes[:i] {
			p.collide(a, b)
		}
	}
}

// collide reports on b, the later of the two.
func (p *parser) collide(a, b placed) {
	if key(a.Host, a.Port) == key(b.Host, b.Port) {
		if a.Role == b.Role {
			p.report(b.path, "duplicate endpoints: %s is %s too", b.HTTPAddress(), a.path)
		} else {
			p.report(b.path, "%s is %s too; one process cannot have both roles", b.HTTPAddress(), a.path)
		}
		return
	}
	switch {
	case a.NodeID == b.NodeID && b.explicit:
		p.report(b.path+".node_id", "%.64q is the identity of %s too", string(b.NodeID), a.path)
	case a.NodeID == b.NodeID || string(a.NodeID) == b.HTTPAddress():
		p.report(a.path+".node_id", "%.64q is the address of %s", string(a.NodeID), b.path)
	case string(b.NodeID) == a.HTTPAddress():
		p.report(b.path+".node_id", "%.64q is the address of %s", string(b.NodeID), a.path)
	}
	switch control := key(b.Host, b.ControlPort); control {
	case key(a.Host, a.Port):
		p.report(b.controlField(), "the control address %s is the HTTP address of %s; set control_port", b.ControlAddress(), a.path)
	case key(a.Host, a.ControlPort):
		p.report(b.controlField(), "the control address %s is that of %s too; set control_port", b.ControlAddress(), a.path)
	}
	if key(a.Host, a.ControlPort) == key(b.Host, b.Port) {
		p.report(b.path+".port", "the HTTP address %s is the control address of %s", b.HTTPAddress(), a.path)
	}
}

// controlField is the field that decides the control port of the entry.
func (n placed) controlField() string {
	if n.ControlPort == n.Port+ControlPortOffset {
		return n.path + ".port"
	}
	return n.path + ".control_port"
}

// key makes two spellings of one address equal.
func key(host string, port int) string {
	host = strings.ToLower(host)
	if a, err := netip.ParseAddr(host); err == nil {
		host = a.Unmap().String()
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}
