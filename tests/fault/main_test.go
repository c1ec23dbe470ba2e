package fault

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// atOnce is how many tests run at once: they wait for far longer than they
// compute. A run for the record does so even more.
const (
	atOnce       = "5"
	atOnceRecord = "12"
)

func TestMain(m *testing.M) {
	flag.Parse()
	parallel := atOnce
	if *lateRounds > 0 {
		parallel = atOnceRecord
	}
	if err := flag.Set("test.parallel", parallel); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cluster.Main(m)
}
