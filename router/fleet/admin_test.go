package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// decode reads an answer's JSON.
func decode(t *testing.T, a answerOf) map[string]any {
	t.Helper()
	var b map[string]any
	require.NoError(t, json.Unmarshal([]byte(a.body), &b), "%s", a.body)
	return b
}

func TestHealthIsTheTable(t *testing.T) {
	// Fleet behaviours 57, 58 and 59
	s := newRig(t, rigOptions{replicas: 2})
	home := ""
	for range 3 {
		home = s.post(chatBody(""), "X-Session-Id: mine").servedBy(t)
	}
	a := s.ask("GET", pathHealth, "")
	assert.Equal(t, 200, a.status)
	b := decode(t, a)
	replicas := b["replicas"].([]any)
	delete(b, "replicas")
	assert.Equal(t, map[string]any{
		"status": "ok", "replicas_ready": 2.0, "replicas_total": 2.0, "replicas_failed": 0.0, "sessions": 1.0, "routed": 3.0, "affinity_hits": 2.0, "rejected": 0.0,
	}, b)
	for i, n := range s.replicas {
		routed := 0.0
		if n.name == home {
			routed = 3
		}
		assert.Equal(t, map[string]any{"name": n.name, "url": "http://" + n.address, "ready": true, "phase": "ready", "outstanding": 0.0, "routed": routed}, replicas[i])
	}
	for _, n := range s.replicas {
		n.kill()
	}
	s.post(chatBody(""))
	none := s.ask("GET", pathHealth, "")
	assert.Equal(t, 503, none.status)
	b = decode(t, none)
	assert.Equal(t, "no_replicas", b["status"])
	assert.Equal(t, 2.0, b["replicas_failed"])
	assert.Equal(t, "failed", b["replicas"].([]any)[0].(map[string]any)["phase"])
}

func TestProbesTakeAReplicaOutAtTheSecondFailure(t *testing.T) {
	// Fleet behaviours 37, 38 and 39
	asked, answers := make(chan struct{}), make(chan int)
	over := make(chan struct{})
	s := newRig(t, rigOptions{replicas: 2})
	n := s.replicas[0]
	// From now on the test answers each probe of a.
	probe := func(status int) {
		t.Helper()
		s.pool.Suspect(s.pool.statics[0].member)
		<-asked
		answers <- status
		require.Eventually(t, func() bool {
			s.pool.slots.Lock()
			defer s.pool.slots.Unlock()
			return len(s.pool.probers[s.pool.statics[0].key()].now) == 0
		}, patience, time.Millisecond)
	}
	defer close(over)
	n.kill()
	l, err := edge.Listen(edge.ServerConfig{Address: n.address})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		done <- l.Serve(func(c *edge.Call) {
			select {
			case asked <- struct{}{}:
				c.Reply(<-answers, "", nil)
			case <-over:
			}
		})
	}()
	defer func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		l.Shutdown(now)
		<-done
	}()
	seen := func() (int64, bool) {
		v := s.pool.Snapshot()
		return v.Stats.ProbesAnswered + v.Stats.ProbesOK, v.Replicas[0].Ready
	}
	for i, step := range []struct {
		status int
		ready  bool
	}{{503, true}, {200, true}, {500, true}, {503, false}, {503, false}, {200, true}, {302, true}, {404, false}} {
		before, _ := seen()
		probe(step.status)
		require.Eventually(t, func() bool { n, _ := seen(); return n == before+1 }, patience, time.Millisecond)
		_, ready := seen()
		require.Equal(t, step.ready, ready, "step %d", i)
		assert.True(t, s.view("b").Ready, "others are not affected")
	}
}

func TestModelsComeFromAReplicaThatTakesRequests(t *testing.T) {
	// Fleet behaviours 60, 61 and 110
	s := newRig(t, rigOptions{replicas: 3, edit: func(o *Options) { o.ConnectTimeout = 100 * time.Millisecond }})
	const list = `{"object":"list",   "data":[{"id":"m","object":"model","owned_by":"pypto"}]}`
	s.replicas[0].change(func() { s.replicas[0].models = func(c *edge.Call) { c.Reply(500, "", []byte("broken")) } })
	// Case B51: one that accepts and is silent holds nobody up for long.
	s.replicas[1].change(func() { s.replicas[1].models = func(c *edge.Call) { <-c.Context().Done() } })
	s.replicas[2].change(func() { s.replicas[2].models = func(c *edge.Call) { c.Reply(200, "application/json", []byte(list)) } })
	a := s.ask("GET", pathModels, "")
	assert.Equal(t, 200, a.status)
	assert.Equal(t, list, a.body)
	// What is no JSON is relayed all the same.
	s.replicas[2].change(func() { s.replicas[2].models = func(c *edge.Call) { c.Reply(200, "text/html", []byte("<html>")) } })
	a = s.ask("GET", pathModels, "")
	assert.Equal(t, "<html>", a.body)
	assert.Equal(t, "text/html", a.header.Get("Content-Type"))
	s.replicas[2].kill()
	none := s.ask("GET", pathModels, "")
	assert.Equal(t, 503, none.status)
	assert.Equal(t, "no serving replica is currently routable", errorOf(t, none))
}

func TestReplicaThatIsSwitchedOffLosesItsConversationsAndComesBack(t *testing.T) {
	// Fleet behaviours 111 and 112
	s := newRig(t, rigOptions{replicas: 2, edit: func(o *Options) { o.HealthInterval = 5 * time.Millisecond }})
	ready := func(want float64) {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			var b healthBody
			a := s.ask("GET", pathHealth, "")
			assert.NoError(c, json.Unmarshal([]byte(a.body), &b))
			assert.EqualValues(c, want, b.Ready)
		}, patience, 2*time.Millisecond)
	}
	home := s.post(chatBody(""), "X-Session-Id: mine").servedBy(t)
	n := s.replicas[int(home[0]-'a')]
	n.healthy(503)
	ready(1)
	other := s.post(chatBody(""), "X-Session-Id: mine").servedBy(t)
	assert.NotEqual(t, home, other)
	n.healthy(200)
	ready(2)
	assert.Equal(t, other, s.post(chatBody(""), "X-Session-Id: mine").servedBy(t))
	for _, n := range s.replicas {
		n.healthy(503)
	}
	ready(0)
	assert.Equal(t, 503, s.ask("GET", pathHealth, "").status)
	assert.Equal(t, 503, s.post(chatBody("")).status, "it does not hang")
	for _, n := range s.replicas {
		n.healthy(200)
	}
	ready(2)
	assert.Equal(t, 200, s.post(chatBody("")).status)
}

func TestReplicasAreLaunchedAndRetiredOverHTTP(t *testing.T) {
	// Fleet behaviours 98 to 102, 104, 113, 114 and 115
	s := newRig(t, rigOptions{replicas: 1, slots: 2, edit: func(o *Options) { o.HealthInterval = 5 * time.Millisecond }})
	s.world.set(func() { s.world.dead = true })
	a := s.ask("POST", pathReplicas, "")
	require.Equal(t, 202, a.status)
	b := decode(t, a)
	assert.Equal(t, "n-d0", b["name"])
	assert.Equal(t, false, b["ready"])
	assert.Equal(t, "starting", b["phase"])
	assert.Regexp(t, `^http://127\.0\.0\.1:\d+$`, b["url"])
	assert.NotEmpty(t, b["message"])
	assert.Equal(t, []string{"n-d0"}, s.world.launches())
	assert.Equal(t, "starting", s.view("n-d0").Phase)

	// Its model is loaded.
	s.world.set(func() { s.world.dead = false })
	slot := s.pool.Snapshot().Slots[0]
	s.world.serve(Launch{Slot: slot.Slot, Instance: slot.Instance}, 200)
	require.Eventually(t, func() bool { return s.view("n-d0").routable() }, patience, time.Millisecond)

	require.Equal(t, 202, s.ask("POST", pathReplicas+"?slot=n-d1", "").status)
	full := s.ask("POST", pathReplicas, "")
	assert.Equal(t, 409, full.status)
	assert.Equal(t, "the pool is full: 2 of 2 slots are in use", errorOf(t, full))
	assert.Equal(t, map[string]any{"owned": 2.0, "ceiling": 2.0, "free_slots": []any{}, "unconfirmed": map[string]any{}, "abandoned": []any{}}, decode(t, full)["capacity"])
	taken := s.ask("POST", pathReplicas+"?slot=n-d1", "")
	assert.Equal(t, 409, taken.status, taken.body)
	assert.Equal(t, 404, s.ask("POST", pathReplicas+"?slot=nowhere", "").status)

	list := s.ask("GET", pathReplicas, "")
	assert.Equal(t, 200, list.status)
	entries := decode(t, list)["replicas"].([]any)
	require.Len(t, entries, 3)
	assert.Equal(t, map[string]any{
		"name": "a", "url": "http://" + s.replicas[0].address, "ready": true, "draining": false, "owned": false, "phase": "ready", "outstanding": 0.0, "routed": 0.0,
	}, entries[0])
	assert.Equal(t, true, entries[1].(map[string]any)["owned"])

	static := s.ask("DELETE", pathReplicas+"/a", "")
	assert.Equal(t, 409, static.status)
	assert.Contains(t, errorOf(t, static), "was not launched by this router")
	assert.True(t, s.view("a").routable(), "it stays")
	unknown := s.ask("DELETE", pathReplicas+"/nobody", "")
	assert.Equal(t, 404, unknown.status)
	assert.Contains(t, errorOf(t, unknown), `"nobody"`)

	gone := s.ask("DELETE", pathReplicas+"/n-d0", "")
	require.Equal(t, 200, gone.status, gone.body)
	b = decode(t, gone)
	assert.Equal(t, true, b["stopped"])
	assert.Equal(t, "n-d0", b["name"])
	assert.Equal(t, []any{"n-d0"}, b["capacity"].(map[string]any)["free_slots"])
	_, err := net.Dial("tcp", hostPort(slot.Address, slot.Port))
	require.Error(t, err, "it is really gone")
	assert.Equal(t, 202, s.ask("POST", pathReplicas, "").status, "the same port can be had again at once")
}

func TestRetirementMayGoOnAlone(t *testing.T) {
	s := newRig(t, rigOptions{slots: 1, edit: func(o *Options) { o.Initial, o.HealthInterval = 1, 5*time.Millisecond }})
	require.Eventually(t, func() bool {
		v := s.pool.Snapshot().Replicas
		return len(v) == 1 && v[0].routable()
	}, patience, time.Millisecond)
	m, _, err := s.pool.Choose("running")
	require.NoError(t, err)
	a := s.ask("DELETE", pathReplicas+"/n-d0?wait=false", "")
	assert.Equal(t, 202, a.status)
	assert.Equal(t, false, decode(t, a)["stopped"])
	assert.Equal(t, "draining", s.view("n-d0").Phase)
	// A client that hangs up leaves it running, too.
	nc, _ := s.raw("DELETE " + pathReplicas + "/n-d0 HTTP/1.1\r\nHost: r\r\n\r\n")
	nc.Close()
	s.pool.Done("running", m)
	require.Eventually(t, func() bool { return len(s.pool.Snapshot().FreeSlots) == 1 }, patience, time.Millisecond)
	for _, query := range []string{"?wait=maybe", "?force=2", "?%zz"} {
		assert.Equal(t, 400, s.ask("DELETE", pathReplicas+"/n-d0"+query, "").status, query)
	}
}

func TestUnconfirmedSlotIsRetriedOrReleased(t *testing.T) {
	s := newRig(t, rigOptions{slots: 1, edit: func(o *Options) { o.Initial, o.HealthInterval = 1, 5*time.Millisecond }})
	require.Eventually(t, func() bool {
		v := s.pool.Snapshot().Replicas
		return len(v) == 1 && v[0].routable()
	}, patience, time.Millisecond)
	s.world.set(func() { s.world.stopFails = errors.New("the cards are held") })
	a := s.ask("DELETE", pathReplicas+"/n-d0", "")
	assert.Equal(t, 500, a.status)
	b := decode(t, a)
	assert.Equal(t, "error", b["object"])
	assert.Equal(t, map[string]any{"n-d0": "stop-unconfirmed"}, b["capacity"].(map[string]any)["unconfirmed"])
	assert.Equal(t, 500, s.ask("DELETE", pathReplicas+"/n-d0", "").status, "the stop is tried again")
	assert.Equal(t, 409, s.ask("POST", pathReplicas, "").status, "nothing is launched there")
	released := s.ask("DELETE", pathReplicas+"/n-d0?force=true", "")
	assert.Equal(t, 200, released.status, released.body)
	b = decode(t, released)
	assert.Equal(t, true, b["released"])
	assert.Equal(t, false, b["stopped"])
	assert.Equal(t, []any{"n-d0"}, b["capacity"].(map[string]any)["free_slots"])
	s.logged(t, `order="release by the operator's word"`)
	again := s.ask("DELETE", pathReplicas+"/n-d0?force=true", "")
	assert.Contains(t, []int{404, 409}, again.status)
}

func TestLaunchThatFailsIsABadGateway(t *testing.T) {
	s := newRig(t, rigOptions{slots: 1})
	s.world.set(func() { s.world.refuse = errors.New("no such program") })
	a := s.ask("POST", pathReplicas, "")
	assert.Equal(t, 502, a.status)
	assert.Equal(t, "launch failed: no such program", errorOf(t, a))
	s.Drain()
	assert.Equal(t, 503, s.ask("POST", pathReplicas, "").status)
	health := s.ask("GET", pathHealth, "")
	assert.Equal(t, 503, health.status)
	assert.Equal(t, "draining", decode(t, health)["status"])
	refused := s.post(chatBody(""))
	assert.Equal(t, 503, refused.status)
	assert.NotEmpty(t, refused.session())
}

func TestAdminTokenGuardsReplicas(t *testing.T) {
	// Fleet behaviour 103
	const token = "schlüssel-令牌"
	s := newRig(t, rigOptions{replicas: 1, slots: 1, edit: func(o *Options) { o.AdminToken = token }})
	// The bytes of the header are sent as they are.
	status := func(method, path, authorization string) (int, http.Header) {
		line := ""
		if authorization != "" {
			line = "Authorization: " + authorization + "\r\n"
		}
		_, br := s.raw(method + " " + path + " HTTP/1.1\r\nHost: r\r\n" + line + "Content-Length: 0\r\nConnection: close\r\n\r\n")
		r, err := http.ReadResponse(br, nil)
		require.NoError(t, err)
		text, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		if r.StatusCode == 401 {
			assert.Equal(t, `{"object":"error","message":"admin token required","error":{"message":"admin token required","type":"authentication_error","param":null,"code":"unauthorized"}}`, string(text))
		}
		return r.StatusCode, r.Header
	}
	for _, wrong := range []string{"", token, "Bearer", "Bearer ", "Bearer x", "Bearer " + token + "x", "Basic " + token, "Bearer" + token} {
		for _, path := range []string{pathReplicas, pathReplicas + "/a", pathReplicas + "/nobody", pathReplicas + "/a/log", pathReplicas + "/", pathReplicas + "/a/b"} {
			got, header := status("GET", path, wrong)
			assert.Equal(t, 401, got, "%s %q", path, wrong)
			assert.Equal(t, "Bearer", header.Get("WWW-Authenticate"))
		}
	}
	for _, right := range []string{"Bearer " + token, "bearer " + token, "BEARER  " + token} {
		got, _ := status("GET", pathReplicas, right)
		assert.Equal(t, 200, got, right)
	}
	got, _ := status("POST", pathReplicas, "Bearer "+token)
	assert.Equal(t, 202, got)
	assert.Equal(t, 200, s.ask("GET", pathHealth, "").status)
	assert.Equal(t, 200, s.post(chatBody(""), "Authorization: Bearer of-the-client").status)
	assert.Equal(t, "Bearer of-the-client", s.replicas[0].requests()[0].header.Get("Authorization"))
	assert.NotContains(t, s.log.String(), token)
	s.SetToken("another")
	got, _ = status("GET", pathReplicas, "Bearer "+token)
	assert.Equal(t, 401, got)
	s.SetToken("")
	got, _ = status("GET", pathReplicas, "")
	assert.Equal(t, 200, got)
}

func TestStartUpLogIsShown(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1, slots: 1})
	a := s.ask("GET", pathReplicas+"/n-d0/log", "")
	assert.Equal(t, 200, a.status)
	assert.Equal(t, "loaded\n", a.body)
	assert.Equal(t, "text/plain; charset=utf-8", a.header.Get("Content-Type"))
	assert.Equal(t, 404, s.ask("GET", pathReplicas+"/a/log", "").status)
	for _, n := range []string{"0", "x", "-1", fmt.Sprint(maxLog + 1)} {
		assert.Equal(t, 400, s.ask("GET", pathReplicas+"/n-d0/log?bytes="+n, "").status, n)
	}
	assert.Equal(t, 200, s.ask("GET", pathReplicas+"/n-d0/log?bytes=10", "").status)
	for _, path := range []string{"/n-d0/logs", "/n-d0/log/", "//log", "/%2F/log/x"} {
		assert.Equal(t, 404, s.ask("GET", pathReplicas+path, "").status, path)
	}
}

// Names of the file may hold what a path must escape.
func TestNamesAreUnescaped(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1})
	a := s.ask("DELETE", pathReplicas+"/%61", "")
	assert.Equal(t, 409, a.status)
	assert.Contains(t, errorOf(t, a), "replica a was not launched")
	_, br := s.raw("DELETE " + pathReplicas + "/%zz HTTP/1.1\r\nHost: r\r\n\r\n")
	r, err := http.ReadResponse(br, nil)
	require.NoError(t, err)
	assert.Equal(t, 404, r.StatusCode)
}

func TestReloadsAreShown(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1})
	assert.NotContains(t, s.ask("GET", pathHealth, "").body, "last_reload")
	s.Reloaded(nil)
	assert.Contains(t, s.ask("GET", pathHealth, "").body, `"last_reload":{"result":"applied"`)
	s.Reloaded(errors.New("the file is broken"))
	assert.Contains(t, s.ask("GET", pathHealth, "").body, `"text":"the file is broken"`)
	body := s.ask("GET", pathMetrics, "").body
	assert.True(t, strings.Contains(body, `pypto_fleet_reloads_total{result="refused"} 1`))
}
