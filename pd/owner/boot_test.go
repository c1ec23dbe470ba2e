package owner_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
)

func TestBootLockIsRefusedWhileAnEarlierBootLives(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.lock")
	first, err := owner.LockBoot(t.Context(), path, pd.NewBootID())
	require.NoError(t, err)
	short, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	_, err = owner.LockBoot(short, path, pd.NewBootID())
	require.ErrorIs(t, err, pd.CodeConflict)
	require.ErrorContains(t, err, "pid")
	require.NoError(t, first.Close())
	second, err := owner.LockBoot(t.Context(), path, pd.NewBootID())
	require.NoError(t, err)
	require.NoError(t, second.Close())
}

// Another process that shares the lock keeps it after the first one let go: it is
// one of the processes of that boot.
func TestBootLockLivesAsLongAsItsLastHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.lock")
	first, err := owner.LockBoot(t.Context(), path, pd.NewBootID())
	require.NoError(t, err)
	child := exec.Command("flock", "-s", path, "-c", "echo held; exec sleep 600")
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	_, err = out.Read(make([]byte, 5))
	require.NoError(t, err)
	require.NoError(t, first.Close())
	short, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	_, err = owner.LockBoot(short, path, pd.NewBootID())
	require.ErrorIs(t, err, pd.CodeConflict)
	require.NoError(t, syscall.Kill(-child.Process.Pid, syscall.SIGKILL))
	_ = child.Wait() // killed
	next, err := owner.LockBoot(t.Context(), path, pd.NewBootID())
	require.NoError(t, err)
	require.NoError(t, next.Close())
}
