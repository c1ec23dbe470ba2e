package fleet

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
)

// Defaults of the optional fields of a host.
const (
	DefaultScheme   = "http"
	DefaultPortBase = 8001
	DefaultLogDir   = "/tmp/pypto-serving-router"
	DefaultProgram  = "pypto-serving"
)

// localAddress is where the router dials what it launched on its own machine.
const localAddress = "127.0.0.1"

// Config is a fleet file without a defect. It does not change after Parse.
type Config struct {
	Replicas []Static
	Hosts    []Host
	// Slots are the declared launch slots in the order in which they are filled:
	// the router's own machine first, then the file's order.
	Slots []Slot
}

// Static is a replica that already runs: the router routes to it and never
// stops it.
type Static struct {
	Name string
	// Scheme is http or https.
	Scheme string
	Host   string
	Port   int
	// CAFile is a PEM file of the authorities that its certificate is believed
	// from; "" for those of the whole router.
	CAFile string
}

// URL is the base address of the replica, without a slash at its end.
func (s Static) URL() string { return s.Scheme + "://" + hostPort(s.Host, s.Port) }

// Host is a machine on which the router may launch replicas.
type Host struct {
	Name string
	// SSH is the ssh destination, "" for the router's own machine.
	SSH string
	// Address is where the router dials the host's replicas.
	Address           string
	IdentityFile      string
	Devices           []int
	DevicesPerReplica int
	PortBase          int
	Model             string
	ServedModelName   string
	ServeArgs         []string
	// Env, LaunchWrapper and StopCommand hold templates, which Parse has checked.
	Env           map[string]string
	LaunchWrapper []string
	StopCommand   []string
	// Program is the server's command. Python, if set, is the interpreter that
	// runs the upstream server's module instead.
	Program []string
	Python  string
	Workdir string
	LogDir  string
}

// Local says that the host is the router's own machine.
func (h *Host) Local() bool { return h.SSH == "" }

// machine tells whether two hosts are one machine, as far as their names tell.
func (h *Host) machine() string {
	if h.Local() {
		return localAddress
	}
	return h.SSH[strings.LastIndexByte(h.SSH, '@')+1:]
}

// Slot is one group of devices that holds at most one replica.
type Slot struct {
	// Name is <host>-d<first device>, the same after every restart.
	Name string
	// HostName is its host's, Machine that of the hardware behind it, as far as
	// names tell.
	HostName string
	Machine  string
	// Host is the host as an index of Config.Hosts.
	Host    int
	Devices []int
	Address string
	Port    int
}

// URL is the base address of the slot's replica.
func (s Slot) URL() string { return "http://" + hostPort(s.Address, s.Port) }

// Load reads and checks a fleet file. The error names the file; its code is
// pd.CodeInvalidConfig.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, pd.MaxConfigBytes+1))
	if err != nil {
		return nil, unreadable(path, err)
	}
	c, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func unreadable(path string, err error) error {
	return &pd.Error{Op: "load fleet", Code: pd.CodeInvalidConfig, Text: "cannot read replica file " + path, Err: err}
}

// Defects are everything that is wrong with one fleet file, in the order of the file.
type Defects = strictjson.FileDefects

// deriveSlots cuts the hosts' devices into slots, the router's own machine
// first.
func deriveSlots(hosts []Host) []Slot {
	order := make([]int, len(hosts))
	for i := range hosts {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case hosts[a].Local() == hosts[b].Local():
			return 0
		case hosts[a].Local():
			return -1
		}
		return 1
	})
	var out []Slot
	for _, i := range order {
		h := &hosts[i]
		for group := range slices.Chunk(h.Devices, h.DevicesPerReplica) {
			out = append(out, Slot{
				Name: fmt.Sprintf("%s-d%d", h.Name, group[0]), HostName: h.Name, Machine: h.machine(), Host: i, Devices: slices.Clone(group),
				Address: h.Address, Port: h.PortBase + group[0],
			})
		}
	}
	return out
}
