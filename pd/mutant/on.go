//go:build mutants

package mutant

// off is the rule that is switched off. It is set only while nothing runs.
var off Rule

// Off says whether a rule is switched off.
func Off(r Rule) bool { return off == r }

// Switch switches one rule off, or with 0 all on, and returns what restores the
// state before. No node may run meanwhile.
func Switch(r Rule) (restore func()) {
	before := off
	off = r
	return func() { off = before }
}
