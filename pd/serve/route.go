package serve

import (
	"strconv"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// route reads the X-PD-* headers of a router into a fence. Every refusal has no
// effect on this node.
func (s *Server) route(c *edge.Call, kind openai.Kind) (*pd.Fence, error) {
	const op = "read route"
	var values [len(openai.RouteHeaders)]string
	var seen [len(openai.RouteHeaders)]bool
	for name, value := range c.Headers() {
		if len(name) < len(openai.RoutePrefix) || !strings.EqualFold(name[:len(openai.RoutePrefix)], openai.RoutePrefix) {
			continue
		}
		for i, known := range openai.RouteHeaders {
			if !strings.EqualFold(name, known) {
				continue
			}
			if seen[i] {
				return nil, pd.Errorf(pd.CodeRouteMissing, op, "the header %s stands there twice", known)
			}
			values[i], seen[i] = value, true
		}
	}
	for i, known := range openai.RouteHeaders {
		if !seen[i] {
			return nil, pd.Errorf(pd.CodeRouteMissing, op,
				"this is a %s node: it takes generations from a PD router only, and the header %s is missing; send the request to the router", s.config.Role, known)
		}
	}
	if version, want := values[openai.RouteVersion], strconv.Itoa(pd.ProtocolVersion); version != want {
		return nil, pd.Errorf(pd.CodeVersionMismatch, op, "%s is %q, this node speaks version %s", openai.RouteHeaders[openai.RouteVersion], shorten(version), want)
	}
	self, err := pd.ParsePeer(values[openai.RouteSelf])
	if err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeRouteMissing, Text: openai.RouteHeaders[openai.RouteSelf], Err: err}
	}
	peer, err := pd.ParsePeer(values[openai.RoutePeer])
	if err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeRouteMissing, Text: openai.RouteHeaders[openai.RoutePeer], Err: err}
	}
	if self != s.config.Self {
		return nil, pd.Errorf(pd.CodeStaleBoot, op, "the request is for %s, this is %s", self, s.config.Self)
	}
	fence := &pd.Fence{
		Request: pd.RequestID(values[openai.RouteRequest]),
		Handoff: pd.HandoffID(values[openai.RouteHandoff]),
		Run:     pd.RunID(values[openai.RouteRun]),
		Prefill: self, Decode: peer,
	}
	if s.config.Role == pd.Decode {
		fence.Prefill, fence.Decode = peer, self
	}
	if err := fence.Check(); err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeRouteMissing, Err: err}
	}
	if err := kind.CheckRequestID(fence.Request); err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeRouteMissing, Err: err}
	}
	if fence.Run != s.config.Run {
		return nil, pd.Errorf(pd.CodeIdentity, op, "the router's run is %q, this node's is %q; both must read the same pd.json", fence.Run, s.config.Run)
	}
	return fence, nil
}
