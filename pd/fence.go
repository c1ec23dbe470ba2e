package pd

import (
	"fmt"
	"strings"
)

// Peer is one life of one node: the answer to "which process do you mean?".
type Peer struct {
	Node NodeID `json:"node"`
	Boot BootID `json:"boot"`
}

// String prints the header form node;boot (see ParsePeer).
func (p Peer) String() string { return string(p.Node) + ";" + string(p.Boot) }

// ParsePeer reads the header form node;boot. A node id may hold any printable
// character, so the boot is what follows the last semicolon.
func ParsePeer(s string) (Peer, error) {
	i := strings.LastIndexByte(s, ';')
	if i < 0 {
		return Peer{}, fmt.Errorf("peer %q: want node;boot", s)
	}
	p := Peer{Node: NodeID(s[:i]), Boot: BootID(s[i+1:])}
	if err := CheckID("node", string(p.Node)); err != nil {
		return Peer{}, err
	}
	if err := CheckHexID("boot", string(p.Boot)); err != nil {
		return Peer{}, err
	}
	return p, nil
}

// Fence is the full identity that every message of a handoff carries: which
// request, which attempt, and which two lives of which two nodes. A message
// whose fence differs in any field from the one a node holds is refused and
// changes nothing (pd-domain §4.2).
type Fence struct {
	Request RequestID `json:"request_id"`
	Handoff HandoffID `json:"handoff_id"`
	Run     RunID     `json:"run_id"`
	Prefill Peer      `json:"prefill"`
	Decode  Peer      `json:"decode"`
}

// Diff names the first field in which two fences differ, or "" if none does.
func (f Fence) Diff(o Fence) string {
	switch {
	case f.Handoff != o.Handoff:
		return "handoff_id"
	case f.Request != o.Request:
		return "request_id"
	case f.Run != o.Run:
		return "run_id"
	case f.Prefill.Node != o.Prefill.Node:
		return "prefill.node"
	case f.Prefill.Boot != o.Prefill.Boot:
		return "prefill.boot"
	case f.Decode.Node != o.Decode.Node:
		return "decode.node"
	case f.Decode.Boot != o.Decode.Boot:
		return "decode.boot"
	}
	return ""
}

// Check reports the first malformed field of a fence that came from outside.
func (f Fence) Check() error {
	for _, c := range []struct{ what, id string }{
		{"request_id", string(f.Request)},
		{"run_id", string(f.Run)},
		{"prefill.node", string(f.Prefill.Node)},
		{"decode.node", string(f.Decode.Node)},
	} {
		if err := CheckID(c.what, c.id); err != nil {
			return err
		}
	}
	for _, c := range []struct{ what, id string }{
		{"handoff_id", string(f.Handoff)},
		{"prefill.boot", string(f.Prefill.Boot)},
		{"decode.boot", string(f.Decode.Boot)},
	} {
		if err := CheckHexID(c.what, c.id); err != nil {
			return err
		}
	}
	if f.Prefill.Node == f.Decode.Node {
		return fmt.Errorf("prefill.node and decode.node are both %q", f.Prefill.Node)
	}
	return nil
}
