package owner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
)

const (
	// portBoots and portMemory say for how long a port is not taken again: while its
	// boot is one of the last so many, or younger than that. A late writer knows it
	// no longer.
	portBoots  = 64
	portMemory = 24 * time.Hour
	// maxBoots bounds the boots on record; a node that starts more often within
	// portMemory forgets the oldest.
	maxBoots = 1024
	// maxRegistryBytes bounds the file: maxBoots of 16 ports each need a twentieth, and
	// a boot that has fenced until no port is left fits.
	maxRegistryBytes = 16 << 20
)

// bootRecord is one line of the registry. Lines of one boot add up.
type bootRecord struct {
	Boot pd.BootID `json:"boot_id"`
	At   time.Time `json:"at"`
	// MachineBoot and Namespace say where process ids mean anything.
	MachineBoot string          `json:"machine_boot_id,omitempty"`
	Namespace   string          `json:"pid_namespace,omitempty"`
	Processes   []ProcessRecord `json:"processes,omitempty"`
	Ports       []int           `json:"ports,omitempty"`
}

// ProcessRecord is one process of a boot.
type ProcessRecord struct {
	Name string `json:"name"`
	PID  int    `json:"pid"`
	// Start is when the process started, in the kernel's ticks; with it the id names
	// one process only.
	Start string `json:"start,omitempty"`
}

// readRegistry gives the boots on record, oldest first. A last line without an
// end was being written when its process was killed; nobody was told of what it
// says.
func readRegistry(f *os.File) ([]bootRecord, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxRegistryBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxRegistryBytes {
		return nil, fmt.Errorf("has more than %d bytes", maxRegistryBytes)
	}
	return parseRegistry(b)
}

func parseRegistry(b []byte) ([]bootRecord, error) {
	var out []bootRecord
	place := map[pd.BootID]int{}
	for n := 1; ; n++ {
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		if !whole {
			return out, nil
		}
		b = rest
		var r bootRecord
		if err := strictjson.Decode(line, &r, strictjson.Limits{}); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if err := pd.CheckHexID("boot", string(r.Boot)); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		i, known := place[r.Boot]
		if !known {
			place[r.Boot] = len(out)
			out = append(out, r)
			continue
		}
		out[i].Processes = append(out[i].Processes, r.Processes...)
		out[i].Ports = append(out[i].Ports, r.Ports...)
	}
}

// prune drops the boots whose ports may be taken again.
func prune(history []bootRecord, now time.Time) []bootRecord {
	recent := max(0, len(history)-portBoots)
	keep := slices.Clone(history[recent:])
	for i := recent - 1; i >= 0 && len(keep) < maxBoots; i-- {
		if now.Sub(history[i].At) < portMemory {
			keep = slices.Insert(keep, 0, history[i])
		}
	}
	for i := range keep {
		keep[i].Processes = nil // they are dead, or this start would not go on
	}
	return keep
}

// append adds lines in one write.
func (l *BootLock) append(records ...bootRecord) error {
	var b []byte
	for _, r := range records {
		line, err := jsonLine(r)
		if err != nil {
			return fmt.Errorf("boot registry: %w", err)
		}
		b = append(b, line...)
	}
	if _, err := l.file.Write(b); err != nil {
		return fmt.Errorf("boot registry: %w", err)
	}
	return nil
}

// machineBoot names the life of this machine; "" without /proc.
func machineBoot() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

func pidNamespace() string {
	link, _ := os.Readlink("/proc/self/ns/pid")
	return link
}

// startTime is when a process started, in the kernel's ticks; "" if it does not
// live, or without /proc.
func startTime(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name in parentheses may hold anything; the fields behind it do not.
	_, rest, _ := strings.Cut(string(b[bytes.LastIndexByte(b, ')')+1:]), " ")
	fields := strings.Fields(rest)
	const state, started = 0, 19
	if len(fields) <= started || fields[state] == "Z" {
		return ""
	}
	return fields[started]
}

func jsonLine(r bootRecord) ([]byte, error) {
	b, err := json.Marshal(r)
	return append(b, '\n'), err
}
