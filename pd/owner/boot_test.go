package owner_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
)

// soon is a context that ends while an earlier boot still lives.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func lockBoot(t *testing.T, path string) *owner.BootLock {
	t.Helper()
	l, err := owner.LockBoot(t.Context(), path, pd.NewBootID())
	require.NoError(t, err)
	return l
}

func TestBootLockIsRefusedWhileAnEarlierBootLives(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.lock")
	first := lockBoot(t, path)
	_, err := owner.LockBoot(soon(t), path, pd.NewBootID())
	require.ErrorIs(t, err, pd.CodeConflict)
	require.ErrorContains(t, err, fmt.Sprintf("node, pid %d", os.Getpid()))
	require.NoError(t, first.Close())
	require.NoError(t, lockBoot(t, path).Close())
}

// Another process that shares the lock keeps it after the first one let go: it is
// one of the processes of that boot.
func TestBootLockLivesAsLongAsItsLastHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.lock")
	first := lockBoot(t, path)
	child := exec.Command("flock", "-s", path, "-c", "echo held; exec sleep 600")
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	_, err = out.Read(make([]byte, 5))
	require.NoError(t, err)
	require.NoError(t, first.Record(owner.ProcessRecord{Name: "owner of rank 5", PID: child.Process.Pid}))
	require.NoError(t, first.Close())
	_, err = owner.LockBoot(soon(t), path, pd.NewBootID())
	require.ErrorIs(t, err, pd.CodeConflict)
	require.ErrorContains(t, err, fmt.Sprintf("owner of rank 5, pid %d", child.Process.Pid))
	require.NoError(t, syscall.Kill(-child.Process.Pid, syscall.SIGKILL))
	_ = child.Wait() // killed
	require.NoError(t, lockBoot(t, path).Close())
}

// Many starts at once: the file is replaced at each start, and still no two hold
// it together.
func TestOneBootAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.lock")
	var mu sync.Mutex
	holding := false
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			l, err := owner.LockBoot(ctx, path, pd.NewBootID())
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			if holding {
				t.Error("two boots hold the lock")
			}
			holding = true
			mu.Unlock()
			mu.Lock()
			holding = false
			mu.Unlock()
			_ = l.Close()
		})
	}
	all.Wait()
}

func TestPortsAreRememberedOverBoots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.lock")
	first := lockBoot(t, path)
	require.NoError(t, first.Take([]int{1001, 1002}))
	require.ErrorIs(t, first.Take([]int{1003, 1002}), pd.CodeConflict, "an engine of this boot had it")
	require.ErrorIs(t, first.Take([]int{1004, 1004}), pd.CodeConflict)
	require.False(t, first.Used(1003), "what was refused is not taken")
	require.NoError(t, first.Close())

	second := lockBoot(t, path)
	list := second.List()
	slices.Sort(list)
	require.Equal(t, []int{1001, 1002}, list)
	require.ErrorContains(t, second.Take([]int{1001}), "port 1001 was used by an earlier engine of this node")
	require.NoError(t, second.Close())

	// A line that was being written when its process was killed says nothing.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"boot_id":"00`)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	third := lockBoot(t, path)
	require.True(t, third.Used(1001))
	require.NoError(t, third.Close())

	// Damage elsewhere is not guessed at.
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, append([]byte("not a record\n"), b...), 0o600))
	_, err = owner.LockBoot(t.Context(), path, pd.NewBootID())
	require.ErrorIs(t, err, pd.CodeInvalidConfig)
	require.ErrorContains(t, err, "line 1")
	require.ErrorContains(t, err, "move it away")
}

// The last 64 boots and the last 24 hours count; what is older is free again.
func TestOldPortsAreFreeAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.lock")
	var text strings.Builder
	for i := range 70 {
		age := 48 * time.Hour
		if i == 1 {
			age = time.Hour // long ago by count, but not by time
		}
		fmt.Fprintf(&text, "{\"boot_id\":%q,\"at\":%q,\"ports\":[%d]}\n", pd.NewBootID(), time.Now().Add(-age).UTC().Format(time.RFC3339), 2000+i)
	}
	require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o600))
	l := lockBoot(t, path)
	defer l.Close()
	for i := range 70 {
		require.Equal(t, i == 1 || i >= 6, l.Used(2000+i), "port of boot %d", i)
	}
}

// The node's ports survive it: a next boot over the same registry listens
// elsewhere.
func TestEnginesTakeFreshPorts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.lock")
	seen := map[string]bool{}
	for range 3 {
		l := lockBoot(t, path)
		o := sideOptions{topology: two}.withDefaults(t)
		c := o.config(nil)
		c.Ports = l
		s := startSide(t, o, c)
		for range 2 {
			for _, r := range s.Registry().Ranks {
				require.False(t, seen[r.Endpoint], "%s was used before", r.Endpoint)
				seen[r.Endpoint] = true
			}
			require.NoError(t, s.Fence(t.Context()))
		}
		require.Len(t, l.List(), len(seen)+2)
		for _, r := range s.Registry().Ranks {
			seen[r.Endpoint] = true
		}
		require.NoError(t, s.Close(t.Context()))
		require.NoError(t, l.Close())
	}
}
