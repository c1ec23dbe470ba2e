package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Change is what a process that reads pd.json again may do without a restart.
type Change struct {
	// Added and Removed are entries of either role. Policy is the new one, ""
	// if it stays.
	Added   []Entry
	Removed []Entry
	Policy  string
}

// String lists the change for people.
func (c Change) String() string {
	var parts []string
	list := func(what string, entries []Entry) {
		for _, e := range entries {
			parts = append(parts, fmt.Sprintf("%s %s node %s", what, e.Role, e.NodeID))
		}
	}
	list("added", c.Added)
	list("removed", c.Removed)
	if c.Policy != "" {
		parts = append(parts, "policy is now "+c.Policy)
	}
	if len(parts) == 0 {
		return "nothing changed"
	}
	return strings.Join(parts, ", ")
}

// ChangeTo compares a file with its next version. Entries may come and go, and the
// policy may change. The error names everything else that differs: a node whose
// identity would change while requests may run on it, and what is fixed for the
// life of a process. It carries pd.CodeInvalidConfig.
func (c *Config) ChangeTo(next *Config) (Change, error) {
	var out Change
	var bad []string
	fixed := func(what string, old, now any) {
		if old != now {
			bad = append(bad, fmt.Sprintf("%s changes from %v to %v, which needs a restart", what, old, now))
		}
	}
	if c.run != next.run {
		bad = append(bad, fmt.Sprintf("the run id changes from %s to %s, so that no node would be of the router's run; set runtime.run_id to the old one in every file", c.run, next.run))
	}
	fixed("runtime.provider", c.Provider, next.Provider)
	fixed("runtime.capacity", c.Capacity, next.Capacity)
	fixed("runtime.handoff_timeout", c.HandoffTimeout, next.HandoffTimeout)
	fixed("runtime.request_timeout", c.RequestTimeout, next.RequestTimeout)
	fixed("observability", c.Observability, next.Observability)
	if c.Policy != next.Policy {
		out.Policy = next.Policy
	}
	old, now := slices.Concat(c.Prefill, c.Decode), slices.Concat(next.Prefill, next.Decode)
	for _, e := range now {
		same := func(o Entry) bool { return o.NodeID == e.NodeID || key(o.Host, o.Port) == key(e.Host, e.Port) }
		switch i := slices.IndexFunc(old, same); {
		case i < 0:
			out.Added = append(out.Added, e)
		case old[i] != e:
			bad = append(bad, fmt.Sprintf("%s node %s at %s becomes %s node %s at %s: remove it, wait until it is gone, then add it", old[i].Role, old[i].NodeID, old[i].places(), e.Role, e.NodeID, e.places()))
		}
	}
	for _, o := range old {
		if !slices.Contains(now, o) {
			out.Removed = append(out.Removed, o)
		}
	}
	if len(bad) > 0 {
		return Change{}, pd.Errorf(pd.CodeInvalidConfig, "read pd.json again", "%s", strings.Join(bad, "; "))
	}
	return out, nil
}

// places are all addresses of an entry.
func (e Entry) places() string {
	return fmt.Sprintf("%s (control port %d, transfer host %s)", e.HTTPAddress(), e.ControlPort, e.TransferHostname)
}
