package conformance

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The specifications number behaviours. A test that shows one names it in a
// comment, "Behaviour 29" or "Behaviours 40, 51 and 52" for those of the PD
// specification, "Fleet behaviour 3" for those of the fleet router's; stories in
// testdata do the same. These lists are what the project claims to have shown.
const shown = "1-11 13-21 27-59 61-65 68-72 74-80 81-88 91-108 110 126-130 132-138 144-159 161-180"

const fleetShown = "1-71 73-91 93-119"

// What went wrong elsewhere is a case of the case-book. A test that shows what
// becomes of it here is named after it and has a comment "Case B02" or "Cases B03,
// B04 and B10". These must have one.
const shownCases = "B01 B02 B03 B04 B05 B06 B08 B10 B11 B13 B14 B15 B22 B23 B24 B25 B27 B28 B29 B33 B34 B36 B37 B48 B50 B53 B60"

// Numbers that decisions of the design have made void or that are shown under
// another number.
var void = map[int]bool{
	12: true, 22: true, 23: true, 24: true, 25: true, 26: true, 60: true, 73: true, 89: true, 115: true, 123: true, 131: true, 139: true, 140: true, 141: true, 142: true,
}

var (
	mention = regexp.MustCompile(`(?i)(fleet\s+)?behaviours?\s+(\d[\d,\s/#-]*(?:(?:and|to)[\s/#]*\d[\d,\s/#-]*)*)`)
	cases   = regexp.MustCompile(`(?i)cases?((?:\s*(?:,|and)?\s*B\d\d\b)+)`)
	oneCase = regexp.MustCompile(`B\d\d`)
	numbers = regexp.MustCompile(`(\d+)(?:\s*(?:-|to)\s*(\d+))?`)
)

// mentioned reads the numbers of one of the specifications.
func mentioned(fleet bool, text string, into map[int]bool) {
	for _, m := range mention.FindAllStringSubmatch(text, -1) {
		if fleet != (m[1] != "") {
			continue
		}
		for _, n := range numbers.FindAllStringSubmatch(m[2], -1) {
			first, _ := strconv.Atoi(n[1])
			last := first
			if n[2] != "" {
				last, _ = strconv.Atoi(n[2])
			}
			for i := first; i <= last && i-first < 200; i++ {
				into[i] = true
			}
		}
	}
}

// eachTest gives every text in which a test may name what it shows.
func eachTest(t *testing.T, f func(text string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 {
			return filepath.SkipDir
		}
		suite := strings.Contains(path, "test/") || strings.Contains(path, "testdata/") && strings.HasSuffix(path, ".txt")
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") && !suite || strings.HasSuffix(path, "behaviours_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			f(string(text))
		}
		return err
	}))
}

func TestClaimedBehavioursHaveATest(t *testing.T) {
	for _, c := range []struct {
		name, shown string
		fleet       bool
		void        map[int]bool
	}{{"pd", shown, false, void}, {"fleet", fleetShown, true, nil}} {
		t.Run(c.name, func(t *testing.T) {
			found := map[int]bool{}
			eachTest(t, func(text string) { mentioned(c.fleet, text, found) })
			claimed := map[int]bool{}
			for _, span := range strings.Fields(c.shown) {
				mentioned(false, "behaviour "+span, claimed)
			}
			require.NotEmpty(t, claimed)
			var missing []int
			for n := range 200 {
				if claimed[n] && !found[n] && !c.void[n] {
					missing = append(missing, n)
				}
			}
			require.Empty(t, missing, "claimed, and no test carries the number")
		})
	}
}

// hazards is how many hazards of the fleet router have been found in others; each
// has a regression test with a comment "Hazard 3".
const hazards = 18

var hazard = regexp.MustCompile(`(?i)\bhazards?\s+(\d+(?:(?:,\s*|\s+and\s+)\d+)*)`)

func TestEveryHazardHasATest(t *testing.T) {
	found := map[int]bool{}
	eachTest(t, func(text string) {
		for _, m := range hazard.FindAllStringSubmatch(text, -1) {
			for _, n := range numbers.FindAllStringSubmatch(m[1], -1) {
				number, err := strconv.Atoi(n[1])
				require.NoError(t, err)
				found[number] = true
			}
		}
	})
	for n := 1; n <= hazards; n++ {
		require.True(t, found[n], "no test shows hazard %d", n)
	}
}

func mentionedCases(text string, into map[string]bool) {
	for _, m := range cases.FindAllStringSubmatch(text, -1) {
		for _, c := range oneCase.FindAllString(m[1], -1) {
			into[c] = true
		}
	}
}

func TestClaimedCasesHaveATest(t *testing.T) {
	found := map[string]bool{}
	eachTest(t, func(text string) { mentionedCases(text, found) })
	for _, c := range strings.Fields(shownCases) {
		require.True(t, found[c], "case %s is claimed, and no test names it", c)
	}
}

func TestMentionsOfCasesAreRead(t *testing.T) {
	for text, want := range map[string][]string{
		"// Case B02: the failure":       {"B02"},
		"// Cases B03, B04 and B10: a":   {"B03", "B04", "B10"},
		"// Behaviour 156, Case B10: it": {"B10"},
		"// B02 is no mention.":          nil,
		"// In that case B is refused.":  nil,
	} {
		got := map[string]bool{}
		mentionedCases(text, got)
		require.Len(t, got, len(want), text)
		for _, c := range want {
			require.True(t, got[c], text)
		}
	}
}

func TestMentionsAreRead(t *testing.T) {
	for text, want := range map[string][]int{
		"// Behaviour 29.":                       {29},
		"// Behaviours 40, 51 and 52.":           {40, 51, 52},
		"// Behaviours 76\n// and 77: a chunk":   {76, 77},
		"# Behaviour 154, 177: killed":           {154, 177},
		"behaviour 31-33":                        {31, 32, 33},
		"// Fleet behaviour 3":                   nil,
		"the behaviour of 3 nodes is all right.": nil,
	} {
		got := map[int]bool{}
		mentioned(false, text, got)
		require.Len(t, got, len(want), text)
		for _, n := range want {
			require.True(t, got[n], text)
		}
	}
}
