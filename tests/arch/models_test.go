package arch

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// modelWords are facts of one model; they belong to its adapter.
var modelWords = regexp.MustCompile(`(?i)deepseek|dsv4|dspark|\bhca_|\bcsa_|cmp_c\d|idx_k|idx_scale`)

// Behaviour 2: the generic core and the routers name no model. The error of a
// launcher that supports one model only may.
func TestCoreNamesNoModel(t *testing.T) {
	checked := 0
	for _, f := range load(t) {
		if f.isTest() || !strings.HasPrefix(f.path, "pd/") && !strings.HasPrefix(f.path, "router/") {
			continue
		}
		text, err := os.ReadFile(root + "/" + f.path)
		require.NoError(t, err)
		require.Empty(t, modelWords.FindString(string(text)), f.path)
		checked++
	}
	require.Greater(t, checked, 100)
}
