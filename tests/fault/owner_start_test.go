package fault

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// refusedCall makes this test binary put itself under a filter of system calls
// and then become another program: the value is the error that pidfd_open gives.
const refusedCall = "FAULT_PIDFD_OPEN_GIVES"

func init() {
	if value := os.Getenv(refusedCall); value != "" {
		os.Unsetenv(refusedCall)
		errno, err := strconv.Atoi(value)
		if err == nil {
			err = becomeFiltered(syscall.Errno(errno), os.Args[1:])
		}
		fmt.Fprintln(os.Stderr, "under a filter:", err)
		os.Exit(99)
	}
}

// becomeFiltered is what a container's runtime does before it starts a program.
func becomeFiltered(errno syscall.Errno, args []string) error {
	const (
		load, jumpEqual, give  = 0x20, 0x15, 0x06 // BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
		pidfdOpen              = 434              // the same on every architecture
		allow, fail            = 0x7fff0000, 0x00050000
		setNoNewPrivs          = 38
		setSeccomp, modeFilter = 22, 2
	)
	type instruction struct {
		code   uint16
		yes    uint8
		no     uint8
		number uint32
	}
	filter := []instruction{
		{load, 0, 0, 0}, {jumpEqual, 0, 1, pidfdOpen}, {give, 0, 0, fail | uint32(errno)}, {give, 0, 0, allow},
	}
	program := struct {
		length uint16
		filter *instruction
	}{uint16(len(filter)), &filter[0]}
	runtime.LockOSThread() // the filter is the thread's, which becomes the program
	if _, _, err := syscall.RawSyscall6(syscall.SYS_PRCTL, setNoNewPrivs, 1, 0, 0, 0, 0); err != 0 {
		return err
	}
	if _, _, err := syscall.RawSyscall(syscall.SYS_PRCTL, setSeccomp, modeFilter, uintptr(unsafe.Pointer(&program))); err != 0 {
		return err
	}
	return syscall.Exec(args[0], args, os.Environ())
}

// single writes a pd.json with one pair and gives the command line of its decode
// node, further flags last.
func single(t *testing.T, change map[string]any, flags ...string) (args []string, state string) {
	t.Helper()
	ports := cluster.Ports(t, 4)
	dir := t.TempDir()
	entry := func(i int) map[string]any {
		return map[string]any{"host": "127.0.0.1", "port": ports[i], "control_port": ports[i+1]}
	}
	decode := entry(2)
	for k, v := range change {
		decode[k] = v
	}
	path := cluster.WriteJSON(t, filepath.Join(dir, "pd.json"), map[string]any{
		"runtime":       map[string]any{"prefill": []any{entry(0)}, "decode": []any{decode}, "provider": "simulator", "run_id": "start"},
		"observability": map[string]any{"root": filepath.Join(dir, "logs")},
	})
	args = append([]string{"--pd-config", path, "--pd-role", "decode", "--served-model-name", cluster.Model}, cluster.Layout(t, "dp1tp2")...)
	files := journal.FilesOf(filepath.Join(dir, "logs"), "start", "d", fmt.Sprintf("127.0.0.1:%d", ports[2]))
	return append(args, flags...), filepath.Join(files.State, files.Lock)
}

// wantRefusal starts a node that must not start: one line that says why, before
// it was ready. The code is 2 where the machine or pd.json has to be changed.
func wantRefusal(t *testing.T, c cluster.Command, code int, why ...string) {
	t.Helper()
	c.Label = "node"
	p := cluster.Spawn(t, c)
	require.Equal(t, code, p.Wait(t), "%s", p.Tail())
	require.Empty(t, p.Stdout())
	for _, w := range why {
		require.Contains(t, p.Stderr(), w)
	}
}

// B46: a data-plane address that is of no use is said before anything is
// announced.
func TestStartNeedsADataPlaneAddress(t *testing.T) {
	t.Parallel()
	for _, owners := range []string{"in-process", "child"} {
		args, _ := single(t, map[string]any{"transfer_hostname": "no-such-host.invalid"}, "--owners", owners)
		wantRefusal(t, cluster.Command{Program: cluster.Serving, Args: args}, 2, `"no-such-host.invalid" does not resolve on this machine`, "give the entry an address")
		// An address of another machine cannot be bound.
		args, _ = single(t, map[string]any{"transfer_hostname": "192.0.2.1"}, "--owners", owners)
		wantRefusal(t, cluster.Command{Program: cluster.Serving, Args: args}, 2, "listen on 192.0.2.1")
	}
}

// Case B57: without pidfds owner processes are refused at once, with cause and fix, and
// owners of the node's own process are not.
func TestStartWithoutPidfds(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	for errno, why := range map[syscall.Errno]string{
		syscall.EPERM: "allow pidfd_open", syscall.ENOSYS: "older than 5.3", syscall.EMFILE: "raise the limit",
	} {
		filtered := func(args []string) cluster.Command {
			return cluster.Command{
				Label: "node", Program: self, Args: append([]string{filepath.Join(cluster.Bin(t), cluster.Serving)}, args...),
				Env: []string{fmt.Sprintf("%s=%d", refusedCall, errno)},
			}
		}
		args, _ := single(t, nil, "--owners", "child")
		wantRefusal(t, filtered(args), 2, "pidfd_open: ", why)
		args, _ = single(t, nil, "--owners", "in-process")
		p := cluster.Spawn(t, filtered(args))
		p.Ready(t)
		require.Zero(t, p.Stop(t))
	}
}

// Decision 17: a start waits for the processes of an earlier boot, then refuses
// and names who lives. When the last of them has ended, it starts, on other
// data-plane ports.
func TestStartWaitsForEarlierProcesses(t *testing.T) {
	t.Parallel()
	args, lock := single(t, nil, "--owners", "child")
	start := cluster.Command{Label: "node", Program: cluster.Serving, Args: args}
	first := cluster.Spawn(t, start)
	first.Ready(t)
	// Somebody shares the lock, as a process does that hosts an owner itself.
	holder := exec.Command("flock", "-s", lock, "-c", "echo held; exec sleep 600")
	holder.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	t.Cleanup(func() {
		_ = syscall.Kill(-holder.Process.Pid, syscall.SIGKILL)
		_ = holder.Wait()
	})
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	_, err = out.Read(make([]byte, 5))
	require.NoError(t, err)
	require.Zero(t, first.Stop(t))
	earlier := portsOf(t, lock)
	require.Len(t, earlier, 2)
	wantRefusal(t, start, 1, "a process of an earlier boot of this node still runs and holds", "by a process that it did not record")
	require.NoError(t, syscall.Kill(-holder.Process.Pid, syscall.SIGKILL))
	_ = holder.Wait() // killed
	again := cluster.Spawn(t, start)
	again.Ready(t)
	for _, port := range earlier {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
		require.Error(t, err, "port %s of the earlier boot is open again", port)
		require.Nil(t, c)
	}
	require.Greater(t, len(portsOf(t, lock)), len(earlier))
	require.Zero(t, again.Stop(t))
}

// portsOf are the data-plane ports that a boot registry remembers.
func portsOf(t *testing.T, lock string) (ports []string) {
	t.Helper()
	b, err := os.ReadFile(lock)
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if _, rest, ok := strings.Cut(line, `"ports":[`); ok {
			list, _, _ := strings.Cut(rest, "]")
			ports = append(ports, strings.Split(list, ",")...)
		}
	}
	return ports
}
