package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// The programs that are built.
const (
	Serving = "pypto-serving"
	Router  = "pypto-pd-router"
	Pdctl   = "pypto-pdctl"
	Fleet   = "pypto-serving-router"
)

var programs = []string{Serving, Router, Pdctl, Fleet}

// run is what all tests of one test binary share. Main ends it.
var run struct {
	mu sync.Mutex
	// guarded by mu
	dir      string
	built    error
	launcher *launcher
	combined *Combined
}

// Main is the body of TestMain: it runs the tests, ends what they share and
// reports goroutines that are left.
func Main(m *testing.M) {
	code := m.Run()
	if err := end(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func end() error {
	run.mu.Lock()
	defer run.mu.Unlock()
	var err error
	if run.combined != nil {
		err = run.combined.end()
	}
	if run.launcher != nil {
		run.launcher.end()
	}
	if run.dir != "" {
		os.RemoveAll(run.dir)
	}
	releasePorts()
	return err
}

// Root is the folder of the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../../..")
}

// Bin is the folder with the built programs; it lives as long as the run.
func Bin(t testing.TB) string {
	t.Helper()
	run.mu.Lock()
	defer run.mu.Unlock()
	prepareLocked()
	if run.built != nil {
		t.Fatal(run.built)
	}
	return filepath.Join(run.dir, "bin")
}

// prepareLocked builds the programs and starts the launcher, once.
func prepareLocked() {
	if run.launcher != nil || run.built != nil {
		return
	}
	if run.dir, run.built = os.MkdirTemp("", "pypto-pd-e2e-"); run.built != nil {
		return
	}
	if run.built = build(filepath.Join(run.dir, "bin"), []string{"CGO_ENABLED=0"}, "-trimpath"); run.built == nil {
		run.launcher = newLauncher()
	}
}

// RaceBin is Bin with programs that have the race detector built in, as the
// tests themselves have; without it in the tests it is Bin.
func RaceBin(t testing.TB) string {
	t.Helper()
	bin := Bin(t)
	if !withRace {
		return bin
	}
	raced.Lock()
	defer raced.Unlock()
	bin = filepath.Join(filepath.Dir(bin), "race")
	if !raced.built {
		// The flags are those of go test -race, whose archives are reused.
		if err := build(bin, nil, "-race"); err != nil {
			t.Fatal(err)
		}
		raced.built = true
	}
	return bin
}

// NativeBin is Bin with programs that can load C libraries, as make build makes
// pypto-serving; with the race detector where the tests have it.
func NativeBin(t testing.TB) string {
	t.Helper()
	if withRace {
		return RaceBin(t)
	}
	bin := Bin(t)
	raced.Lock()
	defer raced.Unlock()
	bin = filepath.Join(filepath.Dir(bin), "native")
	if !raced.native {
		if err := build(bin, []string{"CGO_ENABLED=1"}, "-trimpath"); err != nil {
			t.Fatal(err)
		}
		raced.native = true
	}
	return bin
}

// raced is apart from run, because this build takes long and nobody else needs
// to wait for it.
var raced struct {
	sync.Mutex
	built, native bool
}

// build builds the programs. The version that go build reads from git does not
// matter here, and a tree that git refuses must build too.
func build(into string, env []string, flags ...string) error {
	args := append([]string{"build", "-buildvcs=false", "-o", into + string(filepath.Separator)}, flags...)
	for _, program := range programs {
		args = append(args, "./cmd/"+program)
	}
	c := exec.Command("go", args...)
	c.Dir = Root()
	c.Env = append(os.Environ(), env...)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}
