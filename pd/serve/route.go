package serve

import (
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// route reads the X-PD-* headers of a router into a fence. Every refusal has no
// effect on this node.
func (s *Server) route(c *edge.Call, kind openai.Kind) (*pd.Fence, error) {
	const op = "read route"
	var values openai.Route
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
	fence, err := values.Fence(s.config.Role, s.config.Self, s.config.Run)
	if err != nil {
		return nil, err
	}
	if err := kind.CheckRequestID(fence.Request); err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeRouteMissing, Err: err}
	}
	return fence, nil
}
