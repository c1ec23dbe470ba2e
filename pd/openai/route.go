package openai

import (
	"strconv"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// RoutePrefix is how every header of a PD route begins. A router removes such
// headers from what clients send.
const RoutePrefix = "X-PD-"

// RouteHeaders are the headers of a PD route, all of which a node with a role
// requires; the constants below index them.
var RouteHeaders = [...]string{
	"X-PD-Version", "X-PD-Request-Id", "X-PD-Handoff-Id", "X-PD-Run-Id", "X-PD-Self", "X-PD-Peer",
}

// HitTokens is a header of a decode node's answer to its router: how much of the
// prompt its own cache had, in tokens. It does not reach clients.
const HitTokens = RoutePrefix + "Hit-Tokens"

// Indexes of RouteHeaders.
const (
	RouteVersion = 0
	RouteRequest = 1
	RouteHandoff = 2
	RouteRun     = 3
	// RouteSelf is the receiver and RoutePeer the other node, as node;boot.
	RouteSelf = 4
	RoutePeer = 5
)

// Route is the values of RouteHeaders.
type Route [len(RouteHeaders)]string

// Fence reads a router's route as the node that it was sent to. Every refusal
// has no effect on that node.
func (r *Route) Fence(role pd.Role, self pd.Peer, run pd.RunID) (*pd.Fence, error) {
	const op = "read route"
	if version, want := r[RouteVersion], strconv.Itoa(pd.ProtocolVersion); version != want {
		return nil, pd.Errorf(pd.CodeVersionMismatch, op, "%s is %q, this node speaks version %s", RouteHeaders[RouteVersion], version[:min(len(version), 16)], want)
	}
	receiver, err := pd.ParsePeer(r[RouteSelf])
	if err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeRouteMissing, Text: RouteHeaders[RouteSelf], Err: err}
	}
	peer, err := pd.ParsePeer(r[RoutePeer])
	if err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeRouteMissing, Text: RouteHeaders[RoutePeer], Err: err}
	}
	if receiver != self {
		return nil, pd.Errorf(pd.CodeStaleBoot, op, "the request is for %s, this is %s", receiver, self)
	}
	fence := &pd.Fence{
		Request: pd.RequestID(r[RouteRequest]), Handoff: pd.HandoffID(r[RouteHandoff]), Run: pd.RunID(r[RouteRun]),
		Prefill: self, Decode: peer,
	}
	if role == pd.Decode {
		fence.Prefill, fence.Decode = peer, self
	}
	if err := fence.Check(); err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeRouteMissing, Err: err}
	}
	if fence.Run != run {
		return nil, pd.Errorf(pd.CodeIdentity, op, "the router's run is %q, this node's is %q; both must read the same pd.json", fence.Run, run)
	}
	return fence, nil
}
