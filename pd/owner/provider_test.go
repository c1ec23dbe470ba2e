package owner_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

// tongue changes the verdicts of the simulator, as other libraries word theirs.
type tongue struct {
	*simulator.Provider
	say func(v transfer.Verdict) []transfer.Verdict
}

type tongueEngine struct {
	transfer.Engine
	say func(v transfer.Verdict) []transfer.Verdict
}

func (p tongue) Open(ctx context.Context, o transfer.Options) (transfer.Engine, error) {
	e, err := p.Provider.Open(ctx, o)
	return tongueEngine{e, p.say}, err
}

func (e tongueEngine) Poll(dst []transfer.Verdict) []transfer.Verdict {
	for _, v := range e.Engine.Poll(nil) {
		dst = append(dst, e.say(v)...)
	}
	return dst
}

// Behaviours 96 and 110.
func TestVerdictsAreReadWithCare(t *testing.T) {
	as := func(s pd.Settlement, free bool) func(v transfer.Verdict) []transfer.Verdict {
		return func(v transfer.Verdict) []transfer.Verdict {
			v.Settlement, v.SourceFree = s, free
			return []transfer.Verdict{v}
		}
	}
	for name, c := range map[string]struct {
		say        func(v transfer.Verdict) []transfer.Verdict
		settlement pd.Settlement
		free       bool
		fact       pd.StopFact
	}{
		"uncertain, and still read": {as(pd.Uncertain, false), pd.Uncertain, false, pd.Unknown},
		"failed, and still read":    {as(pd.Failed, false), pd.Failed, false, pd.DefiniteFailed},
		"done needs no word":        {as(pd.Done, false), pd.Done, true, pd.AllDone},
		"no settlement at all":      {as(0, true), pd.Uncertain, true, pd.Unknown},
		"an unknown settlement":     {as(9, true), pd.Uncertain, true, pd.Unknown},
		"answers twice and for nobody": {
			func(v transfer.Verdict) []transfer.Verdict {
				nobody := transfer.Verdict{Ticket: 1 << 60, Settlement: pd.Uncertain}
				late := transfer.Verdict{Ticket: v.Ticket, Settlement: pd.Uncertain}
				return []transfer.Verdict{nobody, v, late}
			},
			pd.Done, true, pd.AllDone,
		},
	} {
		t.Run(name, func(t *testing.T) {
			from := newSide(t, sideOptions{provider: tongue{simulated(t), c.say}})
			to := newSide(t, sideOptions{name: "d0"})
			from.knows(to)
			w := simple(pd.NewHandoffID(), 0, from, to)
			require.NoError(t, from.Submit(w))
			e := from.settled(w)
			requireAll(t, c.settlement, e)
			require.Equal(t, c.free, e.SourceFree)
			require.Equal(t, c.fact, from.stopped(w.Handoff))
		})
	}
}

// readLate is what a library says of a batch that goes on after its time: first
// that its source is still read, and then that it is no more.
func readLate(v transfer.Verdict) []transfer.Verdict {
	still := transfer.Verdict{Ticket: v.Ticket, Settlement: pd.Uncertain}
	ended := still
	ended.SourceFree = true
	return []transfer.Verdict{still, ended}
}

// TestSourceIsFreedLater: the end of the reading is told once, and changes no
// settlement.
func TestSourceIsFreedLater(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) *side{
		"in this process": func(t *testing.T) *side { return newSide(t, sideOptions{provider: tongue{simulated(t), readLate}}) },
		"in a child": func(t *testing.T) *side {
			o := sideOptions{}.withDefaults(t)
			c := o.config(nil)
			inChildren(t, &c)
			c.Remote.Provider = lateReader
			return startSide(t, o, c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := open(t), newSide(t, sideOptions{name: "d0"})
			from.knows(to)
			w := simple(pd.NewHandoffID(), 3, from, to)
			require.NoError(t, from.Submit(w))
			e := from.settled(w)
			requireAll(t, pd.Uncertain, e)
			require.False(t, e.SourceFree)
			freed := await(t, from.recorder, "SourceFreed", func() (owner.SourceFreed, bool) {
				if len(from.freed) == 0 {
					return owner.SourceFreed{}, false
				}
				return from.freed[0], true
			})
			require.Equal(t, owner.SourceFreed{Handoff: w.Handoff, Chunk: 3}, freed)
			require.Equal(t, pd.Unknown, from.stopped(w.Handoff))
			require.Len(t, from.freed, 1)
		})
	}
}

// TestSilentProviderIsUncertainAtClose: batches whose verdict was swallowed hold
// their source until the end, and are Uncertain then.
func TestSilentProviderIsUncertainAtClose(t *testing.T) {
	swallowed := make(chan struct{}, 1)
	p := tongue{simulated(t), func(transfer.Verdict) []transfer.Verdict {
		swallowed <- struct{}{}
		return nil
	}}
	from, to := newSide(t, sideOptions{provider: p}), newSide(t, sideOptions{name: "d0"})
	from.knows(to)
	w := simple(pd.NewHandoffID(), 0, from, to)
	require.NoError(t, from.Submit(w))
	<-swallowed
	require.NoError(t, from.Close(t.Context()))
	e := from.settled(w)
	requireAll(t, pd.Uncertain, e)
	require.False(t, e.SourceFree)
}
