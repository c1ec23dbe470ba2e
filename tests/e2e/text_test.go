package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// promptSizes touch every boundary: of pages (32, 128), of the window (128), of
// chunks (128 here) and of what a table holds.
var promptSizes = []int{1, 31, 32, 33, 127, 128, 129, 255, 256, 257, 383, 512, 640, 896, 1000, 1024, 1500, 2048, 3000, 4096}

// Behaviour 150, 161: text through a pair equals the text of one process, for
// every prompt length, streamed or not, whatever the two layouts are.
func TestTextThroughAPairEqualsTheCombinedText(t *testing.T) {
	t.Parallel()
	for _, layouts := range [][2]string{{"dp4tp4", "dp4tp4"}, {"dp4tp4", "dp16tp1"}, {"dp16tp1", "dp4tp4"}, {"dp4tp1", "dp2tp4"}} {
		t.Run(layouts[0]+" to "+layouts[1], func(t *testing.T) {
			t.Parallel()
			combined := cluster.SharedCombined(t)
			c := cluster.Start(t, cluster.Options{PLayout: layouts[0], DLayout: layouts[1]})
			for i, size := range promptSizes {
				for _, stream := range []bool{false, true} {
					// Every prompt is cold: none has a prefix of another.
					seed := fmt.Sprintf("%c", 'a'+rune(i))
					if stream {
						seed = fmt.Sprintf("%c", 'A'+rune(i))
					}
					q := cluster.Completion{Prompt: cluster.Prompt(seed, size), Max: []int{1, 8, 16, 128}[i%4], Stream: stream}
					got := cluster.MustComplete(t, c.URL, q)
					assert.Equal(t, combined.Text(t, q), got.Text, "%d tokens, stream %t", size, stream)
					assert.Zero(t, got.CachedTokens, "%d tokens, stream %t", size, stream)
				}
			}
			c.AssertIdle(t)
		})
	}
}
