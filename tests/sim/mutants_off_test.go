//go:build !mutants

package sim

import (
	"errors"
	"testing"

	"github.com/hw-native-sys/pypto-pd/pd/mutant"
)

// switchOff needs the build tag mutants.
func switchOff(_ *testing.T, r mutant.Rule) error {
	if r != 0 {
		return errors.New("a rule of the nodes can be switched off only with -tags mutants")
	}
	return nil
}
