package handoff_test

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/handoff"
)

var errTest = errors.New("test")

// row is one line of a table in doc.go.
type row struct {
	state, event, next string
	effects            []string
}

func rows(t *testing.T, section string) []row {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, text, ok := strings.Cut(string(doc), "// # "+section)
	require.True(t, ok)
	text, _, _ = strings.Cut(text, "// # ")
	var out []row
	for _, m := range regexp.MustCompile(`(?m)^//\t([A-Z]\w+)\s+([A-Z]\w+)\s+([A-Z]\w+)[ ]*(.*)$`).FindAllStringSubmatch(text, -1) {
		out = append(out, row{m[1], m[2], m[3], strings.Fields(m[4])})
	}
	return out
}

func kinds(effects []handoff.Effect) []string {
	out := []string{}
	for _, e := range effects {
		if e.Kind != handoff.Unpin { // follows the provider's word, not the table
			out = append(out, e.Kind.String())
		}
	}
	return out
}

var done = []pd.UnitResult{{Chunk: 0, Component: "c", Settlement: pd.Done}}

func event(k handoff.EventKind) handoff.Event {
	e := handoff.Event{Kind: k}
	switch k {
	case handoff.Stop, handoff.Refused, handoff.Uncertain:
		e.Err = errTest
	case handoff.ChunkSettled:
		e.Results, e.SourceFree = done, true
	case handoff.Sealed:
		e.Fact = pd.AllDone
	}
	return e
}

func prefillIn(t *testing.T, state string, ev handoff.EventKind) *handoff.Prefill {
	p := handoff.NewPrefill()
	do := func(evs ...handoff.Event) {
		for _, e := range evs {
			_, err := p.Step(e)
			require.NoError(t, err)
		}
	}
	ok := func(ks ...handoff.EventKind) {
		for _, k := range ks {
			do(event(k))
		}
	}
	final := handoff.Event{Kind: handoff.ChunkComputed, Final: true}
	switch state {
	case "Reserving":
		ok(handoff.SessionOpened)
	case "Prefilling":
		ok(handoff.SessionOpened, handoff.Granted)
		switch ev {
		case handoff.ChunkAcked, handoff.Refused:
			ok(handoff.ChunkComputed)
		case handoff.ChunkSettled:
			ok(handoff.ChunkComputed, handoff.ChunkAcked)
		case handoff.ResultsAcked:
			ok(handoff.ChunkComputed, handoff.ChunkAcked, handoff.ChunkSettled)
		}
	case "Committing", "Retiring":
		ok(handoff.SessionOpened, handoff.Granted)
		do(final)
		ok(handoff.ChunkAcked, handoff.ChunkSettled)
		if state == "Retiring" {
			ok(handoff.Committed)
		}
	case "Aborting":
		ok(handoff.SessionOpened, handoff.Granted, handoff.ChunkComputed, handoff.Stop)
		if ev == handoff.AbortAnswered {
			ok(handoff.Refused, handoff.EngineStopped, handoff.Sealed)
		}
	case "Aborted":
		ok(handoff.Stop)
	}
	require.Equal(t, state, p.State().String())
	return p
}

func decodeIn(t *testing.T, state string, ev handoff.EventKind) *handoff.Decode {
	d := handoff.NewDecode()
	ok := func(ks ...handoff.EventKind) {
		for _, k := range ks {
			e := event(k)
			e.Writers = state == "Aborting"
			_, err := d.Step(e)
			require.NoError(t, err)
		}
	}
	switch state {
	case "Waiting":
		switch ev {
		case handoff.PostOpened:
			ok(handoff.ReserveCalled)
		case handoff.ReserveCalled:
			ok(handoff.PostOpened)
		}
		return d
	case "Aborted":
		ok(handoff.Stop)
	default:
		ok(handoff.PostOpened, handoff.ReserveCalled, handoff.Granted)
		switch state {
		case "Transferring":
			ok(handoff.Authorized)
		case "InUse":
			ok(handoff.Authorized, handoff.Committed)
		case "Stopping":
			ok(handoff.Authorized, handoff.Committed, handoff.Stop)
		case "Aborting":
			ok(handoff.Authorized, handoff.Stop)
		case "Quarantined":
			ok(handoff.Authorized, handoff.Uncertain)
		case "Completed":
			ok(handoff.Authorized, handoff.Committed, handoff.EngineStopped)
		}
	}
	require.Equal(t, state, d.State().String())
	return d
}

// Behaviour 97: the tables in doc.go are the behaviour: each row happens with its effects,
// and every pair that is in no row is refused and changes nothing.
func TestTablesAreTheBehaviour(t *testing.T) {
	type machine interface {
		Step(handoff.Event) ([]handoff.Effect, error)
	}
	for _, side := range []struct {
		name   string
		rows   int
		states []string
		in     func(string, handoff.EventKind) (machine, func() string)
	}{
		{"Prefill", 28, []string{"Connecting", "Reserving", "Prefilling", "Committing", "Retiring", "Aborting", "Aborted"}, func(s string, k handoff.EventKind) (machine, func() string) {
			p := prefillIn(t, s, k)
			return p, func() string { return p.State().String() }
		}},
		{"Decode", 25, []string{"Waiting", "Reserved", "Transferring", "InUse", "Stopping", "Aborting", "Quarantined", "Completed", "Aborted"}, func(s string, k handoff.EventKind) (machine, func() string) {
			d := decodeIn(t, s, k)
			return d, func() string { return d.State().String() }
		}},
	} {
		table := rows(t, side.name)
		require.Len(t, table, side.rows)
		listed := map[string]bool{}
		for _, r := range table {
			listed[r.state+" "+r.event] = true
			t.Run(side.name+" "+r.state+" "+r.event+" "+r.next, func(t *testing.T) {
				kind := kindOf(t, r.event)
				m, state := side.in(r.state, kind)
				e := event(kind)
				e.Writers = r.next == "Aborting"
				effects, err := m.Step(e)
				require.NoError(t, err)
				require.Equal(t, r.next, state())
				require.Equal(t, r.effects, kinds(effects))
			})
		}
		for _, s := range side.states {
			for k := handoff.SessionOpened; k <= handoff.Proven; k++ {
				if listed[s+" "+k.String()] {
					continue
				}
				t.Run(side.name+" "+s+" refuses "+k.String(), func(t *testing.T) {
					m, state := side.in(s, k)
					effects, err := m.Step(event(k))
					require.ErrorContains(t, err, k.String())
					require.ErrorContains(t, err, s)
					require.Empty(t, effects)
					require.Equal(t, s, state())
				})
			}
		}
	}
}

func kindOf(t *testing.T, name string) handoff.EventKind {
	for k := handoff.SessionOpened; k <= handoff.Proven; k++ {
		if k.String() == name {
			return k
		}
	}
	t.Fatalf("no event %s", name)
	return 0
}

// A chunk computed while another is in flight waits: one transfer at a time.
func TestSecondChunkWaitsForTheFirst(t *testing.T) {
	p := prefillIn(t, "Prefilling", 0)
	step := func(e handoff.Event) []string {
		effects, err := p.Step(e)
		require.NoError(t, err)
		return kinds(effects)
	}
	require.Equal(t, []string{"SendChunk"}, step(handoff.Event{Kind: handoff.ChunkComputed, Chunk: 0}))
	require.Equal(t, []string{"Submit", "Resume"}, step(handoff.Event{Kind: handoff.ChunkAcked, Chunk: 0}))
	require.Empty(t, step(handoff.Event{Kind: handoff.ChunkComputed, Chunk: 1, Final: true}), "held")
	require.Equal(t, []string{"SendResults"}, step(handoff.Event{Kind: handoff.ChunkSettled, Chunk: 0, Results: done}))
	require.Equal(t, []string{"SendChunk"}, step(handoff.Event{Kind: handoff.ResultsAcked}))
	require.Equal(t, []string{"Submit"}, step(handoff.Event{Kind: handoff.ChunkAcked, Chunk: 1}), "nothing is left to compute")
	require.Equal(t, []string{"SendCommit"}, step(handoff.Event{Kind: handoff.ChunkSettled, Chunk: 1, Results: done}))
	require.Len(t, p.Unreported(), 1, "the last facts ride on the commit")
}

// An acknowledgement that arrives after the stop gives no authority any more.
func TestLateAckSubmitsNothing(t *testing.T) {
	p := prefillIn(t, "Prefilling", handoff.ChunkAcked)
	_, err := p.Step(event(handoff.Stop))
	require.NoError(t, err)
	for _, e := range []handoff.Event{event(handoff.EngineStopped), {Kind: handoff.Sealed, Fact: pd.NeverSubmitted}} {
		effects, err := p.Step(e)
		require.NoError(t, err)
		require.Empty(t, kinds(effects), "the call in flight comes first")
	}
	effects, err := p.Step(event(handoff.ChunkAcked))
	require.NoError(t, err)
	require.Equal(t, []string{"SendAbort"}, kinds(effects))
	require.Equal(t, pd.NeverSubmitted, effects[0].Fact)
}

func TestUncertainChunkQuarantinesPrefill(t *testing.T) {
	p := prefillIn(t, "Prefilling", handoff.ChunkSettled)
	effects, err := p.Step(handoff.Event{Kind: handoff.ChunkSettled, Results: []pd.UnitResult{{Settlement: pd.Uncertain}}})
	require.NoError(t, err)
	require.Equal(t, []string{"StopPrefill", "Seal", "EndPost"}, kinds(effects))
	_, err = p.Step(event(handoff.EngineStopped))
	require.NoError(t, err)
	effects, err = p.Step(handoff.Event{Kind: handoff.Sealed, Fact: pd.Unknown})
	require.NoError(t, err)
	require.Equal(t, []string{"SendAbort"}, kinds(effects))
	require.Equal(t, pd.Unknown, effects[0].Fact)
	effects, err = p.Step(event(handoff.AbortAnswered))
	require.NoError(t, err)
	require.Equal(t, []string{"Gate"}, kinds(effects))
	require.Equal(t, "Quarantined", p.State().String())
	require.ErrorIs(t, p.Reason(), pd.CodeUncertain)
}
