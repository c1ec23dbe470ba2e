package transfer

import (
	"fmt"
	"sync"
)

// Verdicts is the half of an engine that tells: it keeps verdicts until they
// are polled, also after Close. Its Poll and Wake are an engine's.
type Verdicts struct {
	wake chan struct{}

	mu   sync.Mutex
	list []Verdict
}

// NewVerdicts makes an empty one.
func NewVerdicts() *Verdicts { return &Verdicts{wake: make(chan struct{}, 1)} }

// Tell hands a verdict to Poll. It is safe for concurrent use.
func (v *Verdicts) Tell(verdict Verdict) {
	v.mu.Lock()
	v.list = append(v.list, verdict)
	v.mu.Unlock()
	select {
	case v.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// Poll implements Engine.
func (v *Verdicts) Poll(dst []Verdict) []Verdict {
	v.mu.Lock()
	defer v.mu.Unlock()
	dst = append(dst, v.list...)
	v.list = v.list[:0]
	return dst
}

// Wake implements Engine.
func (v *Verdicts) Wake() <-chan struct{} { return v.wake }

// First is the identity of a new engine, or what is wrong with the options.
func (o *Options) First() (Identity, error) {
	identity := o.Identity
	identity.Epoch = 1
	if err := identity.Check(); err != nil {
		return identity, err
	}
	switch {
	case o.Identity.Epoch > 1:
		return identity, fmt.Errorf("epoch %d: an engine starts at epoch 1", o.Identity.Epoch)
	case o.Hostname == "":
		return identity, fmt.Errorf("hostname is empty")
	case o.AttemptTimeout <= 0:
		return identity, fmt.Errorf("attempt timeout %s: want more than 0", o.AttemptTimeout)
	}
	return identity, nil
}
