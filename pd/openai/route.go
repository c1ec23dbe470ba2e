package openai

// RoutePrefix is how every header of a PD route begins. A router removes such
// headers from what clients send.
const RoutePrefix = "X-PD-"

// RouteHeaders are the headers of a PD route, all of which a node with a role
// requires; the constants below index them.
var RouteHeaders = [...]string{
	"X-PD-Version", "X-PD-Request-Id", "X-PD-Handoff-Id", "X-PD-Run-Id", "X-PD-Self", "X-PD-Peer",
}

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
