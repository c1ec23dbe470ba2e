package owner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// bootPoll is how often a start looks whether the processes of an earlier boot
// are gone.
const bootPoll = 100 * time.Millisecond

// BootLock is the liveness of a boot: every process of it holds a shared lock on
// the file from before it registers memory until it ends. The kernel drops the
// lock with the last of them, however it ends. The content is evidence for
// people and proves nothing.
type BootLock struct {
	file *os.File
}

// bootRecord is what the file tells people.
type bootRecord struct {
	Boot        pd.BootID `json:"boot_id"`
	PID         int       `json:"pid"`
	Started     time.Time `json:"started"`
	MachineBoot string    `json:"machine_boot_id"`
	Namespace   string    `json:"pid_namespace"`
}

// LockBoot takes the lock of a node's boot. It waits for holders of an earlier
// boot until the context ends and then refuses: an owner that still lives would
// go on taking writes for memory that the new boot believes to be its own. The
// caller keeps the lock until the process ends, or Close.
func LockBoot(ctx context.Context, path string, boot pd.BootID) (*BootLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("boot lock: %w", err)
	}
	poll := time.NewTicker(bootPoll)
	defer poll.Stop()
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("boot lock %s: %w", path, err)
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			holder := readRecord(f)
			f.Close()
			return nil, &pd.Error{Op: "start", Code: pd.CodeConflict, Text: fmt.Sprintf("a process of an earlier boot of this node still runs and holds %s (%s); stop it first", path, holder)}
		}
	}
	l := &BootLock{file: f}
	if err := l.write(boot); err != nil {
		f.Close()
		return nil, err
	}
	// From here on other processes of this boot may hold it, too.
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil {
		f.Close()
		return nil, fmt.Errorf("boot lock %s: %w", path, err)
	}
	return l, nil
}

func readRecord(f *os.File) string {
	b := make([]byte, 512)
	n, _ := f.ReadAt(b, 0) // whatever is there; it may be empty
	var r bootRecord
	if json.Unmarshal(b[:n], &r) != nil {
		return "it says nothing of itself"
	}
	return fmt.Sprintf("boot %s, pid %d, since %s", r.Boot, r.PID, r.Started.Format(time.RFC3339))
}

func (l *BootLock) write(boot pd.BootID) error {
	machine, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // absent without /proc
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	b, err := json.Marshal(bootRecord{boot, os.Getpid(), time.Now().UTC(), strings.TrimSpace(string(machine)), namespace})
	if err == nil {
		err = l.file.Truncate(0)
	}
	if err == nil {
		_, err = l.file.WriteAt(append(b, '\n'), 0)
	}
	if err != nil {
		return fmt.Errorf("boot lock: %w", err)
	}
	return nil
}

// Close gives the lock up. Nothing of the boot may use registered memory after
// it.
func (l *BootLock) Close() error { return l.file.Close() }
