package cluster

import (
	"os"
	"os/exec"
	"testing"
)

// Tool finds a program that is not of this project, of a Debian package. Where it
// is not installed the test is skipped, and fails where CI is set: there everything
// must run.
func Tool(t testing.TB, program, debian string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatalf("%s is not installed (Debian: %s)", program, debian)
	default:
		t.Skipf("%s is not installed (Debian: %s)", program, debian)
	}
	return path
}
