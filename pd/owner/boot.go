package owner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// bootPoll is how often a start looks whether the processes of an earlier boot
// are gone.
const bootPoll = 100 * time.Millisecond

// BootLock is the liveness of a boot: every process of it holds a shared lock on
// the boot's registry file from before it registers memory until it ends; owner
// processes inherit the node's. The kernel drops the lock with the last of them,
// however it ends.
//
// The registry also remembers the data-plane ports of earlier boots; see Ports.
// What it says of processes is evidence for people and proves nothing.
//
// A start writes the registry anew, into a file that it has locked before it
// gives it the name; from then on lines are only added. So a process that is
// killed in the middle leaves at most its last line torn, and nobody can come
// between one lock and the next.
type BootLock struct {
	// constant
	file *os.File
	boot pd.BootID

	mu   sync.Mutex
	used map[int]struct{}
}

var _ Ports = (*BootLock)(nil)

// LockBoot takes the lock of a node's boot. It waits for holders of an earlier
// boot until the context ends and then refuses, naming who lives: an owner that
// still lives would go on taking writes for memory that the new boot believes to
// be its own. The caller keeps the lock until the process ends, or Close.
func LockBoot(ctx context.Context, path string, boot pd.BootID) (*BootLock, error) {
	old, err := waitForOthers(ctx, path)
	if err != nil {
		return nil, err
	}
	defer old.Close()
	history, err := readRegistry(old)
	if err != nil {
		return nil, &pd.Error{Op: "start", Code: pd.CodeInvalidConfig, Text: fmt.Sprintf("boot registry %s; without it nobody knows which data-plane ports late writers may still address: "+
			"move it away once every node that wrote to this one was restarted, or after %v", path, portMemory), Err: err}
	}
	l := &BootLock{boot: boot, used: map[int]struct{}{}}
	next := path + ".new"
	// What is left of a start that was killed is nobody's: its name was never
	// given to it.
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("boot registry: %w", err)
	}
	if l.file, err = os.OpenFile(next, os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600); err != nil {
		return nil, fmt.Errorf("boot registry: %w", err)
	}
	now := time.Now().UTC()
	history = prune(history, now)
	for _, b := range history {
		for _, p := range b.Ports {
			l.used[p] = struct{}{}
		}
	}
	self := bootRecord{
		Boot: boot, At: now, MachineBoot: machineBoot(), Namespace: pidNamespace(),
		Processes: []ProcessRecord{{Name: "node", PID: os.Getpid(), Start: startTime(os.Getpid())}},
	}
	err = syscall.Flock(int(l.file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if err == nil {
		err = l.append(append(history, self)...)
	}
	if err == nil {
		err = l.file.Sync()
	}
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		l.file.Close()
		return nil, fmt.Errorf("boot registry %s: %w", path, err)
	}
	return l, nil
}

// waitForOthers gives the registry file, locked exclusively, which nobody else
// holds.
func waitForOthers(ctx context.Context, path string) (*os.File, error) {
	poll := time.NewTicker(bootPoll)
	defer poll.Stop()
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("boot registry: %w", err)
		}
		if err := localFile(f); err != nil {
			f.Close()
			return nil, err
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		// The name may have been given to the file of another start meanwhile.
		if err == nil && sameFile(f, path) {
			return f, nil
		}
		if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("boot registry %s: %w", path, err)
		}
		select {
		case <-poll.C:
			f.Close()
		case <-ctx.Done():
			who := holders(f)
			f.Close()
			return nil, &pd.Error{Op: "start", Code: pd.CodeConflict, Text: fmt.Sprintf("a process of an earlier boot of this node still runs and holds %s (%s); stop it first", path, who)}
		}
	}
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

// networkFilesystems are those on which a lock of one machine may mean nothing on
// another, by the number that statfs gives.
var networkFilesystems = map[int64]string{
	0x6969: "NFS", 0xff534d42: "CIFS", 0xfe534d42: "SMB", 0x517b: "SMB", 0x01021997: "9p", 0x47504653: "GPFS", 0x0bd00bd0: "Lustre", 0xaad7aaea: "Panasas", 0x5346414f: "AFS", 0x00c36400: "Ceph",
}

// localFile refuses a registry whose lock other machines may not see.
func localFile(f *os.File) error {
	var s syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &s); err != nil {
		return fmt.Errorf("boot registry: %w", err)
	}
	if name, network := networkFilesystems[int64(s.Type)&0xffffffff]; network {
		return pd.Errorf(pd.CodeInvalidConfig, "start", "the state folder of %s is on a network filesystem (%s), where no lock proves that an earlier boot is dead: set observability.root to a local folder", f.Name(), name)
	}
	return nil
}

// holders says who of the last boot still lives, as far as its records tell.
func holders(f *os.File) string {
	history, err := readRegistry(f)
	if err != nil || len(history) == 0 {
		return "it says nothing of itself"
	}
	last := history[len(history)-1]
	who := fmt.Sprintf("boot %s, since %s", last.Boot, last.At.Format(time.RFC3339))
	if last.MachineBoot != machineBoot() || last.Namespace != pidNamespace() {
		return who + ", in another container or another life of this machine: its process ids mean nothing here"
	}
	var alive []string
	for _, p := range last.Processes {
		if startTime(p.PID) == p.Start && p.Start != "" {
			alive = append(alive, fmt.Sprintf("%s, pid %d", p.Name, p.PID))
		}
	}
	if len(alive) == 0 {
		return who + ", by a process that it did not record"
	}
	return who + ": " + strings.Join(alive, "; ")
}

// Record adds processes of this boot to the registry, for people.
func (l *BootLock) Record(processes ...ProcessRecord) error {
	for i := range processes {
		processes[i].Start = startTime(processes[i].PID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.append(bootRecord{Boot: l.boot, At: time.Now().UTC(), Processes: processes})
}

// Used implements Ports.
func (l *BootLock) Used(port int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, used := l.used[port]
	return used
}

// List implements Ports.
func (l *BootLock) List() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]int, 0, len(l.used))
	for p := range l.used {
		out = append(out, p)
	}
	return out
}

// Take implements Ports. The ports are in the file before it returns.
func (l *BootLock) Take(ports []int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[int]struct{}{}
	for _, p := range ports {
		_, used := l.used[p]
		_, twice := seen[p]
		if used || twice {
			return pd.Errorf(pd.CodeConflict, "take data-plane ports", "port %d was used by an earlier engine of this node, of the last %d boots or %v: a late writer may still address it", p, portBoots, portMemory)
		}
		seen[p] = struct{}{}
	}
	if err := l.append(bootRecord{Boot: l.boot, At: time.Now().UTC(), Ports: ports}); err != nil {
		return err
	}
	for _, p := range ports {
		l.used[p] = struct{}{}
	}
	return nil
}

// Close gives this process's share of the lock up. Nothing of the process may use
// registered memory after it.
func (l *BootLock) Close() error { return l.file.Close() }
