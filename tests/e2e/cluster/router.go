package cluster

import (
	"net"
	"slices"
	"strconv"
	"testing"
)

// StartRouter starts the router again, on the same port, and waits until it
// serves HTTP. The pairs come later.
func (c *Cluster) StartRouter(t testing.TB) {
	t.Helper()
	c.Router = c.spawn(t, Command{Label: "router", Program: Router, Args: c.Router.args()})
	c.Router.Ready(t)
}

// AnotherRouter starts a second router over the same nodes and gives its URL.
// It ends with the cluster.
func (c *Cluster) AnotherRouter(t testing.TB) (*Process, string) {
	t.Helper()
	args := slices.Clone(c.Router.args())
	port := strconv.Itoa(Ports(t, 1)[0])
	args[slices.Index(args, "--port")+1] = port
	p := c.spawn(t, Command{Label: "another router", Program: Router, Args: args})
	p.Ready(t)
	return p, "http://" + net.JoinHostPort(host(c.options), port)
}

// args are those with which the process was started.
func (p *Process) args() []string { return p.command.Args[1:] }
