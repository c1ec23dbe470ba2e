package journal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
)

// maxLine bounds one line that is read.
const maxLine = 64 << 10

// Read calls f for every event of a file, in order, until f returns an error.
// A last line without its end, which a process leaves that was killed while it
// wrote, is skipped. Fields that this version does not know are ignored. An
// error names the line.
func Read(r io.Reader, f func(Event) error) error {
	in := bufio.NewReaderSize(r, maxLine)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("line %d: longer than %d bytes", n, maxLine)
		case err != nil:
			return fmt.Errorf("line %d: %w", n, err)
		}
		var e Event
		if err := strictjson.Decode(bytes.TrimSpace(line), &e, strictjson.Limits{Bytes: maxLine, AllowUnknown: true}); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if err := f(e); err != nil {
			return err
		}
	}
}

// ReadFile gives all events of a file.
func ReadFile(path string) ([]Event, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Event
	err = Read(f, func(e Event) error {
		out = append(out, e)
		return nil
	})
	if err != nil {
		return out, fmt.Errorf("read journal %s: %w", path, err)
	}
	return out, nil
}

// Leftover is an earlier boot that ended with handoffs begun and not ended.
type Leftover struct {
	Boot pd.BootID
	// Handoffs are the unresolved ones in the order in which they began.
	Handoffs []string
	// Err is set when the boot's journal cannot be read to its end.
	Err error
}

// leftovers reads the state journals of earlier boots, newest last, and removes
// the oldest ones beyond the bound.
func leftovers(files Files) ([]Leftover, error) {
	paths, err := bootFiles(files)
	if err != nil {
		return nil, err
	}
	for len(paths) >= pd.MaxBootJournals {
		if err := os.Remove(paths[0]); err != nil {
			return nil, err
		}
		paths = paths[1:]
	}
	var out []Leftover
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".jsonl")
		l := Leftover{Boot: pd.BootID(strings.TrimPrefix(name, files.Prefix))}
		events, err := ReadFile(path)
		l.Handoffs, l.Err = unresolved(events), err
		if len(l.Handoffs) > 0 || l.Err != nil {
			out = append(out, l)
		}
	}
	return out, nil
}

// bootFiles lists the state journals of one identity, oldest first.
func bootFiles(files Files) ([]string, error) {
	entries, err := os.ReadDir(files.State)
	if err != nil {
		return nil, err
	}
	type aged struct {
		path string
		age  int64
	}
	var found []aged
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), files.Prefix) || !strings.HasSuffix(e.Name(), ".jsonl") {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // it was removed meanwhile
		}
		found = append(found, aged{filepath.Join(files.State, e.Name()), info.ModTime().UnixNano()})
	}
	slices.SortFunc(found, func(a, b aged) int { return int(min(max(a.age-b.age, -1), 1)) })
	out := make([]string, len(found))
	for i, f := range found {
		out[i] = f.path
	}
	return out, nil
}

func unresolved(events []Event) []string {
	var out []string
	for _, e := range events {
		switch e.Event {
		case HandoffCreated:
			out = append(out, e.Handoff)
		case HandoffCompleted, HandoffFailed:
			out = slices.DeleteFunc(out, func(h string) bool { return h == e.Handoff })
		}
	}
	return out
}
