package fleet

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

func newTable(t testing.TB, replicas int, o AffinityOptions) *Table {
	t.Helper()
	if o.TTL == 0 {
		o.TTL = 60 * time.Second
	}
	if o.MaxSessions == 0 {
		o.MaxSessions = 1000
	}
	table, err := NewTable(o)
	require.NoError(t, err)
	for i := range replicas {
		require.NoError(t, table.Add(NewMember(fmt.Sprintf("r%d", i), "", "")))
	}
	return table
}

func choose(t testing.TB, table *Table, session string, at time.Duration) *Member {
	t.Helper()
	m, miss, err := table.Choose(session, at)
	require.NoError(t, err)
	table.Count(m, miss)
	return m
}

func TestPins(t *testing.T) {
	// Fleet behaviour 20
	table := newTable(t, 2, AffinityOptions{})
	first := choose(t, table, "a", 0)
	got, miss := table.pinned("a", 0)
	assert.Equal(t, first, got)
	assert.Zero(t, miss)
	assert.Equal(t, 1, table.Sessions())
	table.Forget("a")
	assert.Zero(t, table.Sessions())

	// Fleet behaviour 21
	choose(t, table, "b", 0)
	_, miss = table.pinned("b", 59*time.Second)
	assert.Zero(t, miss)
	_, miss = table.pinned("b", 60*time.Second)
	assert.Zero(t, miss, "the time to live itself still holds")
	_, miss = table.pinned("b", 61*time.Second)
	assert.Equal(t, MissExpired, miss)
	assert.Zero(t, table.Sessions())

	// Fleet behaviour 22
	choose(t, table, "c", 0)
	choose(t, table, "c", 50*time.Second)
	_, miss = table.pinned("c", 100*time.Second)
	assert.Zero(t, miss)
	// Looking renews nothing.
	_, miss = table.pinned("c", 111*time.Second)
	assert.Equal(t, MissExpired, miss)
}

func TestSweepDropsOnlyExpired(t *testing.T) {
	// Fleet behaviour 23
	table := newTable(t, 1, AffinityOptions{})
	choose(t, table, "a", 0)
	choose(t, table, "b", 10*time.Second)
	choose(t, table, "c", 50*time.Second)
	assert.Equal(t, 2, table.Sweep(71*time.Second))
	assert.Equal(t, 1, table.Sessions())
	assert.Zero(t, table.Sweep(71*time.Second))
}

func TestCapOfPins(t *testing.T) {
	// Fleet behaviour 24
	table := newTable(t, 1, AffinityOptions{MaxSessions: 3})
	for i, id := range []string{"a", "b", "c", "a", "d"} {
		choose(t, table, id, time.Duration(i)*time.Second)
	}
	assert.Equal(t, 3, table.Sessions())
	_, miss := table.pinned("a", 5*time.Second)
	assert.Zero(t, miss)
	_, miss = table.pinned("b", 5*time.Second)
	assert.Equal(t, MissNew, miss)
	assert.Equal(t, int64(1), table.Counts().Evicted)

	// Fleet behaviour 25
	table = newTable(t, 1, AffinityOptions{MaxSessions: 3})
	choose(t, table, "old", 0)
	choose(t, table, "older", 0)
	choose(t, table, "live", 50*time.Second)
	choose(t, table, "new", 70*time.Second)
	_, miss = table.pinned("live", 70*time.Second)
	assert.Zero(t, miss)
	assert.Equal(t, 2, table.Sessions())
	assert.Zero(t, table.Counts().Evicted)
}

func TestTableRefusesBadBounds(t *testing.T) {
	// Fleet behaviour 27
	for _, o := range []AffinityOptions{{MaxSessions: 1}, {TTL: -1, MaxSessions: 1}, {TTL: 1}, {TTL: 1, MaxSessions: -1}, {TTL: 1, MaxSessions: 1, Slack: -1}} {
		_, err := NewTable(o)
		require.ErrorIs(t, err, pd.CodeInvalidConfig)
	}
}

func TestSameSessionSameReplica(t *testing.T) {
	// Fleet behaviour 28
	table := newTable(t, 3, AffinityOptions{Slack: 8})
	first := choose(t, table, "a", 0)
	for range 5 {
		assert.Equal(t, first, choose(t, table, "a", 0))
	}
	assert.Equal(t, int64(5), table.Counts().Hits)
	assert.Equal(t, int64(6), table.Counts().Routed)
}

func TestNewSessionsSpread(t *testing.T) {
	// Fleet behaviour 29
	table := newTable(t, 3, AffinityOptions{})
	seen := map[string]bool{}
	for i := range 3 {
		m := choose(t, table, fmt.Sprint(i), 0)
		table.Release(m)
		seen[m.Name] = true
	}
	assert.Len(t, seen, 3, "also when each ends before the next begins")
	// Fleet behaviour 35
	sum := int64(0)
	for _, m := range table.Members() {
		sum += m.Routed()
	}
	assert.Equal(t, table.Counts().Routed, sum)
}

func TestExpiredPinIsNoHit(t *testing.T) {
	// Fleet behaviour 30
	table := newTable(t, 2, AffinityOptions{Slack: 8})
	choose(t, table, "a", 0)
	choose(t, table, "a", 61*time.Second)
	assert.Zero(t, table.Counts().Hits)
	assert.Equal(t, int64(1), table.Counts().Misses[MissExpired])
	choose(t, table, "a", 100*time.Second)
	assert.Equal(t, int64(1), table.Counts().Hits)
}

func TestUnroutablePinMovesAndStays(t *testing.T) {
	// Fleet behaviour 31
	table := newTable(t, 2, AffinityOptions{Slack: 8})
	first := choose(t, table, "a", 0)
	table.SetReady(first, false)
	second := choose(t, table, "a", 0)
	assert.NotEqual(t, first, second)
	table.SetReady(first, true)
	assert.Equal(t, second, choose(t, table, "a", 0), "it does not return")
	assert.Equal(t, int64(1), table.Counts().Misses[MissUnroutable])
}

func TestSlack(t *testing.T) {
	for _, c := range []struct {
		slack, extra int
		keeps        bool
	}{
		// Fleet behaviour 32
		{8, 8, true},
		{8, 9, false},
		// Fleet behaviour 33
		{0, 0, true},
		{0, 1, false},
	} {
		table := newTable(t, 2, AffinityOptions{Slack: c.slack})
		first := choose(t, table, "a", 0)
		table.Release(first)
		first.outstanding = c.extra
		assert.Equal(t, c.keeps, first == choose(t, table, "a", 0), "%+v", c)
	}
}

func TestNothingRoutable(t *testing.T) {
	// Fleet behaviour 34
	table := newTable(t, 1, AffinityOptions{})
	table.Drain(table.Members()[0])
	_, _, err := table.Choose("a", 0)
	require.ErrorContains(t, err, "no serving replica is currently routable")
	require.Equal(t, pd.CodeNoPair, pd.CodeOf(err))
	assert.Equal(t, int64(1), table.Counts().Rejected)
	_, _, err = newTable(t, 0, AffinityOptions{}).Choose("a", 0)
	require.Error(t, err)
}

func TestReleaseFloors(t *testing.T) {
	// Fleet behaviour 36
	table := newTable(t, 2, AffinityOptions{})
	m := choose(t, table, "a", 0)
	table.Release(m)
	table.Release(m)
	table.Release(nil)
	assert.Zero(t, m.Outstanding())
	table.Remove(m)
	table.Remove(m)
	table.Release(m)
	require.NoError(t, table.Add(NewMember(m.Name, "", "i2")))
	again := table.Find(m.Name)
	again.outstanding = 1
	table.Release(m)
	assert.Equal(t, 1, again.Outstanding(), "a late end of the old instance does not touch the new one")
	require.Error(t, table.Add(NewMember(m.Name, "", "")))
}

func TestDrainDropsPinsAtOnce(t *testing.T) {
	// Fleet behaviour 88
	table := newTable(t, 2, AffinityOptions{})
	for i := range 10 {
		choose(t, table, fmt.Sprint(i), 0)
	}
	first := table.Members()[0]
	table.Drain(first)
	assert.Equal(t, 5, table.Sessions())
	assert.False(t, first.Routable())
	assert.True(t, first.Draining() && first.Ready())
	table.Touch("0", first, time.Second)
	assert.Equal(t, 5, table.Sessions(), "a late end makes no pin again")
}

func TestTouchRenewsALongGeneration(t *testing.T) {
	table := newTable(t, 1, AffinityOptions{})
	m := choose(t, table, "a", 0)
	table.Touch("a", m, 300*time.Second)
	_, miss := table.pinned("a", 350*time.Second)
	assert.Zero(t, miss)
}

func TestRemovalReindexes(t *testing.T) {
	table := newTable(t, 3, AffinityOptions{})
	for i := range 2 {
		table.Release(choose(t, table, fmt.Sprint(i), 0))
	}
	table.Remove(table.Members()[0])
	assert.Less(t, table.rotation, len(table.members))
	assert.Equal(t, "r1", choose(t, table, "x", 0).Name)
}

func TestOnlyTheLastTryCounts(t *testing.T) {
	table := newTable(t, 2, AffinityOptions{})
	table.Release(choose(t, table, "a", 0))
	m, miss, err := table.Choose("a", 0)
	require.NoError(t, err)
	assert.Zero(t, miss, "it would have been a hit")
	table.SetReady(m, false)
	table.Release(m)
	choose(t, table, "a", 0)
	assert.Equal(t, int64(1), m.Routed())
	c := table.Counts()
	assert.Equal(t, int64(2), c.Routed)
	assert.Zero(t, c.Hits)
	assert.Equal(t, int64(1), c.Misses[MissUnroutable])
}

func TestSessionOf(t *testing.T) {
	long := strings.Repeat("x", 129)
	mint := func() string { return "fresh" }
	for _, c := range []struct {
		name string
		in   SessionRequest
		want Session
	}{
		// Fleet behaviour 45
		{"nothing", SessionRequest{}, Session{ID: "fresh", Fresh: true}},
		// Fleet behaviour 46
		{"header", SessionRequest{Headers: []string{"a.B_1:-", "other"}}, Session{ID: "a.B_1:-"}},
		// Fleet behaviour 47
		{"body", SessionRequest{Body: []byte(`{"messages":[{"session_id":"no"}],"session_id":"s1"}`)}, Session{ID: "s1"}},
		// Fleet behaviour 48
		{"header beats body", SessionRequest{Headers: []string{"h"}, Body: []byte(`{"session_id":"s"}`)}, Session{ID: "h"}},
		{"empty header is none", SessionRequest{Headers: []string{""}, Body: []byte(`{"session_id":"s"}`)}, Session{ID: "s"}},
		{"bad header does not fall back", SessionRequest{Headers: []string{"a b"}, Body: []byte(`{"session_id":"s"}`)}, Session{ID: "fresh", Fresh: true, Refused: 3}},
		{"long header", SessionRequest{Headers: []string{long}}, Session{ID: "fresh", Fresh: true, Refused: 129}},
		{"longest header", SessionRequest{Headers: []string{long[1:]}}, Session{ID: long[1:]}},
		{"line break", SessionRequest{Body: []byte(`{"session_id":"a\n"}`)}, Session{ID: "fresh", Fresh: true, Refused: 2}},
		{"empty body id", SessionRequest{Body: []byte(`{"session_id":""}`)}, Session{ID: "fresh", Fresh: true, Refused: 1}},
		{"number", SessionRequest{Body: []byte(`{"session_id":7}`)}, Session{ID: "fresh", Fresh: true, Refused: -1}},
		{"object", SessionRequest{Body: []byte(`{"session_id":{"a":"b"},"x":"y"}`)}, Session{ID: "fresh", Fresh: true, Refused: -1}},
		{"null", SessionRequest{Body: []byte(`{"session_id":null}`)}, Session{ID: "fresh", Fresh: true, Refused: -1}},
		{"the last counts", SessionRequest{Body: []byte(`{"session_id":"a","session_id":"b"}`)}, Session{ID: "b"}},
		{"escaped name", SessionRequest{Body: []byte(`{"session\u005fid":"b"}`)}, Session{ID: "b"}},
		{"value like a name", SessionRequest{Body: []byte(`{"x":"session_id","y":"b"}`)}, Session{ID: "fresh", Fresh: true}},
		{"escaped quotes", SessionRequest{Body: []byte(`{"x":"a\\\"}{,\"session_id\":\"no","session_id":"b"}`)}, Session{ID: "b"}},
		// Fleet behaviour 49
		{"no JSON", SessionRequest{Body: []byte(`hello "session_id":"a"`)}, Session{ID: "fresh", Fresh: true}},
		{"a list", SessionRequest{Body: []byte(`[{"session_id":"a"}]`)}, Session{ID: "fresh", Fresh: true}},
		{"cut", SessionRequest{Body: []byte(`{"session_id":"a","x":[}`)}, Session{ID: "fresh", Fresh: true}},
		{"two values", SessionRequest{Body: []byte(`{"session_id":"a"}{}`)}, Session{ID: "fresh", Fresh: true}},
		{"open string", SessionRequest{Body: []byte(`{"session_id":"a}`)}, Session{ID: "fresh", Fresh: true}},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, SessionOf(c.in, KeyOptions{}, mint)) })
	}
}

func TestFurtherKeysAreOptional(t *testing.T) {
	mint := func() string { return "fresh" }
	r := SessionRequest{Body: []byte(`{"user":"me@x","prompt_cache_key":"k"}`), Cookies: []string{"a=b; sid=c1"}}
	assert.True(t, SessionOf(r, KeyOptions{}, mint).Fresh)
	user := SessionOf(r, KeyOptions{Fields: []string{"user"}}, mint)
	key := SessionOf(r, KeyOptions{Fields: []string{"prompt_cache_key", "user"}}, mint)
	assert.True(t, validSession(user.ID) && len(user.ID) == 32 && user.ID != key.ID)
	assert.Equal(t, "c1", SessionOf(r, KeyOptions{Cookie: "sid"}, mint).ID)
	assert.True(t, SessionOf(r, KeyOptions{Cookie: "other"}, mint).Fresh)
}

func TestMintedIDsAreUnique(t *testing.T) {
	// Fleet behaviour 26
	seen := map[string]bool{}
	for range 1000 {
		id := NewSessionID()
		assert.Len(t, id, 32)
		assert.True(t, validSession(id))
		seen[id] = true
	}
	assert.Len(t, seen, 1000)
}

func FuzzSessionOf(f *testing.F) {
	f.Add([]byte(`{"session_id":"a","x":[1,{"y":"\""}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		require.True(t, validSession(SessionOf(SessionRequest{Body: body}, KeyOptions{Fields: []string{"user"}}, NewSessionID).ID))
	})
}

// TestPinsAreSmall: 100,000 pins stay under 40 MB.
func TestPinsAreSmall(t *testing.T) {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	table := newTable(t, 4, AffinityOptions{MaxSessions: 100_000})
	for range 110_000 {
		table.Release(choose(t, table, NewSessionID(), 0))
	}
	used := heap() - before
	t.Logf("100,000 pins: %.1f MB", float64(used)/1e6)
	assert.Equal(t, 100_000, table.Sessions())
	assert.Less(t, used, uint64(40e6))
	runtime.KeepAlive(table)
}

func BenchmarkChoose64(b *testing.B) {
	table := newTable(b, 64, AffinityOptions{MaxSessions: 100_000, Slack: 8})
	ids := make([]string, 120_000)
	for i := range ids {
		ids[i] = NewSessionID()
		table.Release(choose(b, table, ids[i], 0))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		m, miss, _ := table.Choose(ids[i], 0)
		table.Count(m, miss)
		table.Release(m)
		if i++; i == len(ids) {
			i = 0
		}
	}
}

func BenchmarkSessionOf1MB(b *testing.B) {
	body := []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat("word \\n", 150_000) + `"}],"session_id":"s"}`)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		SessionOf(SessionRequest{Body: body}, KeyOptions{}, NewSessionID)
	}
}
