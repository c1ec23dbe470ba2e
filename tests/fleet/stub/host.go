package stub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// Name is the file name of the program.
const Name = "stub-replica"

var built struct {
	sync.Mutex
	err  error
	path string
}

// Program builds the program once per run, below cluster.Bin, and gives its path:
// the test binary's TestMain is cluster.Main.
func Program(t testing.TB) string {
	t.Helper()
	bin := cluster.Bin(t)
	built.Lock()
	defer built.Unlock()
	if built.path == "" && built.err == nil {
		built.path = filepath.Join(bin, Name)
		c := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", built.path, "./tests/fleet/stub/"+Name)
		c.Dir, c.Env = cluster.Root(), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("build %s: %w\n%s", Name, err, out)
		}
	}
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

// Violations are the times when a replica found its card taken; there must be
// none.
func Violations(t testing.TB, cards string) []string { return noted(t, cards, violations) }

// Starts are the replicas that have taken their cards, one line each.
func Starts(t testing.TB, cards string) []string { return noted(t, cards, starts) }

func noted(t testing.TB, cards, file string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(cards, file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// CardHeld says that some process holds a card's lock. It does not try the lock,
// which a replica might find taken then.
func CardHeld(t testing.TB, cards string, device int) bool {
	t.Helper()
	info, err := os.Stat(filepath.Join(cards, fmt.Sprintf("card-%d", device)))
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	inode := fmt.Sprintf(":%d", info.Sys().(*syscall.Stat_t).Ino)
	for line := range strings.Lines(string(locks)) {
		if fields := strings.Fields(line); len(fields) > 5 && fields[1] == "FLOCK" && strings.HasSuffix(fields[5], inode) {
			return true
		}
	}
	return false
}

// Bury kills every process that a fleet router has launched with a log folder
// below dir, and is for the end of a test.
func Bury(dir string) {
	processes, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, p := range processes {
		b, err := os.ReadFile(p)
		if err != nil || !bytes.Contains(append([]byte{0}, b...), []byte("\x00PYPTO_FLEET_SLOT="+dir+"/")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// client keeps no connection, which a test would leave behind.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// Post orders something of a running stub: /toggle, /hang, /control, and of the
// program /crash, which breaks the connection, and /silence.
func Post(t testing.TB, url string, body any) {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.Post(url, "application/json", bytes.NewReader(b))
	switch {
	case strings.HasSuffix(url, "/crash") && err != nil:
		return
	case err != nil:
		t.Fatal(err)
	}
	defer r.Body.Close()
	if out, _ := io.ReadAll(r.Body); r.StatusCode >= 300 {
		t.Fatalf("%s: %d %s", url, r.StatusCode, out)
	}
}

// Seen asks a running stub for its record.
func Seen(t testing.TB, url string) (out Record) {
	t.Helper()
	r, err := client.Get(url + "/record")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(r.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}
