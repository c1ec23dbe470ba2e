package fakelib

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"unsafe"
)

//go:embed c
var sources embed.FS

// EnvKnobs is the variable that tells the libraries where their knobs are. C
// code must see it before they are loaded.
const EnvKnobs = "FAKELIB_KNOBS"

// Libraries are the compiled libraries and the knobs of one process, or of
// several that share the file.
type Libraries struct {
	// TransferEngine moves host memory over TCP; AscendTransferEngine moves device
	// memory of Ascend, which needs the runtime beside it.
	TransferEngine, AscendTransferEngine, Ascend string
	// Bench is a C program that makes the same transfers as the Go benchmark.
	Bench string
	// Knobs is the file of the knobs, for EnvKnobs.
	Knobs string

	shared *[slots]int64
}

// build compiles once per process.
var build = sync.OnceValues(func() (*Libraries, error) {
	compiler, err := compilerPath()
	if err != nil {
		return nil, err
	}
	dir, err := compiled(compiler)
	if err != nil {
		return nil, err
	}
	return &Libraries{
		TransferEngine:       filepath.Join(dir, "libtransfer_engine.so"),
		AscendTransferEngine: filepath.Join(dir, "ascend", "libtransfer_engine.so"),
		Ascend:               filepath.Join(dir, "ascend", "libascendcl.so"),
		Bench:                filepath.Join(dir, "bench"),
	}, nil
})

// ErrNoCompiler says that this machine has no C compiler.
var ErrNoCompiler = errors.New("no C compiler: set CC or install cc")

func compilerPath() (string, error) {
	for _, name := range []string{os.Getenv("CC"), "cc", "gcc", "clang"} {
		if name == "" {
			continue
		}
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoCompiler
}

// compiled gives the folder of the libraries, made by this process or by an
// earlier one from the same sources.
func compiled(compiler string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, compiler, strings.Join(flags, " "))
	names := []string{"knobs.h", "knobs.c", "te.c", "acl.c", "bench.c"}
	text := map[string][]byte{}
	for _, name := range names {
		b, err := sources.ReadFile("c/" + name)
		if err != nil {
			return "", err
		}
		text[name] = b
		fmt.Fprintf(h, "%s %d\n%s", name, len(b), b)
	}
	final := filepath.Join(os.TempDir(), fmt.Sprintf("pypto-fakelib-%d-%s", os.Getuid(), hex.EncodeToString(h.Sum(nil)[:12])))
	if owned(final) {
		return final, nil
	}
	dir, err := os.MkdirTemp("", "pypto-fakelib-build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	for name, b := range text {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return "", err
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "ascend"), 0o700); err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"-o", "libtransfer_engine.so", "-shared", "te.c", "knobs.c", "-ldl"},
		{"-o", "ascend/libascendcl.so", "-shared", "acl.c", "knobs.c", "-Wl,-soname,libascendcl.so"},
		{"-o", "bench", "bench.c", "-ldl"},
		{"-o", "ascend/libtransfer_engine.so", "-shared", "-DFAKE_ASCEND", "te.c", "knobs.c", "-Lascend", "-lascendcl", "-Wl,-rpath,$ORIGIN", "-ldl"},
	} {
		c := exec.Command(compiler, append(append([]string{}, flags...), args...)...)
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			return "", fmt.Errorf("compile %s: %w\n%s", args[1], err, out)
		}
	}
	// Another process may have been faster; its libraries are the same.
	if err := os.Rename(dir, final); err != nil && !owned(final) {
		return "", err
	}
	return final, nil
}

var flags = []string{"-std=c11", "-O2", "-g", "-fPIC", "-fexceptions", "-pthread", "-Wall", "-Wextra"}

// owned says whether a folder is there and nobody else can change it.
func owned(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o022 != 0 {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Getuid()
}

// Build compiles the libraries, if nobody has, and opens a file of knobs in
// dir, which is made if it is not there. The caller tells the libraries about
// it through EnvKnobs.
func Build(dir string) (*Libraries, error) {
	l, err := build()
	if err != nil {
		return nil, err
	}
	mine := *l
	mine.Knobs = filepath.Join(dir, "knobs")
	f, err := os.OpenFile(mine.Knobs, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(slots * 8); err != nil {
		return nil, err
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, slots*8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", mine.Knobs, err)
	}
	// The mapping lives as long as the process, as the libraries do.
	mine.shared = (*[slots]int64)(unsafe.Pointer(unsafe.SliceData(b)))
	return &mine, nil
}
