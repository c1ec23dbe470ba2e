package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/pd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const boot1, boot2 = pd.BootID("11111111111111111111111111111111"), pd.BootID("22222222222222222222222222222222")

func options(root string, boot pd.BootID) Options {
	return Options{
		Root: root, Run: "night", Role: Decode, Identity: "10.1.0.2:8000", Boot: boot, Enabled: true,
		Program: "pypto-serving", Version: "v0", Provider: "simulator", ContractDigest: "c0",
	}
}

// started opens a journal and runs it; the result closes it.
func started(t *testing.T, o Options) (*Journal, func()) {
	t.Helper()
	j, err := Open(o)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(j.Run)
	return j, func() {
		require.NoError(t, j.Close())
		wg.Wait()
	}
}

// Behaviour 13.
func TestLayout(t *testing.T) {
	// printf 10.1.0.2:8000 | sha256sum begins with 9619091e.
	for role, want := range map[Role]Files{
		Router: {
			Log: "/l/r/router/r-9619091e.log", Events: "/l/r/router/r-9619091e.events.jsonl", Startup: "/l/r/router/r-9619091e.startup.json",
			State: "/l/r/router/state", Prefix: "r-9619091e.", Admin: "r-9619091e.admin.sock", Lock: "r-9619091e.lock",
		},
		RoleOf(pd.Prefill): {
			Log: "/l/r/p/p-9619091e.log", Events: "/l/r/p/p-9619091e.events.jsonl", Startup: "/l/r/p/p-9619091e.startup.json",
			State: "/l/r/p/state", Prefix: "p-9619091e.", Admin: "p-9619091e.admin.sock", Lock: "p-9619091e.lock",
		},
		RoleOf(pd.Decode): {
			Log: "/l/r/d/d-9619091e.log", Events: "/l/r/d/d-9619091e.events.jsonl", Startup: "/l/r/d/d-9619091e.startup.json",
			State: "/l/r/d/state", Prefix: "d-9619091e.", Admin: "d-9619091e.admin.sock", Lock: "d-9619091e.lock",
		},
	} {
		assert.Equal(t, want, FilesOf("/l", "r", role, "10.1.0.2:8000"))
	}
}

// Behaviour 88.
func TestEventsAreWrittenAndReadBack(t *testing.T) {
	root := t.TempDir()
	j, stop := started(t, options(root, boot1))
	at := time.Date(2026, 11, 29, 12, 0, 0, 123456789, time.FixedZone("x", 3600))
	chunk := 3
	j.Emit(Event{
		Event: Transfer, Time: at, Peer: &pd.Peer{Node: "p", Boot: boot2}, Request: "cmpl-1", Handoff: "h", Chunk: &chunk,
		Span: &pd.Span{Start: 128, End: 256}, Bytes: 1 << 40, Ranks: 4, Regions: ByteCounts{"kv": 7},
		BeganNanos: 5, EndedNanos: 25, Code: "UNCERTAIN", Detail: strings.Repeat("x", 1000),
	})
	j.Emit(Event{Event: ServiceStopped})
	slog.New(slog.NewTextHandler(j.Log(), nil)).Info("stopping", "reason", "SIGTERM")
	stop()

	files := FilesOf(root, "night", Decode, "10.1.0.2:8000")
	got, err := ReadFile(files.Events)
	require.NoError(t, err)
	require.Len(t, got, 2)
	assert.Equal(t, Event{
		Event: Transfer, Time: at.UTC(), Sequence: 1, Run: "night", Role: Decode, Node: "10.1.0.2:8000", Boot: boot1,
		Peer: &pd.Peer{Node: "p", Boot: boot2}, Request: "cmpl-1", Handoff: "h", Chunk: &chunk,
		Span: &pd.Span{Start: 128, End: 256}, Bytes: 1 << 40, Ranks: 4, Regions: ByteCounts{"kv": 7},
		BeganNanos: 5, EndedNanos: 25, Code: "UNCERTAIN", Detail: strings.Repeat("x", maxDetailBytes),
	}, got[0])
	assert.Equal(t, uint64(2), got[1].Sequence)
	assert.False(t, got[1].Time.IsZero())
	assert.Equal(t, 20*time.Nanosecond, got[0].Duration())

	text, err := os.ReadFile(files.Log)
	require.NoError(t, err)
	assert.Contains(t, string(text), "msg=stopping reason=SIGTERM\n")

	var start Startup
	text, err = os.ReadFile(files.Startup)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &start))
	assert.Equal(t, os.Getpid(), start.PID)
	assert.Equal(t, []string{"decode", "night", "10.1.0.2:8000", string(boot1), "pypto-serving", "v0", "simulator", "c0"},
		[]string{string(start.Role), string(start.Run), start.Node, string(start.Boot), start.Program, start.Version, start.Provider, start.ContractDigest})

	for _, path := range []string{files.Log, files.Events, files.Startup, files.state(boot1)} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode(), path)
	}
}

// Behaviours 9 and 91.
func TestSwitchedOffLeavesOnlyTheState(t *testing.T) {
	root := t.TempDir()
	o := options(root, boot1)
	o.Enabled = false
	j, stop := started(t, o)
	j.Emit(Event{Event: HandoffCreated, Handoff: "h"})
	j.Emit(Event{Event: ChunkPlanned, Handoff: "h"})
	_, err := j.Log().Write([]byte("line\n"))
	require.NoError(t, err)
	stop()
	var found []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found = append(found, path)
		}
		return err
	}))
	files := FilesOf(root, "night", Decode, "10.1.0.2:8000")
	require.Equal(t, []string{files.state(boot1)}, found)
	events, err := ReadFile(files.state(boot1))
	require.NoError(t, err)
	require.Len(t, events, 1)
	assert.Equal(t, HandoffCreated, events[0].Event)
}

func TestLeftoversOfEarlierBoots(t *testing.T) {
	root := t.TempDir()
	j, stop := started(t, options(root, boot1))
	assert.Empty(t, j.Leftovers())
	for _, e := range []Event{
		{Event: HandoffCreated, Handoff: "a"},
		{Event: HandoffCreated, Handoff: "b"},
		{Event: HandoffCreated, Handoff: "c"},
		{Event: HandoffCreated, Handoff: "d"},
		{Event: HandoffReserved, Handoff: "a"},
		{Event: HandoffCompleted, Handoff: "b"},
		{Event: HandoffFailed, Handoff: "d"},
	} {
		j.Emit(e)
	}
	stop()
	// Another node of the same folder is not this one's business.
	other := options(root, boot2)
	other.Identity = "x"
	j, stop = started(t, other)
	assert.Empty(t, j.Leftovers())
	stop()

	// The process was killed while it wrote a line.
	path := FilesOf(root, "night", Decode, "10.1.0.2:8000").state(boot1)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"event":"HANDOFF_COMPLETED","time":"2026-`)
	require.NoError(t, errors.Join(err, f.Close()))

	j, stop = started(t, options(root, boot2))
	assert.Equal(t, []Leftover{{Boot: boot1, Handoffs: []string{"a", "c"}}}, j.Leftovers())
	stop()

	require.NoError(t, os.WriteFile(path, []byte("{\n"), 0o600))
	j, stop = started(t, options(root, "33333333333333333333333333333333"))
	require.Len(t, j.Leftovers(), 1)
	assert.ErrorContains(t, j.Leftovers()[0].Err, "line 1: (line 1, column 2): the text ends too early")
	stop()
}

func TestOldestBootsAreRemoved(t *testing.T) {
	root := t.TempDir()
	files := FilesOf(root, "night", Decode, "10.1.0.2:8000")
	require.NoError(t, os.MkdirAll(files.State, 0o700))
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range pd.MaxBootJournals + 3 {
		path := files.state(pd.BootID(fmt.Sprintf("%032x", pd.MaxBootJournals-i)))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		age := begin.Add(time.Duration(i) * time.Hour)
		require.NoError(t, os.Chtimes(path, age, age))
	}
	_, stop := started(t, options(root, boot1))
	stop()
	left, err := bootFiles(files)
	require.NoError(t, err)
	require.Len(t, left, pd.MaxBootJournals)
	assert.Equal(t, files.state(pd.BootID(fmt.Sprintf("%032x", pd.MaxBootJournals-4))), left[0], "the oldest four are gone")
	assert.Equal(t, files.state(boot1), left[len(left)-1])
}

// TestOverflowDropsTheNewestAndSaysSo: nobody writes, and Emit returns all the
// same.
func TestOverflowDropsTheNewestAndSaysSo(t *testing.T) {
	root := t.TempDir()
	j, err := Open(options(root, boot1))
	require.NoError(t, err)
	for i := range pd.MaxJournalEvents + 5 {
		j.Emit(Event{Event: ChunkPlanned, Count: int64(i)})
	}
	line := []byte(strings.Repeat("x", pd.MaxJournalLogBytes-1) + "\n")
	for range 3 {
		n, err := j.Log().Write(line)
		require.NoError(t, err)
		require.Equal(t, len(line), n)
	}
	assert.EqualValues(t, 7, j.Dropped())
	require.NoError(t, j.Close(), "closing without running writes what is queued")
	j.Run() // too late, and harmless

	files := FilesOf(root, "night", Decode, "10.1.0.2:8000")
	events, err := ReadFile(files.Events)
	require.NoError(t, err)
	require.Len(t, events, pd.MaxJournalEvents+1)
	assert.EqualValues(t, pd.MaxJournalEvents-1, events[pd.MaxJournalEvents-1].Count)
	last := events[pd.MaxJournalEvents]
	assert.Equal(t, Dropped, last.Event)
	assert.EqualValues(t, 7, last.Count)
	info, err := os.Stat(files.Log)
	require.NoError(t, err)
	assert.EqualValues(t, len(line), info.Size())
}

func TestFullFileIsMovedAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	require.NoError(t, os.WriteFile(path+".1", []byte("older"), 0o600))
	f := &file{path: path}
	require.NoError(t, f.open())
	require.NoError(t, f.write([]byte("first\n")))
	f.size = pd.MaxJournalFileBytes - 1
	require.NoError(t, f.write([]byte("second\n")))
	require.NoError(t, f.close())
	for name, want := range map[string]string{path: "second\n", path + ".1": "first\n"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.Equal(t, want, string(text))
	}
	require.NoError(t, f.open())
	assert.EqualValues(t, 7, f.size, "a file that exists is continued")
	require.NoError(t, f.close())
}

func TestDiskErrorsAreCountedAndReportedOnce(t *testing.T) {
	root := t.TempDir()
	j, err := Open(options(root, boot1))
	require.NoError(t, err)
	require.NoError(t, j.events.close())
	j.Emit(Event{Event: ChunkPlanned})
	require.ErrorIs(t, j.Close(), os.ErrClosed)
	assert.EqualValues(t, 1, j.Dropped())

	file := filepath.Join(root, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Open(options(file, boot1))
	require.ErrorContains(t, err, "open journal of decode 10.1.0.2:8000: mkdir "+file)
}

func TestOverlap(t *testing.T) {
	compute := Event{BeganNanos: 100, EndedNanos: 200}
	for want, transfer := range map[time.Duration]Event{
		50:  {BeganNanos: 150, EndedNanos: 400},
		100: {BeganNanos: 0, EndedNanos: 400},
		0:   {BeganNanos: 200, EndedNanos: 400},
		10:  {BeganNanos: 110, EndedNanos: 120},
	} {
		assert.Equal(t, want, compute.Overlap(transfer))
		assert.Equal(t, want, transfer.Overlap(compute))
	}
	j, err := Open(options(t.TempDir(), boot1))
	require.NoError(t, err)
	assert.EqualValues(t, time.Second, j.Nanos(j.start.Add(time.Second)))
	require.NoError(t, j.Close())
}

func TestReadNamesTheLine(t *testing.T) {
	good := `{"event":"X","time":"2026-01-01T00:00:00Z","seq":1,"run":"r","role":"router","node":"n","boot":"b","newer_field":[1]}` + "\n"
	count := 0
	require.NoError(t, Read(strings.NewReader(good+good+`{"cut`), func(e Event) error {
		count++
		assert.Equal(t, Router, e.Role)
		return nil
	}))
	assert.Equal(t, 2, count)
	nothing := func(Event) error { return nil }
	require.EqualError(t, Read(strings.NewReader(good+"{\n"), nothing), "line 2: (line 1, column 2): the text ends too early")
	require.EqualError(t, Read(strings.NewReader(good+strings.Repeat("x", maxLine)), nothing), "line 2: longer than 65536 bytes")
	require.ErrorContains(t, Read(strings.NewReader(`{"event":"X"}`+"\n"), nothing), "line 1: boot (line 1, column 1): is missing")
	enough := errors.New("enough")
	require.ErrorIs(t, Read(strings.NewReader(good+good), func(Event) error { return enough }), enough)
	_, err := ReadFile(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestManyWriters(t *testing.T) {
	root := t.TempDir()
	j, stop := started(t, options(root, boot1))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				j.Emit(Event{Event: ChunkPlanned})
				fmt.Fprintln(j.Log(), "line")
			}
		})
	}
	wg.Wait()
	stop()
	require.Zero(t, j.Dropped())
	events, err := ReadFile(FilesOf(root, "night", Decode, "10.1.0.2:8000").Events)
	require.NoError(t, err)
	require.Len(t, events, 800)
	for i, e := range events {
		require.EqualValues(t, i+1, e.Sequence)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"event":"X","time":"2026-01-01T00:00:00Z","seq":1,"run":"r","role":"router","node":"n","boot":"b"}` + "\n"))
	f.Add([]byte("{}\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := Read(strings.NewReader(string(data)), func(Event) error { return nil }); err != nil {
			require.Contains(t, err.Error(), "line ")
		}
	})
}
