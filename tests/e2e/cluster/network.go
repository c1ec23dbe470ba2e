package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Network is a network of its own for one node: a namespace that lives as long
// as its test, with a cable to each other network of the test and to the tests'
// own. It has one address for HTTP and control, and one for the data plane.
//
// A cable is never unplugged, which both ends would see: it sends what it is
// given to a station that does not exist.
type Network struct {
	// Host and Transfer are the addresses.
	Host, Transfer string

	holder *Process
	index  int
	// own is the tests' address on the cable to this network, cable its name.
	own, cable string
	others     []*Network
}

// Networks makes n networks. The test is skipped where the system refuses to
// make any.
func Networks(t testing.TB, n int) []*Network {
	t.Helper()
	Tool(t, "ip", "iproute2")
	if out, err := exec.Command("unshare", "--net", "true").CombinedOutput(); err != nil {
		t.Skipf("the system refuses a network namespace: %v %s", err, out)
	}
	number := claim(t)
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var all []*Network
	for i := range n {
		w := &Network{
			Host: fmt.Sprintf("198.18.%d.%d", number, i+1), Transfer: fmt.Sprintf("198.19.%d.%d", number, i+1),
			own: fmt.Sprintf("198.18.%d.254", number), index: i, cable: fmt.Sprintf("pypd%dn%d", number, i),
		}
		w.holder = Spawn(t, Command{Label: "network of " + w.Host, Program: "unshare", Args: []string{"--net", "sleep", "infinity"}})
		Eventually(t, func() error {
			there, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", w.holder.PID()))
			if err == nil && there == here {
				err = fmt.Errorf("%s is not made", w.holder.Label)
			}
			return err
		})
		w.ip(t, "link set lo up", "addr add "+w.Host+"/32 dev lo", "addr add "+w.Transfer+"/32 dev lo")
		ip(t, fmt.Sprintf("link add %s type veth peer name test netns %d", w.cable, w.holder.PID()),
			"addr add "+w.own+"/32 dev "+w.cable, "link set "+w.cable+" up")
		// The kernel may keep a namespace, and with it the cable, for as long as a
		// connection of a process that has ended waits for its peer.
		t.Cleanup(func() { ip(t, "link del "+w.cable) })
		w.ip(t, "link set test up", "route add "+w.own+"/32 dev test src "+w.Host)
		ip(t, "route add "+w.Host+"/32 dev "+w.cable+" src "+w.own)
		for _, o := range all {
			w.ip(t, fmt.Sprintf("link add n%d type veth peer name n%d netns %d", o.index, i, o.holder.PID()))
			w.plug(t, o)
			o.plug(t, w)
		}
		all = append(all, w)
	}
	return all
}

// claim chooses the number of a test's networks: 198.18.0.0/15 is nobody's, and
// each number is one test's at a time. The claim is a name in the tests' own
// network, which the kernel drops with the process if not before.
func claim(t testing.TB) int {
	t.Helper()
	for range 1000 {
		number := 1 + rand.IntN(250)
		l, err := net.Listen("unix", fmt.Sprintf("@pypto-pd-network-%d", number))
		if err != nil {
			continue // another test's
		}
		t.Cleanup(func() { l.Close() })
		if _, err := os.Stat(fmt.Sprintf("/sys/class/net/pypd%dn0", number)); err == nil {
			continue // a cable that a test has left that was killed
		}
		return number
	}
	t.Fatal("no number for networks is free")
	panic("unreachable")
}

// plug is this network's end of the cable to another.
func (w *Network) plug(t testing.TB, o *Network) {
	t.Helper()
	dev := w.to(o)
	w.ip(t, "link set "+dev+" up", "route add "+o.Host+"/32 dev "+dev+" src "+w.Host, "route add "+o.Transfer+"/32 dev "+dev+" src "+w.Transfer)
	w.others = append(w.others, o)
}

func (w *Network) to(o *Network) string { return "n" + strconv.Itoa(o.index) }

// nowhere is a station that does not exist.
const nowhere = " lladdr 02:00:5e:00:53:01 nud permanent dev "

// LoseControl loses all that this network and another send each other, but for
// the data plane. Heal ends it.
func (w *Network) LoseControl(t testing.TB, o *Network) {
	t.Helper()
	w.ip(t, "neigh replace "+o.Host+nowhere+w.to(o))
	o.ip(t, "neigh replace "+w.Host+nowhere+o.to(w))
}

// CutOff loses all that this network sends to anybody, and anybody to it. Heal
// ends it.
func (w *Network) CutOff(t testing.TB) {
	t.Helper()
	for _, o := range w.others {
		w.LoseControl(t, o)
		w.ip(t, "neigh replace "+o.Transfer+nowhere+w.to(o))
		o.ip(t, "neigh replace "+w.Transfer+nowhere+o.to(w))
	}
	w.ip(t, "neigh replace "+w.own+nowhere+"test")
	ip(t, "neigh replace "+w.Host+nowhere+w.cable)
}

// Heal loses nothing any more between this network and all others.
func (w *Network) Heal(t testing.TB) {
	t.Helper()
	for _, o := range w.others {
		w.ip(t, "neigh flush nud permanent dev "+w.to(o))
		o.ip(t, "neigh flush nud permanent dev "+o.to(w))
	}
	w.ip(t, "neigh flush nud permanent dev test")
	ip(t, "neigh flush nud permanent dev "+w.cable)
}

// Inside is c as it runs in this network; its program is found in PATH, or is a
// path.
func (w *Network) Inside(c Command) Command {
	inside := append(w.inside(), c.Program)
	c.Program, c.Args = inside[0], append(inside[1:], c.Args...)
	return c
}

// inside is what a command line begins with that runs in this network.
func (w *Network) inside() []string {
	return []string{"nsenter", "--net=/proc/" + strconv.Itoa(w.holder.PID()) + "/ns/net", "--"}
}

func (w *Network) ip(t testing.TB, orders ...string) {
	t.Helper()
	for _, order := range orders {
		execute(t, append(append(w.inside(), "ip"), strings.Fields(order)...))
	}
}

func ip(t testing.TB, orders ...string) {
	t.Helper()
	for _, order := range orders {
		execute(t, append([]string{"ip"}, strings.Fields(order)...))
	}
}

func execute(t testing.TB, args []string) {
	t.Helper()
	c := exec.Command(args[0], args[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
