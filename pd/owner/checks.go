package owner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// CheckPidfd says why this process cannot hold other processes by descriptors,
// and what to do about it; nil if it can. Without them a process can only be
// signalled by its number, which may be another's by then.
func CheckPidfd() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err == nil {
		err = unix.PidfdSendSignal(fd, 0, nil, 0)
		unix.Close(fd)
	}
	return explainPidfd(err)
}

func explainPidfd(err error) error {
	fix := ""
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSYS):
		fix = "the kernel is older than 5.3, or a system call filter hides it; owner processes need it, --owners in-process does not"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		fix = "a container's system call filter refuses it: allow pidfd_open and pidfd_send_signal, or use --owners in-process"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		fix = "no file descriptor is left: raise the limit (ulimit -n, LimitNOFILE=)"
	default:
		fix = "owner processes need it, --owners in-process does not"
	}
	return &pd.Error{Op: "check pidfd", Code: pd.CodeInvalidConfig, Text: "pidfd_open: " + fix, Err: err}
}

// CheckHostname says why a data-plane address is of no use to peers, and what to
// do about it; nil if it resolves.
func CheckHostname(ctx context.Context, hostname string) error {
	if net.ParseIP(hostname) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := net.DefaultResolver.LookupHost(ctx, hostname); err != nil {
		return &pd.Error{Op: "check transfer_hostname", Code: pd.CodeInvalidConfig, Text: fmt.Sprintf("%q does not resolve on this machine; give the entry an address, or a name that both nodes know", hostname), Err: err}
	}
	return nil
}

// checkLocked refuses a limit on locked memory that a rank's regions exceed.
func checkLocked(facts transfer.Facts, rank pd.Rank, extents transfer.Extents) error {
	if !facts.LocksMemory {
		return nil
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return fmt.Errorf("read the limit on locked memory: %w", err)
	}
	return explainLocked(limit.Cur, rank, extents)
}

func explainLocked(limit uint64, rank pd.Rank, extents transfer.Extents) error {
	var need int64
	for _, bytes := range extents {
		need += bytes
	}
	if limit == math.MaxUint64 || uint64(need) <= limit {
		return nil
	}
	return pd.Errorf(pd.CodeInvalidConfig, "check locked memory", "the regions of rank %d need %d bytes of locked memory, the limit (RLIMIT_MEMLOCK) is %d: "+
		"raise it with ulimit -l unlimited, LimitMEMLOCK=infinity or --ulimit memlock=-1", rank, need, limit)
}

// dialTimeout bounds one check of an own port.
const dialTimeout = 2 * time.Second

// checkBound proves that peers of this machine's network reach what an engine
// says that it listens on: an engine may have bound another port or address than
// it announces.
func checkBound(ctx context.Context, hostname string, rank pd.Rank, ports []int) error {
	d := net.Dialer{Timeout: dialTimeout}
	for _, port := range ports {
		address := net.JoinHostPort(hostname, fmt.Sprint(port))
		conn, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return &pd.Error{Op: "check data-plane port", Code: pd.CodeInvalidConfig, Text: fmt.Sprintf(
				"nothing listens on %s, which the engine of rank %d announces; check transfer_hostname and the machine's firewall", address, rank), Err: err}
		}
		conn.Close()
	}
	return nil
}

// checkProvider asks a provider what it can tell before it is opened.
func checkProvider(ctx context.Context, p transfer.Provider, hostname string) error {
	if c, ok := p.(transfer.Checker); ok {
		return c.Check(ctx, hostname)
	}
	return nil
}
