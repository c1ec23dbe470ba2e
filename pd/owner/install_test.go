package owner_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Behaviours 17 and 93.
func TestInstallChecksTheRegistry(t *testing.T) {
	from := newSide(t, sideOptions{})
	to := newSide(t, sideOptions{name: "d0", topology: pd.Topology{Ranks: 2, TP: 1}})
	for name, c := range map[string]struct {
		code  pd.Code
		text  string
		spoil func(p *pd.Peer, r *pd.Registry)
	}{
		"itself":          {pd.CodeIdentity, "does not write to itself", func(p *pd.Peer, r *pd.Registry) { p.Node = from.peer.Node }},
		"no boot":         {pd.CodeIdentity, "boot must be", func(p *pd.Peer, r *pd.Registry) { p.Boot = "" }},
		"topology":        {pd.CodeRegistryMismatch, "topology: tp 3", func(p *pd.Peer, r *pd.Registry) { r.Topology.TP = 3 }},
		"build":           {pd.CodeRegistryMismatch, `build "simulator/0": want "simulator/1"`, func(p *pd.Peer, r *pd.Registry) { r.Build = "simulator/0" }},
		"group missing":   {pd.CodeRegistryMismatch, "pages_per_layer: 1 groups, want 2", func(p *pd.Peer, r *pd.Registry) { delete(r.PagesPerLayer, "kv") }},
		"group renamed":   {pd.CodeRegistryMismatch, "group kv has 0", func(p *pd.Peer, r *pd.Registry) { delete(r.PagesPerLayer, "kv"); r.PagesPerLayer["x"] = 1 }},
		"no slots":        {pd.CodeRegistryMismatch, "bootstrap_slots 0", func(p *pd.Peer, r *pd.Registry) { r.BootstrapSlots = 0 }},
		"rank missing":    {pd.CodeRegistryMismatch, "ranks: 1 registrations, want 2", func(p *pd.Peer, r *pd.Registry) { r.Ranks = r.Ranks[:1] }},
		"ranks swapped":   {pd.CodeRegistryMismatch, "ranks[0]: rank 1: want the ranks in order", func(p *pd.Peer, r *pd.Registry) { r.Ranks[0], r.Ranks[1] = r.Ranks[1], r.Ranks[0] }},
		"epoch 0":         {pd.CodeRegistryMismatch, "ranks[1]: epoch 0", func(p *pd.Peer, r *pd.Registry) { r.Ranks[1].Epoch = 0 }},
		"no endpoint":     {pd.CodeRegistryMismatch, "ranks[1]: endpoint of 0 bytes", func(p *pd.Peer, r *pd.Registry) { r.Ranks[1].Endpoint = "" }},
		"region missing":  {pd.CodeRegistryMismatch, "ranks[0]: 3 regions, want 4", func(p *pd.Peer, r *pd.Registry) { r.Ranks[0].Regions = r.Ranks[0].Regions[1:] }},
		"region twice":    {pd.CodeRegistryMismatch, "region kv_cmp is listed twice", func(p *pd.Peer, r *pd.Registry) { r.Ranks[0].Regions[1] = r.Ranks[0].Regions[0] }},
		"region unknown":  {pd.CodeRegistryMismatch, `region "zzz" is not in the contract`, func(p *pd.Peer, r *pd.Registry) { r.Ranks[0].Regions[1].Component = "zzz" }},
		"region extent":   {pd.CodeRegistryMismatch, "region kv_scale has 832 bytes, its pages need 768", func(p *pd.Peer, r *pd.Registry) { r.Ranks[0].Regions[1].Bytes += 64 }},
		"bootstrap bytes": {pd.CodeRegistryMismatch, "region hidden has 1024 bytes, its pages need 1536", func(p *pd.Peer, r *pd.Registry) { r.BootstrapSlots++ }},
		"no envelope":     {pd.CodeRegistryMismatch, "region kv_cmp: envelope of 0 bytes", func(p *pd.Peer, r *pd.Registry) { r.Ranks[0].Regions[0].Envelope = "" }},
	} {
		peer, r := to.peer, to.Registry()
		c.spoil(&peer, &r)
		err := from.Install(peer, r)
		require.ErrorIs(t, err, c.code, name)
		require.ErrorContains(t, err, c.text, name)
	}
	require.ErrorIs(t, from.Submit(simple(pd.NewHandoffID(), 0, from, to)), pd.CodeRegistryMismatch, "nothing was installed")
	from.knows(to)
	from.knows(to) // again is fine
}

// Behaviour 66.
func TestRegistryOfOneBootIsFixed(t *testing.T) {
	from, to := newSide(t, sideOptions{}), newSide(t, sideOptions{name: "d0"})
	from.knows(to)
	for name, change := range map[string]func(r *pd.Registry){
		"endpoint":     func(r *pd.Registry) { r.Ranks[0].Endpoint = "127.0.0.1:1" },
		"envelope":     func(r *pd.Registry) { r.Ranks[0].Regions[0].Envelope = "sim1/7/18432" },
		"ring periods": func(r *pd.Registry) { r.RingPeriods["win"] = 10 },
		"pages": func(r *pd.Registry) {
			r.PagesPerLayer["kv"]++
			r.Ranks[0].Regions[0].Bytes += 3 * 512
			r.Ranks[0].Regions[1].Bytes += 64
		},
		"slots":    func(r *pd.Registry) { r.BootstrapSlots++; r.Ranks[0].Regions[3].Bytes += 512 },
		"topology": func(r *pd.Registry) { r.Topology.Ranks = 2; r.Ranks = append(r.Ranks, r.Ranks[0]); r.Ranks[1].Rank = 1 },
	} {
		r := to.Registry()
		change(&r)
		require.ErrorIs(t, from.Install(to.peer, r), pd.CodeRegistryMismatch, name)
	}
	w := simple(pd.NewHandoffID(), 0, from, to)
	require.NoError(t, from.Submit(w))
	requireAll(t, pd.Done, from.settled(w))
}

// TestFencedPeerIsInstalledAnew: a handoff that began before the fence is over,
// because the peer may have given its pages away; a later one goes to the new
// engine. The registry from before the fence does not come back.
func TestFencedPeerIsInstalledAnew(t *testing.T) {
	from, to := newSide(t, sideOptions{}), newSide(t, sideOptions{name: "d0"})
	from.knows(to)
	old := to.Registry()
	h := pd.NewHandoffID()
	first := simple(h, 0, from, to)
	require.NoError(t, from.Submit(first))
	requireAll(t, pd.Done, from.settled(first))

	require.NoError(t, to.Fence(t.Context()))
	from.knows(to)
	require.ErrorIs(t, from.Install(to.peer, old), pd.CodeRegistryMismatch)
	require.ErrorIs(t, from.Submit(simple(h, 1, from, to)), pd.CodeStaleBoot)
	acked := simple(pd.NewHandoffID(), 0, from, to)
	acked.RegistryEpoch = old.Epoch()
	require.ErrorIs(t, from.Submit(acked), pd.CodeStaleBoot, "acknowledged before the fence")

	next := simple(pd.NewHandoffID(), 0, from, to)
	next.RegistryEpoch = epochOf(to.Registry())
	require.NoError(t, from.Submit(next))
	requireAll(t, pd.Done, from.settled(next))
	require.Equal(t, pd.AllDone, from.stopped(h))
}

// TestNewBootDropsWhatWasNotPosted: the old process answers nothing, the window
// is full; the new one's registry ends what waits, without a byte for either.
//
// Behaviour 99.
func TestNewBootDropsWhatWasNotPosted(t *testing.T) {
	const pages = 4 * pd.MaxOutstandingTasks
	o := sideOptions{pages: map[pd.GroupName]int{"kv": pages, "win": 1}, provider: simulated(t, deaf())}
	from := newSide(t, o)
	o.name, o.provider = "d0", nil
	to, next := newSide(t, o), newSide(t, o)
	from.knows(to)
	blocked, waiting := longChunk(pd.NewHandoffID(), to, pages), longChunk(pd.NewHandoffID(), to, 8)
	require.NoError(t, from.Submit(blocked))
	require.NoError(t, from.Submit(waiting))
	want := next.snapshot()
	from.knows(next)
	e := from.settled(waiting)
	require.Equal(t, pd.Failed, e.Results[0].Settlement)
	require.Equal(t, "the peer was fenced or restarted before it was posted", e.Results[0].Detail)
	require.ErrorIs(t, from.Install(to.peer, to.Registry()), pd.CodeStaleBoot, "an ended boot does not come back")
	require.ErrorIs(t, from.Submit(longChunk(pd.NewHandoffID(), to, 8)), pd.CodeStaleBoot)
	require.NoError(t, to.Close(t.Context()))
	require.NotEqual(t, pd.Done, from.settled(blocked).Results[0].Settlement)
	next.requireMemory(want)
}

// TestFenceOfThePeerDropsWhatWasNotPosted: the same, within one boot. What was
// posted before keeps its own verdict.
func TestFenceOfThePeerDropsWhatWasNotPosted(t *testing.T) {
	const pages = 4 * pd.MaxOutstandingTasks
	o := sideOptions{pages: map[pd.GroupName]int{"kv": pages, "win": 1}, provider: simulated(t, deaf())}
	from := newSide(t, o)
	o.name, o.provider = "d0", nil
	to := newSide(t, o)
	from.knows(to)
	blocked, waiting := longChunk(pd.NewHandoffID(), to, pages), longChunk(pd.NewHandoffID(), to, 8)
	require.NoError(t, from.Submit(blocked))
	require.NoError(t, from.Submit(waiting))
	// The registration arrives before the old connection is seen to end.
	fenced := to.Registry()
	fenced.Ranks[0].Epoch, fenced.Ranks[0].Endpoint = 2, "127.0.0.1:1"
	require.NoError(t, from.Install(to.peer, fenced))
	e := from.settled(waiting)
	require.Equal(t, pd.Failed, e.Results[0].Settlement)
	require.Equal(t, "the peer was fenced or restarted before it was posted", e.Results[0].Detail)
	require.NoError(t, to.Close(t.Context()))
	require.NotEqual(t, pd.Done, from.settled(blocked).Results[0].Settlement)
}
