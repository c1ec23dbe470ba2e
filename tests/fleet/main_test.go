package fleet

import (
	"testing"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }
