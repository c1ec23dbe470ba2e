package fleet

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// atOnce is how many tests run at once: they wait, for ssh above all, for far
// longer than they compute.
const atOnce = "6"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cluster.Main(m)
}
