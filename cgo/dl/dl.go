package dl

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// ErrNoCgo is the answer of a program that was built with CGO_ENABLED=0.
var ErrNoCgo = errors.New("this program was built without cgo and cannot call native libraries; build it with CGO_ENABLED=1 and a C compiler")

// Request says which library is wanted and where it may be.
type Request struct {
	// What names the library for people, Need what a user has to do to have it.
	What, Need string
	// Path is the explicit path of the file; "" means to search.
	Path string
	// Env is the environment variable that holds a path if Path is "".
	Env string
	// Names are file names to look for in the usual places, best first.
	Names []string
	// Dirs are places to look in before the usual ones.
	Dirs []string
	// AllowGoRuntime lets a library in that brings a second Go runtime.
	AllowGoRuntime bool
}

// Info is the record of a loaded library.
type Info struct {
	// Path is the file that was loaded, with symbolic links followed.
	Path string
	// Source says what found it: "explicit path", "environment PYPTO_…" or "search".
	Source string
	// SHA256 is the digest of the file in hexadecimal. These libraries have no
	// version symbol, so it is their version.
	SHA256 string
	// SoName is the name that the file gives itself, or "".
	SoName string
}

// Library is a loaded library. It is never unloaded.
type Library struct {
	info   Info
	handle uintptr
}

// Info tells what was loaded.
func (l *Library) Info() Info { return l.info }

var (
	mu     sync.Mutex // held while loading: two loads would take each other's side effects for their own
	loaded = map[string]*Library{}
)

// Open finds a library and loads it, or returns the one that is loaded from the
// same file. The error says what was looked for, where, and what is needed.
func Open(r Request) (*Library, error) {
	path, source, err := Find(r)
	if err != nil {
		return nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	if l := loaded[path]; l != nil {
		return l, nil
	}
	soName, err := inspect(path, r.AllowGoRuntime)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", r.What, err)
	}
	sum, err := digest(path)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", r.What, err)
	}
	handle, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("load %s from %s: %w", r.What, path, err)
	}
	l := &Library{info: Info{Path: path, Source: source, SHA256: sum, SoName: soName}, handle: handle}
	loaded[path] = l
	return l, nil
}

// Identify says which file Open would load, with its digest, and loads nothing.
// Built without cgo it answers ErrNoCgo, as Open does.
func Identify(r Request) (Info, error) {
	if !Available {
		return Info{}, ErrNoCgo
	}
	path, source, err := Find(r)
	if err != nil {
		return Info{}, err
	}
	sum, err := digest(path)
	if err != nil {
		return Info{}, fmt.Errorf("read %s: %w", r.What, err)
	}
	return Info{Path: path, Source: source, SHA256: sum}, nil
}

func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Symbol is one function to resolve.
type Symbol struct {
	Name     string
	Optional bool
}

// Resolve looks every symbol up. Addresses come in the order of the symbols; an
// absent optional one is 0. Absent required ones make one error that names all.
func (l *Library) Resolve(symbols []Symbol) ([]uintptr, error) {
	addresses := make([]uintptr, len(symbols))
	var missing []string
	for i, s := range symbols {
		if err := CheckString("symbol", s.Name); err != nil {
			return nil, err
		}
		addresses[i] = lookup(l.handle, s.Name)
		if addresses[i] == 0 && !s.Optional {
			missing = append(missing, s.Name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s lacks %s: it is another library, or one built without its C API", l.info.Path, strings.Join(missing, ", "))
	}
	return addresses, nil
}

// Setenv sets a variable where C code sees it, which the environment of Go is
// not; an empty value removes it. It must be called before the library that
// reads the variable is loaded.
func Setenv(name, value string) error {
	if name == "" || strings.ContainsAny(name, "=\x00") {
		return fmt.Errorf("environment variable %q: not a name", name)
	}
	if strings.ContainsRune(value, 0) {
		return fmt.Errorf("environment variable %s: its value has a zero byte", name)
	}
	return setenv(name, value)
}

// CheckString refuses what must not reach C: an empty string, and one that C
// would see the beginning of.
func CheckString(what, s string) error {
	switch {
	case s == "":
		return fmt.Errorf("%s is empty", what)
	case strings.ContainsRune(s, 0):
		return fmt.Errorf("%s has a zero byte", what)
	}
	return nil
}

// Guard runs a call of foreign code that may start things, such as a listener,
// and undoes what such code does to the whole process: descriptors that it
// left behind are closed on exec, so that no child keeps a port open (those of
// Go are so marked already), and signal dispositions are put back, because a
// handler that is not Go's and runs on a goroutine's stack breaks the program.
func Guard(call func()) {
	before := inheritable()
	keepSignals(call)
	for fd := range inheritable() {
		if !before[fd] {
			closeOnExec(fd)
		}
	}
}
