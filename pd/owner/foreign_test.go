package owner_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

// foreignProcess makes the test binary a process that owns memory and that no
// node has started; its value is the path of its socket.
const foreignProcess = "OWNER_TEST_FOREIGN_PROCESS"

// runForeignProcess serves one node after the other, over the same memory.
func runForeignProcess() int {
	r, err := owner.Meet(os.Getenv(foreignProcess))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("waiting")
	for {
		c, err := r.Accept(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		c.Provider = func(string, string) (transfer.Provider, error) { return simulator.New(simulator.Config{}) }
		if err := owner.Serve(context.Background(), c); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		c.Lock.Close()
	}
}

// foreign starts such a process and waits until it waits.
func foreign(t testing.TB) (path string, process *exec.Cmd) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "owner")
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), foreignProcess+"="+path)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	_, err = io.ReadFull(out, make([]byte, len("waiting")))
	require.NoError(t, err)
	return path, c
}

// newForeignSide is a node over owners that wait at sockets.
func newForeignSide(t testing.TB, o sideOptions, lock *owner.BootLock, paths ...string) *side {
	o = o.withDefaults(t)
	c := o.config(nil)
	c.Provider, c.Remote = nil, owner.Remote{Provider: simulator.Name, Options: "{}"}
	c.Launch = owner.Visit(paths, lock)
	return startSide(t, o, c)
}

func lockOf(t testing.TB, path string) *owner.BootLock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	lock, err := owner.LockBoot(ctx, path, pd.NewBootID())
	require.NoError(t, err)
	t.Cleanup(func() { lock.Close() })
	return lock
}

// A foreign owner serves one node after the other; each boot is alive as long as
// its owner has not let go.
func TestForeignOwnerServesNodeAfterNode(t *testing.T) {
	if overSockets {
		t.Skip("these owners are processes in either run")
	}
	path, process := foreign(t)
	registry := filepath.Join(t.TempDir(), "boot")
	for range 2 {
		lock := lockOf(t, registry)
		from, to := newSide(t, sideOptions{}), newForeignSide(t, sideOptions{name: "d0"}, lock, path)
		require.Equal(t, []int{process.Process.Pid}, to.ProcessIDs())
		from.knows(to)
		w := simple(pd.NewHandoffID(), 0, from, to)
		require.NoError(t, from.Submit(w))
		requireAll(t, pd.Done, from.settled(w))
		require.NoError(t, from.Close(t.Context()))
		require.NoError(t, to.Close(t.Context()))
		require.NoError(t, lock.Close())
		require.NoError(t, syscall.Kill(process.Process.Pid, 0), "the process is not the node's to end")
	}
}

func TestForeignOwnersDeathIsNoticed(t *testing.T) {
	if overSockets {
		t.Skip("these owners are processes in either run")
	}
	path, process := foreign(t)
	to := newForeignSide(t, sideOptions{name: "d0"}, lockOf(t, filepath.Join(t.TempDir(), "boot")), path)
	require.NoError(t, process.Process.Kill())
	e := to.lost(0)
	require.Equal(t, process.Process.Pid, e.PID)
	require.ErrorContains(t, e.Err, fmt.Sprintf("process %d has ended", e.PID))
}

func TestSocketOfAnOwner(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "owner")
	r, err := owner.Meet(path)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	_, err = owner.Meet(path)
	require.ErrorContains(t, err, "another owner waits there")

	// Who has no boot lock is no node.
	accepted := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := r.Accept(ctx)
		accepted <- err
	}()
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	_, err = c.Write([]byte("GET / HTTP/1.1\r\n"))
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err, "the connection is closed")
	require.NoError(t, c.Close())
	cancel()
	require.ErrorIs(t, <-accepted, context.Canceled)
	require.NoError(t, r.Close())

	// The socket of an owner that was killed is taken over, anything else is not.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	r, err = owner.Meet(path)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err = owner.Meet(path)
	require.ErrorContains(t, err, "something else")
	_, err = owner.Visit([]string{filepath.Join(dir, "nobody")}, nil)(t.Context(), 0)
	require.ErrorContains(t, err, "rank 0: no owner waits at")
	_, err = owner.Visit(nil, nil)(t.Context(), 0)
	require.ErrorContains(t, err, "only 0 sockets")
}
