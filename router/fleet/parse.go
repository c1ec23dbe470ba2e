package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
)

// file is the fleet file as it is written. Everything is optional for the
// reader, so that the words about a missing field are this package's.
type file struct {
	Replicas []fileReplica `json:"replicas,omitempty"`
	Hosts    []fileHost    `json:"hosts,omitempty"`
}

type fileReplica struct {
	Name   *string `json:"name,omitempty"`
	Scheme *string `json:"scheme,omitempty"`
	Host   *string `json:"host,omitempty"`
	Port   *int    `json:"port,omitempty"`
	CAFile *string `json:"ca_file,omitempty"`
}

type fileHost struct {
	Name              *string           `json:"name,omitempty"`
	SSH               *string           `json:"ssh,omitempty"`
	Address           *string           `json:"address,omitempty"`
	IdentityFile      *string           `json:"identity_file,omitempty"`
	Devices           []int             `json:"devices,omitempty"`
	DevicesPerReplica *int              `json:"devices_per_replica,omitempty"`
	PortBase          *int              `json:"port_base,omitempty"`
	Model             *string           `json:"model,omitempty"`
	ServedModelName   *string           `json:"served_model_name,omitempty"`
	ServeArgs         []string          `json:"serve_args,omitempty"`
	Env               map[string]string `json:"env,omitempty"`
	LaunchWrapper     []string          `json:"launch_wrapper,omitempty"`
	StopCommand       []string          `json:"stop_command,omitempty"`
	Program           []string          `json:"program,omitempty"`
	Python            *string           `json:"python,omitempty"`
	Workdir           *string           `json:"workdir,omitempty"`
	LogDir            *string           `json:"log_dir,omitempty"`
}

const (
	// maxDefects is how many defects one report names; nobody repairs more at once.
	maxDefects = 64
	// maxSlots bounds the declared pool and the list of replicas: the choice of a
	// replica looks at each of them.
	maxSlots = 1024
)

// Parse reads and checks the text of a fleet file. The error is a Defects that
// holds every defect.
func Parse(data []byte) (*Config, error) {
	p := parser{data: data, unknown: map[string]*unknownFields{}}
	var f file
	err := strictjson.Decode(data, &f, strictjson.Limits{Bytes: pd.MaxConfigBytes, Defects: maxDefects})
	for _, e := range strictjson.Defects(err) {
		if e.Final {
			p.defects = append(p.defects, reworded(e, "the fleet file is not valid JSON"))
			return nil, p.sorted()
		}
		p.schema(e)
	}
	p.unknowns()
	if len(f.Replicas) == 0 && len(f.Hosts) == 0 {
		p.report("", "the fleet file has neither a replica nor a launchable host")
	}
	c := &Config{}
	for i := range f.Replicas {
		c.Replicas = append(c.Replicas, p.replica(i, &f.Replicas[i]))
	}
	for i := range f.Hosts {
		c.Hosts = append(c.Hosts, p.host(i, &f.Hosts[i]))
	}
	p.names(c)
	if len(p.defects) == 0 {
		c.Slots = deriveSlots(c.Hosts)
		p.collisions(c)
	}
	if len(p.defects) > 0 {
		return nil, p.sorted()
	}
	return c, nil
}

// parser collects defects.
type parser struct {
	data    []byte
	defects Defects
	// unknown are the unknown fields, by the path of their object.
	unknown map[string]*unknownFields
}

type unknownFields struct {
	first *strictjson.Error
	names []string
}

func (p *parser) sorted() Defects {
	slices.SortStableFunc(p.defects, func(a, b *strictjson.Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return p.defects
}

// covers says that a defect at path already speaks of what is at other.
func covers(path, other string) bool {
	rest, ok := strings.CutPrefix(other, path)
	return ok && (rest == "" || path == "" || rest[0] == '.' || rest[0] == '[')
}

// broken says that something at path, in it or around it is already reported.
func (p *parser) broken(path string) bool {
	return slices.ContainsFunc(p.defects, func(e *strictjson.Error) bool { return covers(e.Path, path) || covers(path, e.Path) })
}

// report notes a defect, unless one is already known there.
func (p *parser) report(path, format string, args ...any) {
	if p.broken(path) {
		return
	}
	p.add(path, format, args...)
}

func (p *parser) add(path, format string, args ...any) {
	e := &strictjson.Error{Path: path, Text: fmt.Sprintf(format, args...)}
	e.Line, e.Column, _ = strictjson.Locate(p.data, path)
	p.defects = append(p.defects, e)
}

// missing notes a field that is not there; its place is that of its object.
func (p *parser) missing(parent, field, format string, args ...any) {
	if p.broken(parent + "." + field) {
		return
	}
	p.add(parent, format, args...)
	p.defects[len(p.defects)-1].Path = parent + "." + field
}

func reworded(e *strictjson.Error, text string) *strictjson.Error {
	out := *e
	out.Text = text + ": " + e.Text
	return &out
}

// elementPath splits "hosts[3].env.X" into its list, index and field, which is ""
// for the element itself.
var elementPath = regexp.MustCompile(`^(replicas|hosts)\[(\d+)\](?:\.([A-Za-z_]+))?`)

// schema words a defect that the reader found as one of a fleet file.
func (p *parser) schema(e *strictjson.Error) {
	if strings.HasPrefix(e.Text, strictjson.UnknownName) {
		parent, name := "", e.Path
		if m := elementPath.FindString(e.Path); m != "" {
			parent = m[:strings.IndexByte(m, ']')+1]
			name = strings.TrimPrefix(e.Path[len(parent):], ".")
		}
		if p.unknown[parent] == nil {
			p.unknown[parent] = &unknownFields{first: e}
		}
		p.unknown[parent].names = append(p.unknown[parent].names, name)
		return
	}
	m := elementPath.FindStringSubmatch(e.Path)
	text := ""
	switch {
	case e.Path == "":
		text = "the fleet file must be a JSON object"
	case m == nil:
		text = "'replicas' and 'hosts' must be lists"
	case m[1] == "replicas":
		text = replicaText(m[2], m[3])
	case m[3] == "devices" && strings.HasSuffix(e.Path, "devices"):
		text = fmt.Sprintf("host %s needs a non-empty 'devices' list", m[2])
	default:
		text = hostText(m[2], m[3])
	}
	p.defects = append(p.defects, reworded(e, text))
}

func replicaText(i, field string) string {
	switch field {
	case "":
		return fmt.Sprintf("replica %s needs 'host' and 'port'", i)
	case "port", "scheme":
		return fmt.Sprintf("replica %s has an invalid %s", i, field)
	}
	return fmt.Sprintf("replica %s '%s' must be a non-empty string", i, field)
}

func hostText(i, field string) string {
	switch field {
	case "":
		return fmt.Sprintf("host %s must be a JSON object", i)
	case "devices":
		return fmt.Sprintf("host %s has an invalid device id", i)
	case "devices_per_replica":
		return fmt.Sprintf("host %s 'devices_per_replica' must be a positive integer", i)
	case "port_base":
		return fmt.Sprintf("host %s 'port_base' must be an integer", i)
	case "env":
		return fmt.Sprintf("host %s 'env' must map strings to strings", i)
	case "serve_args", "launch_wrapper", "stop_command", "program":
		return fmt.Sprintf("host %s '%s' must be a list of strings", i, field)
	}
	return fmt.Sprintf("host %s '%s' must be a non-empty string", i, field)
}

// unknowns reports the unknown fields of each object together.
func (p *parser) unknowns() {
	for parent, u := range p.unknown {
		what := "unknown top-level keys: "
		if m := elementPath.FindStringSubmatch(parent); m != nil {
			what = strings.TrimSuffix(m[1], "s") + " " + m[2] + " has unknown fields: "
		}
		u.first.Text = what + strings.Join(slices.Sorted(slices.Values(u.names)), ", ")
		p.defects = append(p.defects, u.first)
	}
}

// hostName is what reaches a URL path and a file path.
var hostName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// envName is what both env(1) and a shell take for a variable.
var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func control(r rune) bool { return r < ' ' || r == 0x7f }

func (p *parser) replica(i int, f *fileReplica) Static {
	at := fmt.Sprintf("replicas[%d]", i)
	if f.Host == nil || f.Port == nil {
		field := "host"
		if f.Host != nil {
			field = "port"
		}
		if !p.broken(at + ".host") {
			p.missing(at, field, "replica %d needs 'host' and 'port'", i)
		}
		return Static{}
	}
	s := Static{Scheme: DefaultScheme, Host: *f.Host, Port: *f.Port}
	switch {
	case s.Host == "":
		p.report(at+".host", "replica %d 'host' must be a non-empty string", i)
	case strings.ContainsAny(s.Host, "/[]@?# ") || strings.ContainsFunc(s.Host, control):
		p.report(at+".host", "replica %d has an invalid host %.64q: give the name or address alone", i, s.Host)
	}
	if s.Port < 1 || s.Port > 65535 {
		p.report(at+".port", "replica %d has an invalid port %d; want 1..65535", i, s.Port)
	}
	if f.Scheme != nil {
		s.Scheme = *f.Scheme
	}
	if s.Scheme != "http" && s.Scheme != "https" {
		p.report(at+".scheme", "replica %d has an invalid scheme %.64q; want http or https", i, s.Scheme)
	}
	if f.CAFile != nil {
		s.CAFile = *f.CAFile
		switch {
		case s.CAFile == "" || strings.ContainsFunc(s.CAFile, control):
			p.report(at+".ca_file", "replica %d 'ca_file' must be a non-empty string without control characters", i)
		case s.Scheme != "https":
			p.report(at+".ca_file", "replica %d has a 'ca_file' and its scheme is %s; want https", i, s.Scheme)
		}
	}
	s.Name = hostPort(s.Host, s.Port)
	if f.Name != nil {
		s.Name = *f.Name
		switch {
		case s.Name == "":
			p.report(at+".name", "replica %d 'name' must be a non-empty string", i)
		case strings.ContainsRune(s.Name, '/') || strings.ContainsFunc(s.Name, control):
			p.report(at+".name", "replica %d has an invalid name %.64q: it must hold no slash and no control character", i, s.Name)
		}
	}
	return s
}

func (p *parser) host(i int, f *fileHost) Host {
	at := fmt.Sprintf("hosts[%d]", i)
	h := Host{
		Name: fmt.Sprintf("host%d", i), Devices: f.Devices, DevicesPerReplica: 1, PortBase: DefaultPortBase,
		ServeArgs: f.ServeArgs, Env: f.Env, LaunchWrapper: f.LaunchWrapper, StopCommand: f.StopCommand, Program: f.Program, LogDir: DefaultLogDir,
	}
	for _, s := range []struct {
		name string
		from *string
		to   *string
	}{
		{"name", f.Name, &h.Name},
		{"ssh", f.SSH, &h.SSH},
		{"address", f.Address, &h.Address},
		{"identity_file", f.IdentityFile, &h.IdentityFile},
		{"served_model_name", f.ServedModelName, &h.ServedModelName},
		{"python", f.Python, &h.Python},
		{"workdir", f.Workdir, &h.Workdir},
		{"log_dir", f.LogDir, &h.LogDir},
	} {
		if s.from == nil {
			continue
		}
		*s.to = *s.from
		if *s.from == "" {
			p.report(at+"."+s.name, "host %d '%s' must be a non-empty string", i, s.name)
		} else if strings.ContainsFunc(*s.from, control) {
			p.report(at+"."+s.name, "host %d '%s' holds a control character", i, s.name)
		}
	}
	if !hostName.MatchString(h.Name) {
		p.report(at+".name", "host %d has an invalid name %.64q: want letters, digits, dot, underscore and hyphen", i, h.Name)
	}
	if f.Model != nil {
		h.Model = *f.Model
	}
	if h.Model == "" {
		p.missing(at, "model", "host %d must declare a model path", i)
	}
	p.reach(i, at, f, &h)
	p.devices(i, at, f, &h)
	p.commands(i, at, f, &h)
	return h
}

// reach decides where the host's replicas are dialled.
func (p *parser) reach(i int, at string, f *fileHost, h *Host) {
	switch {
	case strings.HasPrefix(h.SSH, "-") || strings.ContainsRune(h.SSH, ' '):
		p.report(at+".ssh", "host %d has an invalid ssh destination %.64q: want user@host", i, h.SSH)
	case h.Local() && f.IdentityFile != nil:
		p.report(at+".identity_file", "host %d has an 'identity_file' and no 'ssh'", i)
	}
	if f.Address != nil {
		if strings.ContainsAny(h.Address, "/[]@ ") {
			p.report(at+".address", "host %d has an invalid address %.64q: give the name or address alone", i, h.Address)
		}
		return
	}
	if h.Local() {
		h.Address = localAddress
		return
	}
	h.Address = h.SSH[strings.LastIndexByte(h.SSH, '@')+1:]
	if h.Address == "" || strings.ContainsAny(h.Address, "/:[]") {
		p.report(at+".ssh", "host %d cannot be dialled at %.64q; set 'address'", i, h.Address)
	}
}

func (p *parser) devices(i int, at string, f *fileHost, h *Host) {
	path := at + ".devices"
	if f.DevicesPerReplica != nil {
		h.DevicesPerReplica = *f.DevicesPerReplica
	}
	if h.DevicesPerReplica < 1 {
		p.report(path+"_per_replica", "host %d 'devices_per_replica' must be a positive integer, not %d", i, h.DevicesPerReplica)
	}
	if f.PortBase != nil {
		h.PortBase = *f.PortBase
	}
	if p.broken(path) {
		return
	}
	if len(h.Devices) == 0 || len(h.Devices) > maxSlots {
		p.missing(at, "devices", "host %d needs a non-empty 'devices' list of at most %d", i, maxSlots)
		return
	}
	seen := map[int]bool{}
	for j, d := range h.Devices {
		switch {
		case d < 0:
			p.report(fmt.Sprintf("%s[%d]", path, j), "host %d has an invalid device id %d", i, d)
		case seen[d]:
			p.report(fmt.Sprintf("%s[%d]", path, j), "host %d repeats a device id: %d", i, d)
		}
		seen[d] = true
	}
	if p.broken(path) || p.broken(path+"_per_replica") {
		return
	}
	if len(h.Devices)%h.DevicesPerReplica != 0 {
		p.add(path, "host %d declares %d devices, which is not a multiple of devices_per_replica=%d", i, len(h.Devices), h.DevicesPerReplica)
		return
	}
	for j := 0; j < len(h.Devices); j += h.DevicesPerReplica {
		// The sum of two huge numbers would wrap around.
		if d := h.Devices[j]; h.PortBase > 65535 || d > 65535 || h.PortBase+d < 1 || h.PortBase+d > 65535 {
			if !p.broken(at + ".port_base") {
				p.add(fmt.Sprintf("%s[%d]", path, j), "host %d device %d maps to invalid port: port_base %d + %d is not in 1..65535", i, d, h.PortBase, d)
			}
		}
	}
}

// commands checks what a launch and a stop run.
func (p *parser) commands(i int, at string, f *fileHost, h *Host) {
	if f.Program != nil && f.Python != nil {
		p.report(at+".python", "host %d has both 'program' and 'python'; want one of them", i)
	}
	if f.Program != nil && (len(f.Program) == 0 || f.Program[0] == "") {
		p.report(at+".program", "host %d 'program' must be a list of strings that begins with a command", i)
	}
	if f.Program == nil && h.Python == "" {
		h.Program = []string{DefaultProgram}
	}
	for _, path := range []struct{ name, value string }{{"workdir", h.Workdir}, {"log_dir", h.LogDir}} {
		if strings.HasPrefix(path.value, "~") {
			p.report(at+"."+path.name, "host %d '%s' begins with ~, which no shell expands here; write the whole path", i, path.name)
		}
	}
	probe := Slot{Devices: []int{0}}.values()
	for _, list := range []struct {
		name     string
		words    []string
		template bool
	}{
		{"serve_args", h.ServeArgs, false},
		{"program", h.Program, false},
		{"launch_wrapper", h.LaunchWrapper, true},
		{"stop_command", h.StopCommand, true},
	} {
		for j, word := range list.words {
			path := fmt.Sprintf("%s.%s[%d]", at, list.name, j)
			if strings.ContainsRune(word, 0) {
				p.report(path, "host %d '%s' holds a zero byte", i, list.name)
			}
			if _, err := expand(word, probe); list.template && err != nil {
				p.report(path, "host %d '%s': %v", i, list.name, err)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.Env)) {
		path := at + ".env." + name
		if !envName.MatchString(name) {
			// Its path is not a plain one; the place of the map is good enough.
			p.report(at+".env", "host %d 'env' has an invalid variable name %.64q", i, name)
			continue
		}
		if strings.ContainsRune(h.Env[name], 0) {
			p.report(path, "host %d 'env' holds a zero byte", i)
		}
		if _, err := expand(h.Env[name], probe); err != nil {
			p.report(path, "host %d 'env': %v", i, err)
		}
	}
}

// names refuses equal names within each list.
func (p *parser) names(c *Config) {
	if len(c.Replicas) > maxSlots {
		p.add("replicas", "there are %d replicas, the limit is %d", len(c.Replicas), maxSlots)
	}
	seen := map[string]int{}
	for i, r := range c.Replicas {
		if first, ok := seen[r.Name]; ok && r.Name != "" {
			p.report(fmt.Sprintf("replicas[%d]", i), "replica names must be unique: %.64q is the name of replica %d too", r.Name, first)
		} else {
			seen[r.Name] = i
		}
	}
	clear(seen)
	for i, h := range c.Hosts {
		if first, ok := seen[h.Name]; ok {
			p.report(fmt.Sprintf("hosts[%d].name", i), "host names must be unique: %.64q is the name of host %d too", h.Name, first)
		} else {
			seen[h.Name] = i
		}
	}
}

// collisions refuses what would put two processes on one device or port, or let
// one answer for the other.
func (p *parser) collisions(c *Config) {
	if len(c.Slots) > maxSlots {
		p.add("hosts", "there are %d launch slots, the limit is %d", len(c.Slots), maxSlots)
		return
	}
	type card struct {
		machine string
		device  int
	}
	cards := map[card]string{}
	places, names := map[string]string{}, map[string]bool{}
	for _, s := range c.Slots {
		names[s.Name] = true
		path := fmt.Sprintf("hosts[%d].devices", s.Host)
		for _, d := range s.Devices {
			at := card{c.Hosts[s.Host].machine(), d}
			if other, ok := cards[at]; ok {
				p.report(path, "launch slots %s and %s both use device %d of %s", other, s.Name, d, at.machine)
			}
			cards[at] = s.Name
		}
		place := hostPort(s.Address, s.Port)
		if other, ok := places[place]; ok {
			p.report(path, "launch slots %s and %s both listen at %s", other, s.Name, place)
		}
		places[place] = s.Name
	}
	for i, r := range c.Replicas {
		if names[r.Name] {
			p.report(fmt.Sprintf("replicas[%d]", i), "replica name %q collides with launch slot %s", r.Name, r.Name)
		}
		host := r.Host
		if host == "localhost" || host == "::1" {
			host = localAddress
		}
		if slot, ok := places[hostPort(host, r.Port)]; ok {
			p.report(fmt.Sprintf("replicas[%d]", i), "replica %q is at the address of launch slot %s", r.Name, slot)
		}
	}
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
