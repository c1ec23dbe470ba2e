package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// world launches replicas that are HTTP servers of the test's own.
type world struct {
	t *testing.T

	mu sync.Mutex
	// guarded by mu
	replicas map[string]*fakeReplica // by slot
	order    []string
	stops    int
	// refuse and stopFails are what the commands end in; hold lets launches wait.
	refuse, stopFails error
	hold              chan struct{}
	// deaf: a stop succeeds and the replica goes on answering.
	deaf bool
	// launching is called within each launch.
	launching func(l Launch)
	// dead: what is launched never answers.
	dead bool
}

type fakeReplica struct {
	server *http.Server
	status atomic.Int32
	id     string
	exited func(error)
}

func (w *world) serve(l Launch, status int) *fakeReplica {
	r := &fakeReplica{id: "server of " + l.Instance}
	r.status.Store(int32(status))
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(int(r.status.Load())) })
	mux.HandleFunc("/metrics/json", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintf(rw, `{"server_id":%q}`, r.id) })
	listener, err := net.Listen("tcp", hostPort(l.Slot.Address, l.Slot.Port))
	if !assert.NoError(w.t, err) {
		return nil
	}
	r.server = &http.Server{Handler: mux}
	r.server.SetKeepAlivesEnabled(false)
	go r.server.Serve(listener)
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.Nil(w.t, w.replicas[l.Slot.Name], "two replicas on %s", l.Slot.Name)
	w.replicas[l.Slot.Name] = r
	return r
}

func (w *world) Launch(_ context.Context, l Launch, exited func(error)) error {
	w.mu.Lock()
	refuse, hold, launching, dead := w.refuse, w.hold, w.launching, w.dead
	w.order = append(w.order, l.Slot.Name)
	w.mu.Unlock()
	if launching != nil {
		launching(l)
	}
	if hold != nil {
		<-hold
	}
	if refuse != nil || dead {
		return refuse
	}
	if r := w.serve(l, 200); r != nil {
		r.exited = exited
	}
	return nil
}

func (w *world) Stop(_ context.Context, l Launch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stops++
	if w.stopFails != nil || w.deaf {
		return w.stopFails
	}
	w.killLocked(l.Slot.Name)
	return nil
}

func (w *world) Log(context.Context, Launch, int) ([]byte, error) { return []byte("loaded\n"), nil }

func (w *world) killLocked(slot string) {
	if r := w.replicas[slot]; r != nil {
		r.server.Close()
		delete(w.replicas, slot)
	}
}

func (w *world) kill(slot string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.killLocked(slot)
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) launches() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.order...)
}

// freePorts finds ports that nobody uses, one behind the other.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for range 100 {
		first, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		base := first.Addr().(*net.TCPAddr).Port
		held := []net.Listener{first}
		for i := 1; i < n; i++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+i))
			if err != nil {
				break
			}
			held = append(held, l)
		}
		for _, l := range held {
			l.Close()
		}
		if len(held) == n {
			return base
		}
	}
	t.Fatal("no free ports")
	return 0
}

// quick are options with times that suit a test.
func quick(initial, ceiling int) Options {
	return Options{
		SessionTTL: time.Minute, AffinitySlack: 8, MaxSessions: 100, HealthInterval: 10 * time.Millisecond, ConnectTimeout: 2 * time.Second,
		LaunchTimeout: time.Minute, DrainTimeout: time.Minute, ReplaceAfter: 30 * time.Millisecond, ReplaceBackoff: 10 * time.Millisecond,
		ReplaceStrikes: 3, StableAfter: time.Minute, StopGrace: 2 * time.Second, Initial: initial, Ceiling: ceiling,
	}
}

type livingPool struct {
	*Pool
	t     *testing.T
	world *world
	end   func()
}

func startPool(t *testing.T, slots int, o Options, more func(*PoolOptions, *world)) *livingPool {
	t.Helper()
	var devices []string
	for i := range slots {
		devices = append(devices, fmt.Sprint(i))
	}
	c, err := Parse(fmt.Appendf(nil, `{"hosts":[{"name":"n","devices":[%s],"port_base":%d,"model":"m"}]}`, strings.Join(devices, ","), freePorts(t, slots)))
	require.NoError(t, err)
	w := &world{t: t, replicas: map[string]*fakeReplica{}}
	options := PoolOptions{Config: c, Options: o, Launcher: w, Boot: "b"}
	if more != nil {
		more(&options, w)
	}
	p, err := NewPool(options)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { p.Run(ctx); close(done) }()
	end := sync.OnceFunc(func() {
		cancel()
		<-done
		w.set(func() {
			for slot := range w.replicas {
				w.killLocked(slot)
			}
		})
	})
	t.Cleanup(end)
	return &livingPool{Pool: p, t: t, world: w, end: end}
}

// until waits for the slots to read as wanted.
func (p *livingPool) until(want string) {
	p.t.Helper()
	require.EventuallyWithT(p.t, func(c *assert.CollectT) { assert.Equal(c, want, p.text()) }, 20*time.Second, time.Millisecond)
}

func (p *livingPool) text() string {
	var words []string
	for _, s := range p.Snapshot().Slots {
		words = append(words, s.State.String())
	}
	return strings.Join(words, " ")
}

func (p *livingPool) choose(session string) *Member {
	p.t.Helper()
	m, _, err := p.Choose(session)
	require.NoError(p.t, err)
	return m
}

func TestAReplicaIsLaunchedServesAndIsRetired(t *testing.T) {
	// Fleet behaviours 80, 85, 86 and 88
	p := startPool(t, 1, quick(1, 1), nil)
	p.until("ready")
	_, err := p.Launch(t.Context(), "")
	require.ErrorIs(t, err, ErrPoolFull)
	m := p.choose("s")
	assert.Equal(t, "n-d0", m.Name)
	retired := make(chan error, 1)
	go func() { retired <- p.Retire(t.Context(), "n-d0") }()
	p.until("draining")
	assert.True(t, p.Snapshot().Replicas[0].Draining)
	_, _, err = p.Choose("t")
	require.Equal(t, pd.CodeNoPair, pd.CodeOf(err), "no new conversation goes to a replica that drains")
	assert.Zero(t, p.Snapshot().Sessions, "its conversations are free to go")
	assert.Empty(t, retired, "a request runs")
	p.Done("s", m)
	require.NoError(t, <-retired)
	assert.Equal(t, "free", p.text())
	assert.Empty(t, p.Snapshot().Replicas)
	assert.Equal(t, pd.CodeNotFound, pd.CodeOf(p.Retire(t.Context(), "n-d0")))
}

func TestTwoDeletesRunOneStop(t *testing.T) {
	p := startPool(t, 1, quick(1, 1), nil)
	p.until("ready")
	m := p.choose("s")
	ends := make(chan error, 3)
	for range 2 {
		go func() { ends <- p.Retire(t.Context(), "n-d0") }()
	}
	gone, cancel := context.WithCancel(t.Context())
	go func() { ends <- p.Retire(gone, "n-d0") }()
	p.until("draining")
	cancel()
	require.ErrorIs(t, <-ends, context.Canceled, "who hangs up leaves the retirement running")
	p.Done("s", m)
	require.NoError(t, <-ends)
	require.NoError(t, <-ends)
	assert.Equal(t, 1, p.world.stops)
}

func TestAStopThatIsNotConfirmedKeepsTheSlot(t *testing.T) {
	// Fleet behaviours 91 and 93
	for _, c := range []struct {
		name string
		harm func(w *world)
	}{
		{"the command fails", func(w *world) { w.stopFails = errors.New("no such broker") }},
		{"it answers 200 afterwards", func(w *world) { w.deaf = true }},
		{"it answers 503 afterwards", func(w *world) { w.deaf = true; w.replicas["n-d0"].status.Store(503) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := quick(1, 1)
			o.StopGrace = 50 * time.Millisecond
			p := startPool(t, 1, o, nil)
			p.until("ready")
			p.world.set(func() { c.harm(p.world) })
			require.ErrorIs(t, p.Retire(t.Context(), "n-d0"), ErrStopUnconfirmed)
			assert.Equal(t, map[string]Reason{"n-d0": StopUnconfirmedReason}, p.Snapshot().Unconfirmed)
			_, err := p.Launch(t.Context(), "")
			require.ErrorIs(t, err, ErrPoolFull)
			_, err = p.Launch(t.Context(), "n-d0")
			require.Equal(t, pd.CodeConflict, pd.CodeOf(err), "nothing is launched onto it by name either")

			p.world.set(func() { p.world.stopFails, p.world.deaf = nil, false })
			require.NoError(t, p.Retire(t.Context(), "n-d0"), "a second try may succeed")
			assert.Equal(t, "free", p.text())
		})
	}
}

func TestReleaseByTheOperator(t *testing.T) {
	p := startPool(t, 1, quick(1, 1), nil)
	p.until("ready")
	require.Equal(t, pd.CodeConflict, pd.CodeOf(p.Release("n-d0")), "a replica that serves is not released")
	p.world.set(func() { p.world.stopFails = errors.New("x") })
	require.Error(t, p.Retire(t.Context(), "n-d0"))
	require.NoError(t, p.Release("n-d0"))
	assert.Equal(t, "free", p.text())
	require.Equal(t, pd.CodeNotFound, pd.CodeOf(p.Release("m-d0")))
}

func TestADeadReplicaIsReplacedOnItsDevices(t *testing.T) {
	o := quick(2, 2)
	o.DrainTimeout = 20 * time.Millisecond // the request on it never ends
	p := startPool(t, 2, o, nil)
	p.until("ready ready")
	first := p.choose("s")
	p.world.kill(first.Name)
	require.Eventually(t, func() bool { return len(p.world.launches()) == 3 }, 20*time.Second, time.Millisecond)
	p.until("ready ready")
	assert.Equal(t, first.Name, p.world.launches()[2])
	assert.EqualValues(t, 1, p.Snapshot().Stats.Replaced)
	p.Done("s", first)
	for _, r := range p.Snapshot().Replicas {
		assert.Zero(t, r.Outstanding, "a late end of a request is not the next instance's")
	}
}

func TestAReplicaThatCannotBeDialledIsOutAtOnce(t *testing.T) {
	o := quick(1, 1)
	o.HealthInterval, o.ReplaceAfter = time.Hour, 0
	p := startPool(t, 1, o, nil)
	p.until("ready")
	m := p.choose("s")
	p.world.kill(m.Name)
	p.Unreachable(m)
	p.Done("s", m)
	_, _, err := p.Choose("s")
	require.Error(t, err)
	p.until("failed")
}

func TestASlotThatKeepsLosingReplicasIsAbandoned(t *testing.T) {
	p := startPool(t, 1, quick(1, 1), nil)
	p.until("ready")
	p.world.set(func() { p.world.refuse = errors.New("no such model") })
	p.world.kill("n-d0")
	p.until("abandoned")
	assert.Equal(t, []string{"n-d0", "n-d0", "n-d0"}, p.world.launches(), "the first and two that were refused")
	s := p.Snapshot()
	assert.Equal(t, []string{"n-d0"}, s.Abandoned)
	assert.Zero(t, s.Owned)
	p.world.set(func() { p.world.refuse = nil })
	_, err := p.Launch(t.Context(), "")
	require.NoError(t, err, "an operator may use it")
	p.until("ready")
	assert.Zero(t, p.Snapshot().Slots[0].Strikes)
}

func TestAStopThatIsNotConfirmedIsNeverLaunchedOnto(t *testing.T) {
	p := startPool(t, 1, quick(1, 1), nil)
	p.until("ready")
	p.world.set(func() { p.world.stopFails = errors.New("x") })
	p.world.kill("n-d0")
	p.until("unconfirmed")
	assert.Len(t, p.world.launches(), 1)
}

func TestALaunchThatIsRefusedGivesItsSlotBack(t *testing.T) {
	// Fleet behaviour 83
	p := startPool(t, 1, quick(0, 1), nil)
	p.world.set(func() { p.world.refuse = errors.New("no such file") })
	_, err := p.Launch(t.Context(), "")
	var failed *LaunchError
	require.ErrorAs(t, err, &failed)
	require.ErrorContains(t, err, "launch failed: no such file")
	assert.Equal(t, "free", p.text())
	assert.Empty(t, p.Snapshot().Replicas)
}

func TestAnUncertainLaunchIsStoppedBeforeItsSlotIsFree(t *testing.T) {
	for name, stop := range map[string]error{"free": nil, "unconfirmed": errors.New("x")} {
		t.Run(name, func(t *testing.T) {
			p := startPool(t, 1, quick(0, 1), nil)
			p.world.set(func() { p.world.refuse, p.world.stopFails = fmt.Errorf("%w: ssh was cut", ErrLaunchUncertain), stop })
			_, err := p.Launch(t.Context(), "")
			require.ErrorIs(t, err, ErrLaunchUncertain)
			p.until(name)
			assert.Equal(t, 1, p.world.stops)
			if stop != nil {
				assert.Equal(t, LaunchUnconfirmedReason, p.Snapshot().Unconfirmed["n-d0"])
			}
		})
	}
}

func TestAReplicaThatIsNeverReadyIsStopped(t *testing.T) {
	// Fleet behaviour 84
	o := quick(0, 1)
	o.LaunchTimeout = 100 * time.Millisecond
	p := startPool(t, 1, o, nil)
	p.world.set(func() { p.world.dead = true })
	_, err := p.Launch(t.Context(), "")
	require.NoError(t, err)
	p.until("free")
	assert.Equal(t, 1, p.world.stops)
	assert.EqualValues(t, 1, p.Snapshot().Stats.LaunchTimeouts)
}

func TestAProcessThatEndsWhileItLoadsIsNotWaitedFor(t *testing.T) {
	p := startPool(t, 1, quick(0, 1), nil)
	p.world.set(func() {
		p.world.launching = func(l Launch) { p.processExited(l, errors.New("exit status 1")) }
		p.world.dead = true
	})
	_, err := p.Launch(t.Context(), "")
	require.NoError(t, err)
	p.until("free")
}

func TestInitialLaunchesAreInTheOrderOfTheSlots(t *testing.T) {
	// Fleet behaviour 81
	hold := make(chan struct{})
	p := startPool(t, 3, quick(2, 3), func(_ *PoolOptions, w *world) { w.hold = hold })
	require.Eventually(t, func() bool { return len(p.world.launches()) == 2 }, 20*time.Second, time.Millisecond, "both at once")
	assert.ElementsMatch(t, []string{"n-d0", "n-d1"}, p.world.launches())
	close(hold)
	p.until("ready ready free")
}

// Hazard 9: a launch that runs when the router stops is not forgotten.
func TestShutdownRetiresWhatItLaunched(t *testing.T) {
	hold := make(chan struct{})
	p := startPool(t, 2, quick(1, 2), nil)
	p.until("ready free")
	p.world.set(func() { p.world.hold = hold })
	launched := make(chan error, 1)
	go func() { _, err := p.Launch(context.Background(), ""); launched <- err }()
	p.until("ready launching")
	ended := make(chan error, 1)
	go func() { ended <- p.Shutdown(context.Background()) }()
	p.until("free launching")
	assert.Empty(t, ended, "a launch that runs is waited for")
	_, err := p.Launch(t.Context(), "")
	require.Equal(t, pd.CodeDraining, pd.CodeOf(err))
	close(hold)
	require.NoError(t, <-launched)
	require.NoError(t, <-ended)
	assert.Equal(t, "free free", p.text())
	assert.Empty(t, p.world.replicas)
}

func TestShutdownNamesWhatIsNotConfirmed(t *testing.T) {
	p := startPool(t, 1, quick(1, 1), nil)
	p.until("ready")
	p.world.set(func() { p.world.stopFails = errors.New("x") })
	err := p.Shutdown(t.Context())
	require.ErrorIs(t, err, ErrStopUnconfirmed)
	require.ErrorContains(t, err, "n-d0")
}

// stateful gives a pool a state file that holds a record of slot 0.
func stateful(t *testing.T, record func(c *Config) StateFile) (func(*PoolOptions, *world), string) {
	path := filepath.Join(t.TempDir(), "state.json")
	store, err := OpenState(path)
	require.NoError(t, err)
	t.Cleanup(func() { store.Close() })
	return func(o *PoolOptions, _ *world) {
		o.Store, o.State = store, record(o.Config)
		require.NoError(t, store.Save(o.State))
	}, path
}

func recordOf(c *Config, serverID string) StateFile {
	s := c.Slots[0]
	return StateFile{Version: stateVersion, Replicas: []StateEntry{{
		Slot: s.Name, Host: s.HostName, Devices: s.Devices, Address: s.Address, Port: s.Port, Instance: "old-1", ServerID: serverID, EverReady: true,
	}}}
}

func TestARestartAdoptsWhatAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int // 0: nothing answers
		id     string
		want   string
	}{
		// Fleet behaviours 94, 95 and 96
		{"200", 200, "server of old-1", "ready"},
		{"200, never identified", 200, "", "ready"},
		{"503", 503, "server of old-1", "starting"},
		{"nothing", 0, "", "unconfirmed"},
		{"a stranger", 200, "server of somebody else", "unconfirmed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stores, _ := stateful(t, func(config *Config) StateFile { return recordOf(config, c.id) })
			p := startPool(t, 1, quick(1, 1), func(o *PoolOptions, w *world) {
				stores(o, w)
				if c.status != 0 {
					w.serve(Launch{Slot: o.Config.Slots[0], Instance: "old-1"}, c.status)
				}
			})
			p.until(c.want)
			require.Eventually(t, func() bool {
				s := p.Snapshot().Stats
				return s.ProbesOK+s.ProbesAnswered+s.ProbesFailed+s.ProbesSkipped > 3
			}, 20*time.Second, time.Millisecond)
			assert.Equal(t, c.want, p.text())
			assert.Empty(t, p.world.launches(), "adopted ones count as initial ones, and held slots are not launched onto")
			if c.want != "unconfirmed" {
				require.NoError(t, p.Retire(t.Context(), "n-d0"), "as if it had been launched now")
			}
		})
	}
}

func TestASlotThatWasSilentIsAdoptedWhenItAnswers(t *testing.T) {
	stores, _ := stateful(t, func(c *Config) StateFile { return recordOf(c, "") })
	p := startPool(t, 1, quick(0, 1), stores)
	p.until("unconfirmed")
	assert.Equal(t, map[string]Reason{"n-d0": UnreachableReason}, p.Snapshot().Unconfirmed)
	p.world.serve(Launch{Slot: p.options.Config.Slots[0], Instance: "old-1"}, 200)
	p.until("ready")
	assert.EqualValues(t, 1, p.Snapshot().Stats.Adopted)
}

func TestTheIntentIsInTheFileBeforeTheProcess(t *testing.T) {
	stores, path := stateful(t, func(*Config) StateFile { return StateFile{Version: stateVersion} })
	var seen StateFile
	p := startPool(t, 1, quick(1, 1), func(o *PoolOptions, w *world) {
		stores(o, w)
		w.launching = func(Launch) {
			text, err := os.ReadFile(path)
			assert.NoError(t, err)
			seen, err = ParseState(text)
			assert.NoError(t, err)
		}
	})
	p.until("ready")
	require.Len(t, seen.Replicas, 1)
	assert.Equal(t, "b-1", seen.Replicas[0].Instance)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		f, err := p.options.Store.Load()
		assert.NoError(c, err)
		if assert.Len(c, f.Replicas, 1) {
			assert.Equal(c, "server of b-1", f.Replicas[0].ServerID)
			assert.True(c, f.Replicas[0].EverReady)
		}
	}, 20*time.Second, time.Millisecond)
}

func TestNothingIsLaunchedThatNoFileKnows(t *testing.T) {
	stores, path := stateful(t, func(*Config) StateFile { return StateFile{Version: stateVersion} })
	p := startPool(t, 1, quick(0, 1), stores)
	// A folder where the temporary file goes cannot be written.
	require.NoError(t, os.Mkdir(path+".tmp", 0o755))
	_, err := p.Launch(t.Context(), "")
	require.ErrorContains(t, err, "state file cannot be written")
	assert.Empty(t, p.world.launches())
	assert.NotEmpty(t, p.Snapshot().StateError)
	require.NoError(t, os.Remove(path+".tmp"))
	_, err = p.Launch(t.Context(), "")
	require.NoError(t, err)
	p.until("ready")
	assert.Empty(t, p.Snapshot().StateError)
}

func TestReloadOfALivingPool(t *testing.T) {
	p := startPool(t, 2, quick(2, 2), nil)
	p.until("ready ready")
	base := p.options.Config.Slots[0].Port
	c, err := Parse(fmt.Appendf(nil, `{"replicas":[{"name":"x","host":"127.0.0.1","port":%d}],"hosts":[{"name":"n","devices":[0],"port_base":%d,"model":"m"}]}`, freePorts(t, 1), base))
	require.NoError(t, err)
	require.NoError(t, p.Reload(c, quick(1, 1)))
	p.until("ready")
	var names []string
	for _, r := range p.Snapshot().Replicas {
		names = append(names, r.Name)
	}
	assert.Equal(t, []string{"n-d0", "x"}, names)
	assert.Equal(t, 1, p.world.stops)
	require.Eventually(t, func() bool { return p.Snapshot().Replicas[1].Phase == "failed" }, 20*time.Second, time.Millisecond, "it is probed")
	recut, err := Parse(fmt.Appendf(nil, `{"hosts":[{"name":"n","devices":[0,1],"devices_per_replica":2,"port_base":%d,"model":"m"}]}`, base))
	require.NoError(t, err)
	require.ErrorContains(t, p.Reload(recut, quick(1, 1)), "clashes")
	assert.Len(t, p.Snapshot().Replicas, 2, "nothing changed")
}

func TestEveryRecordIsReservedBeforeAnythingIsAsked(t *testing.T) {
	stores, _ := stateful(t, func(c *Config) StateFile { return recordOf(c, "") })
	c, err := Parse(fmt.Appendf(nil, `{"hosts":[{"name":"n","devices":[0],"port_base":%d,"model":"m"}]}`, freePorts(t, 1)))
	require.NoError(t, err)
	o := PoolOptions{Config: c, Options: quick(1, 1), Boot: "b"}
	stores(&o, nil)
	p, err := NewPool(o) // and nobody runs it
	require.NoError(t, err)
	assert.Equal(t, map[string]Reason{"n-d0": UnreachableReason}, p.Snapshot().Unconfirmed)
	_, _, err = p.order("", true)
	require.ErrorIs(t, err, ErrPoolFull)
	assert.Zero(t, p.Snapshot().Stats.ProbesFailed)
	p.stop()
	p.tasks.Wait()
}

// The timer that looks at what is due must not wake itself: an idle router would
// use a whole core.
func TestTheTimerDoesNotWakeItself(t *testing.T) {
	p := startPool(t, 1, quick(1, 1), nil)
	p.until("ready")
	p.end()
	for len(p.kick) > 0 {
		<-p.kick
	}
	p.tick()
	assert.Empty(t, p.kick)
	p.do(nil)
	assert.Len(t, p.kick, 1, "anybody else does wake it")
}
