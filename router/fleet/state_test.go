package fleet

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// writerVariable makes the test binary a router that writes its state file until
// it is killed.
const writerVariable = "FLEET_TEST_STATE_WRITER"

func TestMain(m *testing.M) {
	if path := os.Getenv(writerVariable); path != "" {
		writeForEver(path)
	}
	goleak.VerifyTestMain(m)
}

// writeForEver changes the file's length with every write and says so after each.
func writeForEver(path string) {
	s, err := OpenState(path)
	for i := 1; err == nil; i++ {
		if err = s.Save(stateOf(i)); err == nil {
			fmt.Println(i)
		}
	}
	fmt.Println(err)
	os.Exit(1)
}

// stateOf has one entry per port, so that a mixture of two files is seen.
func stateOf(i int) StateFile {
	f := StateFile{Version: stateVersion, Replicas: []StateEntry{}}
	for j := range i%50 + 1 {
		f.Replicas = append(f.Replicas, StateEntry{Slot: fmt.Sprintf("s%d", j), Host: "n", Devices: []int{j}, Address: "a", Port: i%60000 + 1, Instance: fmt.Sprintf("i%d", j)})
	}
	return f
}

const twoHosts = `{"hosts":[{"name":"n","devices":[0,1],"model":"m"},{"name":"w","ssh":"far","devices":[0,1,2,3],"devices_per_replica":2,"model":"m"}]}`

func TestSnapshotGoesRound(t *testing.T) {
	// Fleet behaviour 94
	c := mustParse(t, twoHosts)
	now := time.Unix(2000, 0).UTC()
	m := NewMachine(c.Slots, testPolicy, "b")
	for range 3 {
		_, _, err := m.Launch(false, now)
		require.NoError(t, err)
	}
	for _, e := range []Event{{LaunchAccepted, "n-d0", "b-1"}, {ProbeOK, "n-d0", "b-1"}, {LaunchUncertain, "n-d1", "b-2"}, {StopUnconfirmed, "n-d1", "b-2"}} {
		_, err := m.Step(e, now)
		require.NoError(t, err)
	}
	s, err := OpenState(filepath.Join(t.TempDir(), "sub", "state.json"))
	require.NoError(t, err)
	defer s.Close()
	want := StateFile{
		Version: 1,
		Replicas: []StateEntry{
			{Slot: "n-d0", Host: "n", Devices: []int{0}, Address: "127.0.0.1", Port: 8001, Instance: "b-1", LaunchedAt: now, EverReady: true},
			{Slot: "w-d0", Host: "w", Devices: []int{0, 1}, Address: "far", Port: 8001, Instance: "b-3", LaunchedAt: now},
		},
		Unconfirmed: []StateEntry{{Slot: "n-d1", Host: "n", Devices: []int{1}, Address: "127.0.0.1", Port: 8002, Instance: "b-2", LaunchedAt: now, Reason: LaunchUnconfirmedReason, Since: now}},
	}
	require.Equal(t, want, m.Snapshot(nil))
	require.NoError(t, s.Save(want))
	got, err := s.Load()
	require.NoError(t, err)
	assert.Equal(t, want, got)
	info, err := os.Stat(s.path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestMissingStateIsEmpty(t *testing.T) {
	// Fleet behaviour 97
	s, err := OpenState(filepath.Join(t.TempDir(), "state.json"))
	require.NoError(t, err)
	defer s.Close()
	f, err := s.Load()
	require.NoError(t, err)
	holds, kept := Recover(mustParse(t, twoHosts).Slots, f, time.Time{})
	assert.Empty(t, holds)
	assert.Empty(t, kept)
}

func TestOneRouterPerState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	s, err := OpenState(path)
	require.NoError(t, err)
	_, err = OpenState(path)
	require.EqualError(t, err, "lock state file "+path+": another router uses it")
	require.NoError(t, s.Close())
	s, err = OpenState(path)
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

func TestStateOfAnUpstreamRouter(t *testing.T) {
	f, err := ParseState([]byte(`{"replicas":[{"slot":"n-d0","host":"n","devices":[0],"address":"a","port":1,"new":true},{"slot":"n-d1","host":"n","device":1,"address":"a","port":2}],"x":1}`))
	require.NoError(t, err)
	assert.Equal(t, []StateEntry{
		{Slot: "n-d0", Host: "n", Devices: []int{0}, Address: "a", Port: 1, Instance: "recorded-n-d0"},
		{Slot: "n-d1", Host: "n", Devices: []int{1}, Address: "a", Port: 2, Instance: "recorded-n-d1"},
	}, f.Replicas)
}

func TestCorruptStateIsRefused(t *testing.T) {
	entry := `{"slot":"s","host":"n","devices":[0],"address":"a","port":1}`
	for _, c := range []struct{ name, in, want string }{
		{"empty", "", "the text is empty"},
		{"later version", `{"version":2,"replicas":[]}`, "version 2 is not known here"},
		{"twice", `{"replicas":[` + entry + `,` + entry + `]}`, `slot "s" is empty or recorded twice`},
		{"in both lists", `{"replicas":[` + entry + `],"unconfirmed":[` + entry + `]}`, "recorded twice"},
		{"no reason", `{"replicas":[],"unconfirmed":[` + entry + `]}`, "without a reason"},
		{"no devices", `{"replicas":[{"slot":"s","host":"n","address":"a","port":1}]}`, "lacks devices"},
		{"no list", `{"version":1}`, "replicas (line 1, column 1): is missing"},
		{"wrong kind", `{"replicas":[{"slot":"s","host":"n","devices":[0],"address":"a","port":"1"}]}`, "want an integer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.json")
			require.NoError(t, os.WriteFile(path, []byte(c.in), 0o600))
			s, err := OpenState(path)
			require.NoError(t, err)
			defer s.Close()
			_, err = s.Load()
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, path)
			require.ErrorContains(t, err, "--discard-state")
			require.Equal(t, pd.CodeInvalidConfig, pd.CodeOf(err))
		})
	}
}

// TestCutAtEveryByte: no beginning of a state file is taken for a whole one.
func TestCutAtEveryByte(t *testing.T) {
	text, err := json.MarshalIndent(stateOf(2), "", " ")
	require.NoError(t, err)
	_, err = ParseState(text)
	require.NoError(t, err)
	for n := range text {
		_, err := ParseState(text[:n])
		require.Error(t, err, "cut at byte %d", n)
	}
}

// TestKilledWriterLeavesAWholeFile kills a writer at moments of its own choice:
// after some line that it has printed, anywhere in the write behind it.
func TestKilledWriterLeavesAWholeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	for round := 1; round <= 12; round++ {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), writerVariable+"="+path)
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		lines := bufio.NewScanner(out)
		for range round {
			require.True(t, lines.Scan())
		}
		require.NoError(t, c.Process.Kill())
		last := lines.Text()
		for lines.Scan() {
			last = lines.Text()
		}
		require.Error(t, c.Wait())
		var n int
		_, err = fmt.Sscan(last, &n)
		require.NoError(t, err, "the writer said %q", last)

		s, err := OpenState(path)
		require.NoError(t, err, "a killed router's lock is gone")
		f, err := s.Load()
		require.NoError(t, err)
		require.NoError(t, s.Close())
		assert.Contains(t, []StateFile{stateOf(n), stateOf(n + 1)}, f, "what was confirmed is there, or the write behind it")
	}
}

func TestRecover(t *testing.T) {
	c := mustParse(t, twoHosts)
	now, then := time.Unix(5000, 0), time.Unix(4000, 0)
	entry := func(slot, host string, port int, address string, devices ...int) StateEntry {
		return StateEntry{Slot: slot, Host: host, Devices: devices, Address: address, Port: port, Instance: "i", LaunchedAt: then, EverReady: true, Strikes: 1}
	}
	here := entry("n-d1", "n", 8002, "127.0.0.1", 1)
	for _, r := range []struct {
		name  string
		entry StateEntry
		want  []Hold
		kept  bool
	}{
		// Fleet behaviours 95 and 96
		{"as declared", here, []Hold{{Slot: "n-d1", Reason: UnreachableReason, Instance: "i", LaunchedAt: then, EverReady: true, Strikes: 1, Since: now}}, false},
		{"not declared", entry("gone-d0", "gone", 8001, "a", 0), nil, true},
		{"cut anew", entry("w-d1", "w", 8002, "far", 1, 2), []Hold{
			{Slot: "w-d0", Reason: NotDeclaredReason, Instance: "i@w-d0", Since: now}, {Slot: "w-d2", Reason: NotDeclaredReason, Instance: "i@w-d2", Since: now},
		}, true},
		{"other port", entry("w-d0", "w", 9001, "far", 0, 1), []Hold{{Slot: "w-d0", Reason: NotDeclaredReason, Instance: "i@w-d0", Since: now}}, true},
	} {
		t.Run(r.name, func(t *testing.T) {
			holds, kept := Recover(c.Slots, StateFile{Replicas: []StateEntry{r.entry}}, now)
			assert.Equal(t, r.want, holds)
			assert.Equal(t, r.kept, len(kept) == 1)

			m := NewMachine(c.Slots, testPolicy, "b")
			_, err := m.Restore(holds)
			require.NoError(t, err)
			assert.Equal(t, len(r.want), m.Reserved(), "counts against the ceiling")
			// A second restart finds the same reservations, whatever answers now.
			text, err := json.Marshal(m.Snapshot(kept))
			require.NoError(t, err)
			again, err := ParseState(text)
			require.NoError(t, err)
			second, _ := Recover(c.Slots, again, now)
			var slots, slotsAgain []string
			for _, d := range r.want {
				slots = append(slots, d.Slot)
			}
			for _, d := range second {
				slotsAgain = append(slotsAgain, d.Slot)
			}
			assert.Equal(t, slots, slotsAgain)
		})
	}
}

func TestUnresolvedReservationsKeepTheirReason(t *testing.T) {
	c := mustParse(t, twoHosts)
	then := time.Unix(4000, 0).UTC()
	e := StateEntry{Slot: "n-d0", Host: "n", Devices: []int{0}, Address: "127.0.0.1", Port: 8001, Instance: "i", Reason: StopUnconfirmedReason, Since: then}
	holds, _ := Recover(c.Slots, StateFile{Unconfirmed: []StateEntry{e}}, time.Unix(5000, 0))
	m := NewMachine(c.Slots, testPolicy, "b")
	_, err := m.Restore(holds)
	require.NoError(t, err)
	assert.Equal(t, []StateEntry{e}, m.Snapshot(nil).Unconfirmed)
	_, err = m.Restore(holds)
	require.Error(t, err, "once")
}

func TestALateAnswerAdopts(t *testing.T) {
	for k, want := range map[EventKind]State{ProbeOK: Ready, ProbeAnswered: Starting} {
		f := newFleet(t, 1, testPolicy)
		f.reach(Unconfirmed)
		assert.Contains(t, f.do(0, k), "Persist Register")
		assert.Equal(t, want, f.state(0))
	}
}

func TestReleaseOfARecord(t *testing.T) {
	c := mustParse(t, twoHosts)
	now := time.Unix(5000, 0)
	record := func(slot string, devices ...int) StateEntry {
		return StateEntry{Slot: slot, Host: "w", Devices: devices, Address: "far", Port: 9000, Instance: slot}
	}
	holds, kept := Recover(c.Slots, StateFile{Replicas: []StateEntry{record("w-d1", 1, 2), record("w-d3", 3)}}, now)
	m := NewMachine(c.Slots, testPolicy, "b")
	_, err := m.Restore(holds)
	require.NoError(t, err)
	require.Equal(t, 2, m.Reserved())
	for _, k := range []EventKind{RemoveOrdered, ForceReleased} {
		_, err = m.Step(Event{Kind: k, Slot: "w-d0"}, now)
		require.ErrorContains(t, err, "release the record")
	}
	_, _, err = m.ReleaseRecord(kept, "w-d0", now)
	require.ErrorIs(t, err, pd.CodeNotFound)

	kept, effects, err := m.ReleaseRecord(kept, "w-d1", now)
	require.NoError(t, err)
	assert.Len(t, kept, 1)
	assert.Equal(t, "Persist Persist Retired", kinds(effects))
	assert.Equal(t, []State{Free, Unconfirmed}, []State{m.find("w-d0").state, m.find("w-d2").state}, "device 3 is still held")
	kept, _, err = m.ReleaseRecord(kept, "w-d3", now)
	require.NoError(t, err)
	assert.Empty(t, kept)
	assert.Zero(t, m.Reserved())
}
