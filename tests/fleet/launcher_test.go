package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/router/fleet"
	"github.com/hw-native-sys/pypto-pd/router/fleet/launcher"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
	"github.com/hw-native-sys/pypto-pd/tests/fleet/sshhost"
	"github.com/hw-native-sys/pypto-pd/tests/fleet/stub"
)

type fields = map[string]any

// bench is a launcher with a host whose replicas are stubs.
type bench struct {
	*launcher.Launcher
	// dir is where the logs are below, cards the folder of the cards' locks.
	dir, cards string
	host       fields
}

// here is a bench on the tests' own machine.
func here(t *testing.T, more fields) *bench {
	t.Helper()
	b := &bench{dir: filepath.Join(t.TempDir(), "lo gs"), cards: t.TempDir()}
	b.host = fields{
		"name": "n", "model": "/weights/my model", "devices": []int{0, 1}, "devices_per_replica": 2, "port_base": cluster.Ports(t, 1)[0],
		"program": []string{stub.Program(t)}, "log_dir": b.dir, "env": map[string]string{stub.CardsVariable: b.cards, stub.NameVariable: "card {devices}"},
	}
	maps.Copy(b.host, more)
	t.Cleanup(func() {
		stub.Bury(b.dir)
		assert.Empty(t, stub.Violations(t, b.cards))
	})
	b.open(t, launcher.Options{})
	return b
}

// far is a bench on a host behind ssh.
func far(t *testing.T, l *sshhost.Lab, h *sshhost.Host, more fields) *bench {
	t.Helper()
	all := fields{"ssh": h.SSH, "identity_file": l.Key}
	maps.Copy(all, more)
	b := here(t, all)
	b.open(t, launcher.Options{Env: l.Env()})
	return b
}

// open gives the bench another launcher.
func (b *bench) open(t *testing.T, o launcher.Options) {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	b.Launcher = launcher.New(o)
	t.Cleanup(b.Launcher.Close)
}

func (b *bench) env(name, value string) {
	b.host["env"].(map[string]string)[name] = value
}

// launch is an instance of the bench's slot.
func (b *bench) launch(t *testing.T, instance string) fleet.Launch {
	t.Helper()
	text, err := json.Marshal(fields{"hosts": []any{b.host}})
	require.NoError(t, err)
	c, err := fleet.Parse(text)
	require.NoError(t, err)
	return fleet.Launch{Slot: c.Slots[0], Host: &c.Hosts[0], Instance: instance, Grace: 4 * time.Second}
}

func (b *bench) start(t *testing.T, l fleet.Launch) {
	t.Helper()
	require.NoError(t, b.Launch(t.Context(), l, func(err error) { t.Log(err) }))
}

// serves waits until the slot's replica answers, and says who it is.
func serves(t *testing.T, l fleet.Launch) string {
	t.Helper()
	var out struct {
		ServedBy string `json:"served_by"`
	}
	cluster.Eventually(t, func() error {
		status, body, err := cluster.Get(l.Slot.URL() + "/health")
		if err == nil && status != 200 {
			err = fmt.Errorf("%d %s", status, body)
		}
		if err != nil {
			return err
		}
		return json.Unmarshal(body, &out)
	})
	return out.ServedBy
}

// silent asserts that nothing listens at the slot's address.
func silent(t *testing.T, l fleet.Launch) {
	t.Helper()
	require.NoError(t, listens(l))
}

func listens(l fleet.Launch) error {
	c, err := net.Dial("tcp", net.JoinHostPort(l.Slot.Address, fmt.Sprint(l.Slot.Port)))
	if err == nil {
		c.Close()
		return errors.New("it listens")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return nil
}

// cardsFree asserts that nothing holds the slot's cards.
func (b *bench) cardsFree(t *testing.T, l fleet.Launch) {
	t.Helper()
	for _, d := range l.Slot.Devices {
		require.False(t, stub.CardHeld(t, b.cards, d), "card %d", d)
	}
}

// Fleet behaviour 72
// Fleet behaviour 78
// A replica of two cards is launched, serves, is stopped as one, and the next one
// has its port and its cards.
func TestLaunchAndStop(t *testing.T) {
	t.Parallel()
	lab := sshhost.Start(t, 1)
	for name, b := range map[string]*bench{"here": here(t, nil), "over ssh": far(t, lab, lab.Hosts[0], nil), "over ssh by an alias": far(t, lab, lab.Hosts[0], fields{"ssh": lab.Hosts[0].Alias, "address": lab.Hosts[0].Address})} {
		t.Run(name, func(t *testing.T) {
			b.env(stub.WorkersVariable, "session")
			b.host["workdir"] = t.TempDir()
			for _, instance := range []string{"i1", "i2"} {
				l := b.launch(t, instance)
				b.start(t, l)
				require.Equal(t, "card 0,1", serves(t, l))
				require.True(t, stub.CardHeld(t, b.cards, 0) && stub.CardHeld(t, b.cards, 1))
				require.NoError(t, b.Stop(t.Context(), l))
				silent(t, l)
				b.cardsFree(t, l)
				log, err := b.Log(t.Context(), l, 1<<16)
				require.NoError(t, err)
				require.Contains(t, string(log), "launch "+instance+": ")
				require.Contains(t, string(log), "startup: port bound: ")
				require.NotContains(t, string(log), b.cards, "values of variables are in no log")
			}
			require.Len(t, stub.Starts(t, b.cards), 2)
		})
	}
}

// Hazard 6: silence proves nothing for a replica that never listened.
func TestStopOfAReplicaThatLoads(t *testing.T) {
	t.Parallel()
	lab := sshhost.Start(t, 1)
	for name, b := range map[string]*bench{"here": here(t, nil), "over ssh": far(t, lab, lab.Hosts[0], nil)} {
		t.Run(name, func(t *testing.T) {
			b.env(stub.LoadVariable, "1h")
			b.env(stub.WorkersVariable, "group")
			l := b.launch(t, "i1")
			b.start(t, l)
			cluster.Eventually(t, func() error {
				if !stub.CardHeld(t, b.cards, 0) || !stub.CardHeld(t, b.cards, 1) {
					return errors.New("it has not begun to load")
				}
				return nil
			})
			silent(t, l)
			require.NoError(t, b.Stop(t.Context(), l))
			b.cardsFree(t, l)
		})
	}
}

// The server dies, its port is silent at once, and its workers hold the cards
// and do not listen: a stop that has succeeded has ended them, too.
//
// Case B20.
func TestStopAfterACrash(t *testing.T) {
	t.Parallel()
	lab := sshhost.Start(t, 1)
	for name, b := range map[string]*bench{"here": here(t, nil), "over ssh": far(t, lab, lab.Hosts[0], nil)} {
		for _, workers := range []string{"group", "session"} {
			t.Run(name+" "+workers, func(t *testing.T) {
				b.env(stub.WorkersVariable, workers)
				b.env(stub.DeafWorkersVariable, "1h")
				l := b.launch(t, "of "+workers)
				b.start(t, l)
				serves(t, l)
				stub.Post(t, l.Slot.URL()+"/crash", nil)
				cluster.Eventually(t, func() error { return listens(l) }) // a dying process closes one by one
				require.True(t, stub.CardHeld(t, b.cards, 0))
				require.NoError(t, b.Stop(t.Context(), l))
				b.cardsFree(t, l)
			})
		}
	}
}

// Two hosts use one port, and the tests' own machine, too: a stop ends the
// replica of its own host.
func TestStopKeepsToItsHost(t *testing.T) {
	t.Parallel()
	lab := sshhost.Start(t, 2)
	benches := []*bench{far(t, lab, lab.Hosts[0], nil), far(t, lab, lab.Hosts[1], nil), here(t, nil)}
	var all []fleet.Launch
	for _, b := range benches {
		b.host["port_base"] = benches[0].host["port_base"]
		l := b.launch(t, "i1")
		b.start(t, l)
		serves(t, l)
		all = append(all, l)
	}
	// Without its files and its mark, the name and the port are what is left.
	require.NoError(t, os.RemoveAll(benches[0].dir))
	stranger := all[0]
	other := *stranger.Host
	other.LogDir = t.TempDir()
	stranger.Host = &other
	require.NoError(t, benches[0].Stop(t.Context(), stranger), "the slot of another router, which has the same port")
	for i, l := range all {
		serves(t, l)
		require.NoError(t, benches[i].Stop(t.Context(), l))
		silent(t, l)
	}
}

// A host that refuses, is off, or is not who it was: nothing was started, and the
// reason is told.
func TestHostThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	lab := sshhost.Start(t, 3)
	lab.Hosts[1].Network.CutOff(t)
	known := far(t, lab, lab.Hosts[2], nil)
	l := known.launch(t, "i0")
	known.start(t, l)
	require.NoError(t, known.Stop(t.Context(), l))
	lab.ChangeKeys(t, lab.Hosts[2])
	for name, c := range map[string]struct {
		b    *bench
		want string
	}{
		"key":      {far(t, lab, lab.Hosts[0], fields{"identity_file": lab.WrongKey}), "root@" + lab.Hosts[0].Address + ": Permission denied (publickey)."},
		"no key":   {far(t, lab, lab.Hosts[0], fields{"identity_file": "/no/such/key"}), "Permission denied (publickey)."},
		"off":      {far(t, lab, lab.Hosts[1], nil), "ssh: connect to host " + lab.Hosts[1].Address + " port 22: Connection timed out"},
		"name":     {far(t, lab, lab.Hosts[0], fields{"ssh": "no-such-host.invalid", "address": "127.0.0.1"}), "Could not resolve hostname no-such-host.invalid"},
		"identity": {known, "Host key verification failed."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := c.b.launch(t, "i1")
			err := c.b.Launch(t.Context(), l, nil)
			require.ErrorContains(t, err, "launch n-d0: host n cannot be used: ssh: exit status 255: ")
			require.ErrorContains(t, err, c.want)
			require.NotErrorIs(t, err, fleet.ErrLaunchUncertain)
			require.NotContains(t, err.Error(), c.b.cards, "values of variables are in no error")
			require.False(t, marked(l))
			require.ErrorContains(t, c.b.Stop(t.Context(), l), "stop n-d0 on host n: ssh: exit status 255: ")
		})
	}
}

// Hazard 7: the host is cut off in the middle of a launch. Nobody can know what
// it did, and the launch that waits over there must not start anything once a
// stop has said that nothing is left.
func TestHostThatIsCutOffInTheMiddle(t *testing.T) {
	t.Parallel()
	lab := sshhost.Start(t, 1)
	host := lab.Hosts[0]
	b := far(t, lab, host, nil)
	l := b.launch(t, "i1")
	// The header of the log waits until somebody reads it.
	require.NoError(t, os.MkdirAll(b.dir, 0o700))
	require.NoError(t, syscall.Mkfifo(l.LogPath(), 0o600))
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Launch(ctx, l, nil) }()
	underWay := func() bool { return marked(l) }
	cluster.Eventually(t, func() error {
		if !underWay() {
			return errors.New("the launch has not arrived")
		}
		return nil
	})
	host.Network.CutOff(t)
	cancel(errors.New("given up"))
	err := <-ended
	require.ErrorIs(t, err, fleet.ErrLaunchUncertain)
	require.EqualError(t, err, "launch n-d0 on host n: ssh: killed: given up; something may have been started")
	require.ErrorContains(t, b.Stop(t.Context(), l), "exit status 255", "a host that is off is not stopped")
	require.True(t, underWay())

	host.Network.Heal(t)
	require.NoError(t, b.Stop(t.Context(), l))
	require.False(t, underWay(), "the shell that would start the server is gone")
	require.NoError(t, os.Remove(l.LogPath()))
	require.Empty(t, stub.Starts(t, b.cards))

	// The same line, delivered late, starts nothing; the next one does.
	require.ErrorContains(t, b.Launch(t.Context(), l, nil), "stopped meanwhile")
	next := b.launch(t, "i2")
	b.start(t, next)
	serves(t, next)
	require.NoError(t, b.Stop(t.Context(), next))
	require.Len(t, stub.Starts(t, b.cards), 1)
}

// marked says that a process of the slot is there.
func marked(l fleet.Launch) bool {
	processes, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, p := range processes {
		b, err := os.ReadFile(p)
		if err == nil && strings.Contains("\x00"+string(b), "\x00PYPTO_FLEET_SLOT="+l.PidPath()+"\x00") {
			return true
		}
	}
	return false
}

// A replica that does not listen to SIGTERM is killed at half the grace.
func TestDeafReplica(t *testing.T) {
	t.Parallel()
	b := here(t, nil)
	b.env(stub.DeafVariable, "1")
	l := b.launch(t, "i1")
	b.start(t, l)
	serves(t, l)
	require.NoError(t, b.Stop(t.Context(), l))
	silent(t, l)
	b.cardsFree(t, l)
}

// A load that fails is told with what the server said, long before the launch
// timeout.
func TestLoadThatFails(t *testing.T) {
	t.Parallel()
	b := here(t, nil)
	b.env(stub.FailVariable, "3")
	l := b.launch(t, "i1")
	ended := make(chan error, 1)
	require.NoError(t, b.Launch(t.Context(), l, func(err error) { ended <- err }))
	select {
	case err := <-ended:
		require.ErrorContains(t, err, "the process of n-d0 has ended: exit status 3: ")
		require.ErrorContains(t, err, "out of memory on a card")
	case <-time.After(cluster.Patience):
		t.Fatal("nothing was told")
	}
	require.NoError(t, b.Stop(t.Context(), l))
}

// Fleet behaviour 73
// The real server takes the command line that a fleet gives it, and says which
// life it is.
func TestRealServer(t *testing.T) {
	t.Parallel()
	b := here(t, fields{
		"program": []string{filepath.Join(cluster.Bin(t), cluster.Serving)}, "served_model_name": "q",
		"serve_args": []string{"--ep", "2", "--tp", "1", "--lm-head-tp", "1", "--max-model-len", "1024"},
	})
	lives := map[any]bool{}
	for _, instance := range []string{"i1", "i2"} {
		l := b.launch(t, instance)
		b.start(t, l)
		serves(t, l)
		status, body, err := cluster.Get(l.Slot.URL() + "/metrics/json")
		require.NoError(t, err)
		require.Equal(t, 200, status)
		var snapshot fields
		require.NoError(t, json.Unmarshal(body, &snapshot))
		lives[snapshot["server_id"]] = true
		log, err := b.Log(t.Context(), l, 1<<16)
		require.NoError(t, err)
		require.Contains(t, string(log), "pypto-serving: startup: model /weights/my model, served as q, revision ")
		require.NoError(t, b.Stop(t.Context(), l))
		silent(t, l)
	}
	require.Len(t, lives, 2)
}
