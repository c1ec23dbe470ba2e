//go:build !cgo || !linux

package dl

// Available says whether this program can call native libraries.
const Available = false

func open(string) (uintptr, error) { return 0, ErrNoCgo }

func lookup(uintptr, string) uintptr { return 0 }

func setenv(string, string) error { return ErrNoCgo }

func inheritable() map[int]bool { return nil }

func closeOnExec(int) {}

func keepSignals(call func()) { call() }
