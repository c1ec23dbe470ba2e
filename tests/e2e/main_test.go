// Package e2e tests the built programs as separate processes.
package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// contains reports that a text lacks a part.
func contains(text, part string) error {
	if !strings.Contains(text, part) {
		return fmt.Errorf("want %q in:\n%s", part, text)
	}
	return nil
}
