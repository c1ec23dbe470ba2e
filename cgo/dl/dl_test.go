package dl

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// compile makes a shared library from C, in a folder of its own.
func compile(t *testing.T, name, text string, args ...string) string {
	t.Helper()
	if !Available {
		t.Skip(ErrNoCgo)
	}
	dir := t.TempDir()
	source, library := filepath.Join(dir, "x.c"), filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(source, []byte(text), 0o600))
	out, err := exec.Command("cc", append([]string{"-shared", "-fPIC", "-o", library, source}, args...)...).CombinedOutput()
	require.NoError(t, err, string(out))
	real, err := filepath.EvalSymlinks(library)
	require.NoError(t, err)
	return real
}

func request(path string) Request {
	return Request{What: "the thing", Need: "get one", Path: path, Env: "DL_TEST_LIBRARY", Names: []string{"libdltest.so"}}
}

const harmless = "int answer(void) { return 42; }"

func TestOpenByPath(t *testing.T) {
	path := compile(t, "libdltest.so", harmless, "-Wl,-soname,libdltest.so.3")
	l, err := Open(request(path))
	require.NoError(t, err)
	require.Equal(t, path, l.Info().Path)
	require.Equal(t, "explicit path", l.Info().Source)
	require.Equal(t, "libdltest.so.3", l.Info().SoName)
	require.Len(t, l.Info().SHA256, 64)

	link := filepath.Join(t.TempDir(), "other.so")
	require.NoError(t, os.Symlink(path, link))
	again, err := Open(request(link))
	require.NoError(t, err)
	require.Same(t, l, again, "once per file, by whatever name")
}

func TestOpenByEnvironmentAndSearch(t *testing.T) {
	path := compile(t, "libdltest.so", harmless)
	t.Setenv("DL_TEST_LIBRARY", path)
	l, err := Open(request(""))
	require.NoError(t, err)
	require.Equal(t, "environment DL_TEST_LIBRARY", l.Info().Source)

	path = compile(t, "libdltest.so", harmless)
	t.Setenv("DL_TEST_LIBRARY", "")
	t.Setenv("LD_LIBRARY_PATH", "relative:"+filepath.Dir(path))
	l, err = Open(request(""))
	require.NoError(t, err)
	require.Equal(t, "search", l.Info().Source)
	require.Equal(t, path, l.Info().Path)
}

func TestMissingSaysWhatAndWhere(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", "/nowhere/at/all")
	_, err := Open(request(""))
	require.ErrorContains(t, err, "find the thing: no libdltest.so in /nowhere/at/all, ")
	require.ErrorContains(t, err, "/usr/lib")
	require.ErrorContains(t, err, "DL_TEST_LIBRARY is not set; get one")
	_, err = Open(request("/nowhere/x.so"))
	require.ErrorContains(t, err, "find the thing by explicit path: lstat /nowhere: no such file or directory; get one")
	_, err = Open(request(t.TempDir()))
	require.ErrorContains(t, err, "not a regular file")
	_, err = Open(request("zero\x00byte"))
	require.ErrorContains(t, err, "path has a zero byte")

	text := filepath.Join(t.TempDir(), "text.so")
	require.NoError(t, os.WriteFile(text, []byte("not a library"), 0o600))
	_, err = Open(request(text))
	require.ErrorContains(t, err, "load the thing: "+text+" is no shared library")
}

func TestLoaderErrorsAreTold(t *testing.T) {
	path := compile(t, "libdltest.so", "int absent(void); int answer(void) { return absent(); }")
	_, err := Open(request(path))
	require.ErrorContains(t, err, "load the thing from "+path)
	require.ErrorContains(t, err, "undefined symbol: absent", "every symbol is resolved at once")
}

func TestResolve(t *testing.T) {
	l, err := Open(request(compile(t, "libdltest.so", harmless)))
	require.NoError(t, err)
	addresses, err := l.Resolve([]Symbol{{Name: "answer"}, {Name: "absent", Optional: true}})
	require.NoError(t, err)
	require.NotZero(t, addresses[0])
	require.Zero(t, addresses[1])
	_, err = l.Resolve([]Symbol{{Name: "answer"}, {Name: "one"}, {Name: "two"}, {Name: "three", Optional: true}})
	require.ErrorContains(t, err, "lacks one, two: it is another library, or one built without its C API")
	_, err = l.Resolve([]Symbol{{}})
	require.ErrorContains(t, err, "symbol is empty")
}

// TestSymbolsStayPrivate: two libraries with the same names do not meet.
func TestSymbolsStayPrivate(t *testing.T) {
	first, err := Open(request(compile(t, "libdltest.so", harmless)))
	require.NoError(t, err)
	second, err := Open(request(compile(t, "libdltest.so", harmless+"\nint padding[4096];")))
	require.NoError(t, err)
	a, err := first.Resolve([]Symbol{{Name: "answer"}})
	require.NoError(t, err)
	b, err := second.Resolve([]Symbol{{Name: "answer"}})
	require.NoError(t, err)
	require.NotEqual(t, a, b)
}

// disturbing does while it is loaded what libraries of this field do.
const disturbing = `
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
static void handler(int s) { (void)s; }
static int fd;
__attribute__((constructor)) static void disturb(void) {
	signal(SIGPIPE, SIG_IGN);
	signal(SIGSEGV, handler);
	signal(SIGTERM, handler);
	fd = socket(AF_INET, SOCK_STREAM, 0);
}
__attribute__((visibility("default"))) int descriptor(void) { return fd; }
`

func TestLoadingLeavesTheProcessAlone(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("descriptors are listed in /proc")
	}
	before := inheritable()
	_, err := Open(request(compile(t, "libdltest.so", disturbing)))
	require.NoError(t, err)
	require.Equal(t, before, inheritable(), "no child gets the library's socket")

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	defer signal.Stop(signals)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	require.Equal(t, syscall.SIGTERM, <-signals)
	var nothing *Library
	require.Panics(t, func() { _ = nothing.handle + 1 }, "Go still turns a fault into a panic")
	// Ignored SIGPIPE would be inherited by children.
	out, err := exec.Command("grep", "SigIgn", "/proc/self/status").Output()
	require.NoError(t, err)
	mask := strings.Fields(string(out))[1]
	require.Equal(t, "0", string(mask[len(mask)-4]), "SIGPIPE is signal 13: %s", mask)
}

func TestSecondGoRuntimeIsRefused(t *testing.T) {
	if !Available {
		t.Skip(ErrNoCgo)
	}
	if testing.Short() {
		t.Skip("it builds a Go library")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	source := filepath.Join(dir, "main.go")
	require.NoError(t, os.WriteFile(source, []byte("package main\n\nimport \"C\"\n\n//export wrapped\nfunc wrapped() {}\n\nfunc main() {}\n"), 0o600))
	build := exec.Command("go", "build", "-buildmode=c-shared", "-ldflags=-s -w", "-o", filepath.Join(dir, "libwrapper.so"), source)
	build.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GO111MODULE=off")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	_, err = Open(request(filepath.Join(dir, "libwrapper.so")))
	require.ErrorContains(t, err, "libwrapper.so brings a second Go runtime into this process")

	user := compile(t, "libdltest.so", "void wrapped(void); void use(void) { wrapped(); }", "-L"+dir, "-lwrapper", "-Wl,-rpath,"+dir)
	_, err = Open(request(user))
	require.ErrorContains(t, err, "libwrapper.so, needed by libdltest.so, brings a second Go runtime")
	require.ErrorContains(t, err, "without etcd")
	soName, err := inspect(user, true)
	require.NoError(t, err, "unless it is allowed")
	require.Empty(t, soName)
}

func TestSetenv(t *testing.T) {
	for _, name := range []string{"", "A=B", "A\x00"} {
		require.Error(t, Setenv(name, "x"), "%q", name)
	}
	require.Error(t, Setenv("A", "x\x00"))
	if !Available {
		require.ErrorIs(t, Setenv("DL_TEST", "1"), ErrNoCgo)
		return
	}
	require.NoError(t, Setenv("DL_TEST", ""), "it is not there, and is removed")
	require.NoError(t, Setenv("DL_TEST", "1"))
	require.Empty(t, os.Getenv("DL_TEST"), "the environment of Go is another one")
}

func TestWithoutCgo(t *testing.T) {
	if Available {
		t.Skip("this test binary has cgo")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	_, err = Open(Request{What: "the thing", Path: exe, AllowGoRuntime: true})
	require.ErrorIs(t, err, ErrNoCgo)
}
