// Package e2e tests the built programs as separate processes.
package e2e

import (
	"testing"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }
