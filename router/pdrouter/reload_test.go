package pdrouter

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// fileOf writes a pd.json of nodes, with the run of the stand.
func (s *stand) fileOf(nodes ...*standNode) *config.Config {
	s.t.Helper()
	runtime := map[string]any{"run_id": s.router.config.Run(), "provider": "simulator", "capacity": 8, "handoff_timeout": 10, "request_timeout": 20}
	lists := map[pd.Role][]map[string]any{}
	for _, n := range nodes {
		lists[n.role] = append(lists[n.role], map[string]any{"host": "127.0.0.1", "port": n.port, "control_port": n.controlPort})
	}
	runtime["prefill"], runtime["decode"] = lists[pd.Prefill], lists[pd.Decode]
	b, err := json.Marshal(map[string]any{"runtime": runtime})
	require.NoError(s.t, err)
	c, err := config.Parse(b)
	require.NoError(s.t, err)
	return c
}

func (s *stand) health() healthBody {
	s.t.Helper()
	_, body := s.ask("GET", "/health", "")
	var h healthBody
	require.NoError(s.t, json.Unmarshal([]byte(body), &h))
	return h
}

func TestReloadAddsNodesAndDrainsThoseThatAreRemoved(t *testing.T) {
	release := make(chan struct{})
	s := newStand(t, settings{decodes: 2})
	p, d1, d2 := s.prefills[0], s.decodes[0], s.decodes[1]
	for _, d := range s.decodes {
		d.change(func() { d.post = func(c *edge.Call) { <-release; answers(c) } })
	}
	// One request runs on each.
	first := s.send("POST", "/v1/completions", plain)
	second := s.send("POST", "/v1/completions", streamed)
	take(t, d1.posts)
	take(t, d2.posts)
	fresh := newStandNode(t, pd.Decode)
	fresh.says.Run = s.router.config.Run()
	fresh.start()

	require.NoError(t, s.router.Reload(s.fileOf(p, d2, fresh), nil))
	s.until("the new one serves and the old one leaves", func(v poolView) bool { return v.Pairs == 2 && len(v.Nodes) == 4 })
	h := s.health()
	require.Equal(t, reloadApplied, h.Reload.Result)
	require.Equal(t, "added decode node "+string(fresh.id)+", removed decode node "+string(d1.id), h.Reload.Text)
	for _, n := range h.Nodes {
		if n.Node == d1.id {
			require.Equal(t, stateLeaving, n.State)
			require.Contains(t, n.Reason, "no longer in pd.json")
			require.Equal(t, 1, n.Active)
		}
	}
	// The one that leaves keeps its name and address until then.
	next := s.fileOf(p, d2, fresh)
	taken := next.Decode[0]
	taken.NodeID, taken.Port, taken.ControlPort = d1.id, 1, 2
	next.Decode = append(next.Decode, taken)
	require.ErrorContains(t, s.router.Reload(next, nil), "still has 1 requests")
	// It gets nothing new.
	close(release)
	for range 6 {
		r, _ := s.ask("POST", "/v1/completions", plain)
		require.Equal(t, 200, r.StatusCode)
	}
	require.Empty(t, d1.posts)
	require.NotEmpty(t, fresh.posts)
	// What ran there ends as if nothing were.
	r, _ := s.read(first)
	require.Equal(t, 200, r.StatusCode)
	r, body := s.read(second)
	require.Equal(t, 200, r.StatusCode)
	require.Equal(t, oneEvent+doneEvent, body)
	s.until("it has left", func(v poolView) bool { return len(v.Nodes) == 3 })
	s.untilFree()
	require.Empty(t, d1.aborts)
}

func TestReloadIsRefusedAndChangesNothing(t *testing.T) {
	s := newStand(t, settings{decodes: 2})
	before := s.health()
	other := s.fileOf(s.nodes()...)
	other.Decode[0].ControlPort++
	err := s.router.Reload(other, nil)
	require.ErrorIs(t, err, pd.CodeInvalidConfig)
	h := s.health()
	require.Equal(t, reloadRefused, h.Reload.Result)
	require.Contains(t, h.Reload.Text, "remove it, wait until it is gone")
	h.Reload = nil
	require.Equal(t, before, h)
	unread := pd.Errorf(pd.CodeInvalidConfig, "read", "no file")
	require.Equal(t, unread, s.router.Reload(nil, unread))
	require.NoError(t, s.router.Reload(s.fileOf(s.nodes()...), nil))
	require.Equal(t, "nothing changed", s.health().Reload.Text)
	_, body := s.ask("GET", "/metrics", "")
	require.Contains(t, body, `pypto_router_reloads_total{result="refused"} 2`)
	require.Contains(t, body, `pypto_router_reloads_total{result="applied"} 1`)
}

// Case B10: slots follow a life of a node, not its name.
func TestRemovedNodeThatIsAddedAgainStays(t *testing.T) {
	release := make(chan struct{})
	s := newStand(t, settings{decodes: 2})
	d1 := s.decodes[0]
	d1.change(func() { d1.post = func(c *edge.Call) { <-release; answers(c) } })
	nc := s.send("POST", "/v1/completions", plain)
	take(t, d1.posts)
	require.NoError(t, s.router.Reload(s.fileOf(s.prefills[0], s.decodes[1]), nil))
	s.until("it leaves", func(v poolView) bool { return v.Pairs == 1 })
	require.NoError(t, s.router.Reload(s.fileOf(s.nodes()...), nil))
	s.until("it is back", func(v poolView) bool { return v.Pairs == 2 && len(v.Nodes) == 3 })
	close(release)
	r, _ := s.read(nc)
	require.Equal(t, 200, r.StatusCode)
	s.untilFree()
	s.until("and stays", func(v poolView) bool { return len(v.Nodes) == 3 })
}

// Whatever was added before Run or comes after its end starts nothing that
// outlives it.
func TestReloadBeforeAndAfterRun(t *testing.T) {
	s := newStand(t, settings{decodes: 2})
	s.stop()
	require.NoError(t, s.router.Reload(s.fileOf(s.prefills[0], s.decodes[0]), nil))
	require.NoError(t, s.router.Reload(s.fileOf(s.nodes()...), nil))
	early := New(Options{Config: s.fileOf(s.prefills[0], s.decodes[0]), Boot: pd.NewBootID()})
	require.NoError(t, early.Reload(s.fileOf(s.nodes()...), nil))
	require.Len(t, early.pool.nodes(), 3)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	early.Run(ctx)
}
