package e2e

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// listening gives the addresses on which a process listens, as the kernel
// spells them.
func listening(t *testing.T, pid int) []string {
	t.Helper()
	sockets := map[string]bool{}
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(folder)
	require.NoError(t, err)
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join(folder, fd.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			sockets[strings.TrimSuffix(inode, "]")] = true
		}
	}
	const stateListen, inodeField = "0A", 9
	var out []string
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		require.NoError(t, err)
		defer f.Close()
		lines := bufio.NewScanner(f)
		lines.Scan() // the head
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) > inodeField && fields[3] == stateListen && sockets[fields[inodeField]] {
				out = append(out, fields[1])
			}
		}
		require.NoError(t, lines.Err())
	}
	return out
}

// kernelSpelling is a loopback port as in /proc/net/tcp.
func kernelSpelling(port int) string { return fmt.Sprintf("0100007F:%04X", port) }

// Behaviour 1: without --pd-role nothing of PD exists: the configuration is not
// opened, one port is open, and the node serves.
func TestWithoutARoleNothingOfPDIsThere(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	broken := filepath.Join(t.TempDir(), "pd.json")
	require.NoError(t, os.WriteFile(broken, []byte("{"), 0o600))
	for name, config := range map[string][]string{
		"no config": nil, "missing config": {"--pd-config", "/does/not/exist"}, "broken config": {"--pd-config", broken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := cluster.Ports(t, 1)[0]
			dir := t.TempDir()
			p := cluster.Spawn(t, cluster.Command{
				Label: "replica", Program: cluster.Serving, Dir: dir,
				Args: append(append(cluster.Layout(t, "dp2tp1"), "--port", strconv.Itoa(port), "--served-model-name", cluster.Model), config...),
			})
			require.Equal(t, "combined", p.Ready(t)["role"])
			url := "http://" + cluster.Address(port)
			q := cluster.Completion{Prompt: cluster.Prompt("off", 300), Max: 16, Stream: true}
			require.Equal(t, combined.Text(t, q), cluster.MustComplete(t, url, q).Text)
			require.Equal(t, []string{kernelSpelling(port)}, listening(t, p.PID()))
			status, _, err := cluster.Get(url + "/pd/v2/node")
			require.NoError(t, err)
			require.Equal(t, 404, status)
			require.Zero(t, p.Stop(t), "%s", p.Tail())
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left, "a node without a role wrote files")
		})
	}
}

// The check of the test above sees more than one port where there are more.
func TestNodeWithARoleListensOnItsControlPort(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{PLayout: "dp2tp1", DLayout: "dp2tp1"})
	for _, n := range c.Nodes() {
		open := listening(t, n.PID())
		require.Contains(t, open, kernelSpelling(n.Entry.Port))
		require.Contains(t, open, kernelSpelling(n.Entry.ControlPort))
		require.Len(t, open, 2+2, "HTTP, control and the data plane of two ranks")
	}
	require.Len(t, listening(t, c.Router.PID()), 1)
}
