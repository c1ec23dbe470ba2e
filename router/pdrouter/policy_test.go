package pdrouter

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// nodesOf reads "3 0 7! 2+900 -": requests that run, ! a full node, + a hit, - a
// node that does not serve.
func nodesOf(side, text string) []candidate {
	var out []candidate
	for i, f := range strings.Fields(text) {
		c := candidate{id: pd.NodeID(fmt.Sprintf("%s%d", side, i+1)), serves: f != "-"}
		c.full = strings.HasSuffix(f, "!")
		fmt.Sscanf(strings.TrimSuffix(f, "!"), "%d+%d", &c.active, &c.hit)
		out = append(out, c)
	}
	return out
}

func TestEveryPolicyOfTheConfigurationExists(t *testing.T) {
	require.ElementsMatch(t, config.Policies, slices.Collect(maps.Keys(policies)))
}

func TestPoliciesChoose(t *testing.T) {
	all := func(int, int) bool { return true }
	island := func(p, d int) bool { return p == d }
	for name, c := range map[string]struct {
		policy            policy
		prefills, decodes string
		fits              func(p, d int) bool
		picks             int
		want              string
	}{
		"two and three":              {roundRobin, "0 0", "0 0 0", all, 6, "p1d1 p2d2 p1d3 p2d1 p1d2 p2d3"},
		"load is nothing":            {roundRobin, "7 0", "7 0", all, 2, "p1d1 p2d2"},
		"a full decode is passed":    {roundRobin, "0 0", "0 8! 0", all, 4, "p1d1 p2d3 p1d1 p2d3"},
		"a full prefill is passed":   {roundRobin, "8! 0", "0 0", all, 3, "p2d1 p2d2 p2d1"},
		"odd decode fits nobody":     {roundRobin, "0 0", "0 0", func(_, d int) bool { return d != 0 }, 3, "p1d2 p2d2 p1d2"},
		"odd prefill fits nobody":    {roundRobin, "0 0", "0 0", func(p, _ int) bool { return p != 0 }, 3, "p2d1 p2d2 p2d1"},
		"two islands":                {roundRobin, "0 0", "0 0", island, 4, "p1d1 p2d2 p1d1 p2d2"},
		"no prefill":                 {roundRobin, "- -", "0 0", all, 1, "-"},
		"no decode":                  {roundRobin, "0 0", "- 8!", all, 1, "-"},
		"nobody fits":                {roundRobin, "0", "0", func(int, int) bool { return false }, 1, "-"},
		"no nodes":                   {roundRobin, "", "", all, 1, "-"},
		"free ones do not fit":       {roundRobin, "0 -", "- 0", island, 1, "-"},
		"second prefill is the only": {roundRobin, "0 0", "8! 0", island, 2, "p2d2 p2d2"},

		"fewest on both sides":               {leastLoaded, "3 1 2", "0 4", all, 2, "p2d1 p2d1"},
		"equal ones in turn":                 {leastLoaded, "1 1", "2 1 1", all, 4, "p1d2 p2d3 p1d2 p2d3"},
		"the idle one does not serve":        {leastLoaded, "- 1", "0! 2", all, 1, "p2d2"},
		"the idle ones do not fit":           {leastLoaded, "0 5", "5 0", island, 1, "p1d1"},
		"least loaded, nobody free":          {leastLoaded, "8!", "0", all, 1, "-"},
		"the longest hit":                    {prefixAware, "0+10 0+900 0", "0", all, 2, "p2d1 p2d1"},
		"a hit within a quarter of the mean": {prefixAware, "4 4+900 4 4", "0", all, 1, "p2d1"},
		"a hit on a loaded node is passed":   {prefixAware, "0+10 5+900 5 0", "0", all, 1, "p1d1"},
		"all loaded: the fewest requests":    {prefixAware, "9+900 8", "0", island, 1, "p1d1"},
		"a hit on a full node is passed":     {prefixAware, "1+900! 1+10", "0", all, 1, "p2d1"},
		"a hit that fits nobody is passed":   {prefixAware, "0+900 0+10", "- 0", island, 1, "p2d2"},
		"prefix aware, nobody free":          {prefixAware, "-", "0", all, 1, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			q := question{prefills: nodesOf("p", c.prefills), decodes: nodesOf("d", c.decodes), fits: c.fits}
			var got []string
			for range c.picks {
				p, d, ok := c.policy(&q)
				again, _, _ := c.policy(&q)
				require.Equal(t, p, again, "the same question has the same answer")
				if !ok {
					got = append(got, "-")
					continue
				}
				q.turn = turn{p + 1, d + 1}
				got = append(got, fmt.Sprintf("p%dd%d", p+1, d+1))
			}
			require.Equal(t, c.want, strings.Join(got, " "))
		})
	}
}

func TestSixtyPicksSpreadEvenly(t *testing.T) {
	q := question{prefills: nodesOf("p", "0 0"), decodes: nodesOf("d", "0 0 0"), fits: func(int, int) bool { return true }}
	var p [2]int
	var d [3]int
	for range 60 {
		i, j, ok := roundRobin(&q)
		require.True(t, ok)
		p[i]++
		d[j]++
		q.turn = turn{i + 1, j + 1}
	}
	require.Equal(t, [2]int{30, 30}, p)
	require.Equal(t, [3]int{20, 20, 20}, d)
}

// Without reports the leading bytes alone decide: alike in every router, about
// evenly, and a node that goes moves nothing but its own share.
func TestLeadsAreSharedOutEvenlyAndStay(t *testing.T) {
	const prompts = 4000
	q := question{prefills: nodesOf("p", "0 0 0 0"), decodes: nodesOf("d", "0"), fits: func(int, int) bool { return true }}
	count := make([]int, 4)
	owner := make([]int, prompts)
	ask := func(i int) int {
		q.lead = leadsOf(fmt.Appendf(nil, `{"prompt":"conversation %d"}`, i))[0]
		q.turn.prefill = i
		p, _, ok := prefixAware(&q)
		require.True(t, ok)
		return p
	}
	for i := range prompts {
		owner[i] = ask(i)
		count[owner[i]]++
	}
	for _, n := range count {
		require.InDelta(t, prompts/4, n, prompts/20)
	}
	q.prefills[2].serves = false
	moved := 0
	for i := range prompts {
		if now := ask(i); owner[i] != 2 {
			require.Equal(t, owner[i], now)
		} else {
			moved++
			require.NotEqual(t, 2, now)
		}
	}
	require.Equal(t, count[2], moved)
}

func TestLeadsGrowWithThePromptAndIgnoreWhatStandsBefore(t *testing.T) {
	long := strings.Repeat("a", 5000)
	first := leadsOf([]byte(`{"model":"x","prompt":"` + long))
	require.Len(t, first, 2)
	require.Equal(t, first, leadsOf([]byte(`{"stream":true,"model":"yy","prompt":"`+long+"other")))
	other := leadsOf([]byte(`{"prompt":"` + long[:2000] + "b" + long))
	require.Equal(t, first[0], other[0])
	require.NotEqual(t, first[1], other[1])
	require.Len(t, leadsOf([]byte(`{"prompt":"short"}`)), 1)
	require.NotEqual(t, leadsOf([]byte(`{"prompt":"short"}`)), leadsOf([]byte(`{"prompt":"shorter"}`)))
	require.Len(t, leadsOf(nil), 1)
	require.Len(t, leadsOf([]byte(`{"messages":"`+strings.Repeat(long, 20))), len(leadSizes))
}

func TestReportsAreBoundedAndEndWithTheirBoot(t *testing.T) {
	r := newReports()
	at := pd.Peer{Node: "p1", Boot: "1"}
	leads := []lead{1, 2}
	r.add(leads, at, 700)
	r.add(leads[:1], at, 300)
	require.Equal(t, 700, r.hit(leads, "p1", "1"), "the longest lead counts")
	require.Equal(t, 300, r.hit(leads[:1], "p1", "1"))
	require.Zero(t, r.hit(leads, "p1", "2"), "its cache went with its life")
	require.Zero(t, r.hit(leads, "p2", "1"))
	for i := range 2 * maxReporters {
		r.add(leads, pd.Peer{Node: pd.NodeID(fmt.Sprint(i)), Boot: "1"}, i)
	}
	require.Len(t, r.known[1], maxReporters)
	for i := range 3 * maxReports {
		r.add([]lead{lead(1000 + i)}, at, 1)
	}
	require.Len(t, r.known, maxReports)
	require.Len(t, r.order, maxReports)
	require.Zero(t, (*reports)(nil).hit(leads, "p1", "1"))
}

func TestHitsAreReadFromAPrefillNodesAnswer(t *testing.T) {
	for answer, want := range map[string]int{
		`{"state":"RETIRED","usage":{"prompt_tokens":900,"prompt_tokens_details":{"cached_tokens":640}}}`: 640,
		`{"state":"RETIRED"}`: 0,
		`{"usage":{"prompt_tokens_details":{"cached_tokens":-5}}}`: 0,
		`RETIRED`: 0,
	} {
		require.Equal(t, want, cachedTokens([]byte(answer)), "%s", answer)
	}
}

// On sockets: a beginning has a node of its own, until another one reports a hit.
func TestReportedHitDrawsThePromptToItsNode(t *testing.T) {
	s := newStand(t, settings{prefills: 3, policy: policyPrefix})
	ask := func() int {
		t.Helper()
		r, _ := s.ask("POST", "/v1/completions", plain)
		require.Equal(t, 200, r.StatusCode)
		s.untilFree()
		for i, n := range s.prefills {
			if len(n.posts) == 1 {
				take(t, n.posts)
				return i
			}
		}
		require.FailNow(t, "no prefill node was asked")
		return -1
	}
	own := ask()
	for range 4 {
		require.Equal(t, own, ask())
	}
	other := s.prefills[(own+1)%3]
	other.change(func() {
		other.post = func(c *edge.Call) {
			c.Reply(200, openai.TypeJSON, []byte(`{"state":"RETIRED","usage":{"prompt_tokens_details":{"cached_tokens":640}}}`))
		}
	})
	// Its own node is away for one request, so the other may speak.
	away := s.prefills[own]
	health := func(n *standNode, h pd.Health) { n.change(func() { n.says.Health = h }) }
	health(away, pd.Draining)
	health(s.prefills[(own+2)%3], pd.Draining)
	s.until("one serves", func(v poolView) bool { return v.Pairs == 1 })
	require.Equal(t, (own+1)%3, ask())
	health(away, pd.Ready)
	s.until("two serve", func(v poolView) bool { return v.Pairs == 2 })
	for range 4 {
		require.Equal(t, (own+1)%3, ask())
	}
	other.change(func() { other.says.Boot = pd.NewBootID() })
	s.until("a new life", func(v poolView) bool { return v.Nodes[(own+1)%3].Boot == other.says.Boot })
	require.Equal(t, own, ask(), "its cache went with its life")
}

// On sockets: what decode's head says of its cache draws the prompt to it, and goes
// no further.
func TestReportedHitOfDecodeDrawsThePromptToIt(t *testing.T) {
	s := newStand(t, settings{decodes: 3, policy: policyPrefix})
	ask := func() int {
		t.Helper()
		r, _ := s.ask("POST", "/v1/completions", plain)
		require.Equal(t, 200, r.StatusCode)
		require.Empty(t, r.Header.Get(openai.HitTokens))
		s.untilFree()
		for i, n := range s.decodes {
			if len(n.posts) == 1 {
				take(t, n.posts)
				return i
			}
		}
		require.FailNow(t, "no decode node was asked")
		return -1
	}
	health := func(n *standNode, h pd.Health) { n.change(func() { n.says.Health = h }) }
	own := ask()
	other := (own + 1) % 3
	s.decodes[other].change(func() {
		s.decodes[other].post = func(c *edge.Call) { c.SetHeader(openai.HitTokens, "640"); answers(c) }
	})
	// Its own node is away for one request, so the other may speak.
	health(s.decodes[own], pd.Draining)
	health(s.decodes[(own+2)%3], pd.Draining)
	s.until("one serves", func(v poolView) bool { return v.Pairs == 1 })
	require.Equal(t, other, ask())
	health(s.decodes[own], pd.Ready)
	s.until("two serve", func(v poolView) bool { return v.Pairs == 2 })
	for range 4 {
		require.Equal(t, other, ask())
	}
	for header, want := range map[string]bool{"0": true, "640": true, "": false, "-1": false, "x": false, "6.4": false} {
		_, ok := hitTokens(header)
		require.Equal(t, want, ok, header)
	}
}
