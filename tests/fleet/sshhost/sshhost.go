// Package sshhost makes machines for tests: each is a real ssh server in a
// network of its own, with an address of its own, that can be cut off. They share
// the files and the processes of the machine that runs the tests.
//
// The servers accept one key that is made for the run; nothing of the user's own
// ssh configuration is read, and nothing is written to it. It starts processes,
// which end with their test, and no goroutine.
package sshhost

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// sshd wants to be started by its path.
const sshd = "/usr/sbin/sshd"

// Lab is some hosts and what leads to them.
type Lab struct {
	Hosts []*Host
	// Key is the path of the private key that all hosts accept, WrongKey of one
	// that none does.
	Key, WrongKey string
	dir           string
}

// Host is one machine.
type Host struct {
	// Address is where its servers listen, SSH the destination with a user, Alias
	// a name that only ssh's configuration knows.
	Address, SSH, Alias string
	// Network cuts the host off and heals it.
	Network *cluster.Network
	// Server is sshd.
	Server *cluster.Process
}

// Start makes n hosts. The test is skipped where it is not root's, or where the
// system refuses networks, or has no ssh server.
func Start(t testing.TB, n int) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may make other machines")
	}
	cluster.Tool(t, "ssh", "openssh-client")
	cluster.Tool(t, sshd, "openssh-server")
	networks := cluster.Networks(t, n)
	l := &Lab{dir: t.TempDir()}
	l.Key, l.WrongKey = l.keygen(t, "key"), l.keygen(t, "wrong")
	// The server changes into this folder before it trusts anybody.
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
		t.Fatal(err)
	}
	var config strings.Builder
	for i, network := range networks {
		h := &Host{Address: network.Host, SSH: "root@" + network.Host, Alias: fmt.Sprintf("box%d", i), Network: network}
		l.listen(t, h)
		fmt.Fprintf(&config, "Host %s\nHostName %s\nUser root\n", h.Alias, h.Address)
		l.Hosts = append(l.Hosts, h)
	}
	fmt.Fprintf(&config, "Host *\nUserKnownHostsFile %s\nGlobalKnownHostsFile none\nIdentityFile none\nIdentityAgent none\nLogLevel ERROR\n", filepath.Join(l.dir, "known_hosts"))
	l.write(t, "ssh_config", config.String(), 0o600)
	l.write(t, "ssh", fmt.Sprintf("#!/bin/sh\nexec /usr/bin/ssh -F '%s' \"$@\"\n", filepath.Join(l.dir, "ssh_config")), 0o700)
	return l
}

// Env is the environment in which ssh reads the lab's configuration alone.
func (l *Lab) Env() []string {
	return append(os.Environ(), "PATH="+l.dir+":"+os.Getenv("PATH"))
}

// ChangeKeys gives a host another identity, as a machine does that was installed
// anew, or one that only says that it is the host.
func (l *Lab) ChangeKeys(t testing.TB, h *Host) {
	t.Helper()
	h.Server.Kill()
	h.Server.Wait(t)
	for _, f := range []string{l.hostKey(h), l.hostKey(h) + ".pub"} {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	l.listen(t, h)
}

// listen starts the host's server and waits until it accepts connections.
func (l *Lab) listen(t testing.TB, h *Host) {
	t.Helper()
	h.Server = cluster.Spawn(t, h.Network.Inside(cluster.Command{
		Label: "sshd of " + h.Address, Program: sshd, Args: []string{"-D", "-e", "-f", l.serverConfig(t, h)},
	}))
	cluster.Eventually(t, func() error {
		c, err := net.Dial("tcp", net.JoinHostPort(h.Address, "22"))
		if err == nil {
			c.Close()
		}
		return err
	})
}

func (l *Lab) hostKey(h *Host) string { return filepath.Join(l.dir, "host_"+h.Alias) }

func (l *Lab) serverConfig(t testing.TB, h *Host) string {
	t.Helper()
	l.keygen(t, "host_"+h.Alias)
	return l.write(t, "sshd_config_"+h.Alias, strings.Join([]string{
		"ListenAddress " + h.Address, "Port 22", "HostKey " + l.hostKey(h), "PidFile none", "AuthorizedKeysFile " + l.Key + ".pub",
		"PermitRootLogin prohibit-password", "PasswordAuthentication no", "KbdInteractiveAuthentication no", "UsePAM no",
		// The folder is below one that anybody may write into.
		"StrictModes no", "",
	}, "\n"), 0o600)
}

func (l *Lab) keygen(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(l.dir, name)
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v\n%s", err, out)
	}
	return path
}

func (l *Lab) write(t testing.TB, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(l.dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}
