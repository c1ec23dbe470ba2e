package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
)

// stateVersion is the format that is written. A file without a version is of the
// upstream router, which knew replicas only.
const stateVersion = 1

// maxStateBytes bounds a state file: maxSlots entries of all their devices fit.
const maxStateBytes = 4 << 20

// StateFile is what a router remembers of what it launched.
type StateFile struct {
	Version int `json:"version,omitempty"`
	// Replicas are reservations that hold, or may hold, a process that this router
	// launched; Unconfirmed those that nobody could confirm to be gone.
	Replicas    []StateEntry `json:"replicas"`
	Unconfirmed []StateEntry `json:"unconfirmed,omitempty"`
}

// StateEntry is one recorded device group.
type StateEntry struct {
	Slot string `json:"slot"`
	Host string `json:"host"`
	// Devices is empty in the oldest files, which have Device.
	Devices  []int  `json:"devices,omitempty"`
	Device   *int   `json:"device,omitempty"`
	Address  string `json:"address"`
	Port     int    `json:"port"`
	Instance string `json:"instance,omitempty"`
	// ServerID is what the replica called this start of itself, "" if it was never
	// asked.
	ServerID   string    `json:"server_id,omitempty"`
	LaunchedAt time.Time `json:"launched_at,omitzero"`
	EverReady  bool      `json:"ever_ready,omitempty"`
	Strikes    int       `json:"strikes,omitempty"`
	Reason     Reason    `json:"reason,omitempty"`
	Since      time.Time `json:"since,omitzero"`
}

// ParseState reads the text of a state file. Names that it does not know are
// passed over; anything else that is wrong is an error, because what is not read
// may hold a card.
func ParseState(text []byte) (StateFile, error) {
	var f StateFile
	bad := func(format string, args ...any) (StateFile, error) {
		return StateFile{}, pd.Errorf(pd.CodeInvalidConfig, "read state file", format, args...)
	}
	if err := strictjson.Decode(text, &f, strictjson.Limits{Bytes: maxStateBytes, AllowUnknown: true}); err != nil {
		return bad("%v", err)
	}
	if f.Version != 0 && f.Version != stateVersion {
		return bad("version %d is not known here, want %d", f.Version, stateVersion)
	}
	seen := map[string]bool{}
	for _, list := range [][]StateEntry{f.Replicas, f.Unconfirmed} {
		for i := range list {
			e := &list[i]
			if e.Device != nil && len(e.Devices) == 0 {
				e.Devices, e.Device = []int{*e.Device}, nil
			}
			switch {
			case e.Slot == "" || seen[e.Slot]:
				return bad("slot %.64q is empty or recorded twice", e.Slot)
			case len(e.Devices) == 0 || e.Port < 1 || e.Port > 65535 || e.Address == "":
				return bad("slot %.64q lacks devices, address or port", e.Slot)
			}
			seen[e.Slot] = true
			if e.Instance == "" {
				e.Instance = "recorded-" + e.Slot
			}
		}
	}
	for i := range f.Unconfirmed {
		if f.Unconfirmed[i].Reason == "" {
			return bad("slot %.64q is unconfirmed without a reason", f.Unconfirmed[i].Slot)
		}
	}
	return f, nil
}

// Snapshot is the machine as a state file, with what a restart kept. Slots that
// are held because of a kept record are not written: the record stands for them.
func (m *Machine) Snapshot(kept []StateEntry) StateFile {
	f := StateFile{Version: stateVersion, Replicas: []StateEntry{}, Unconfirmed: append([]StateEntry(nil), kept...)}
	for _, s := range m.slots {
		byRecord := func(e StateEntry) bool { return s.instance == heldInstance(e, s.Name) }
		if !s.state.occupied() || slices.ContainsFunc(kept, byRecord) {
			continue
		}
		e := StateEntry{
			Slot: s.Name, Host: s.HostName, Devices: s.Devices, Address: s.Address, Port: s.Port,
			Instance: s.instance, ServerID: s.serverID, LaunchedAt: s.launchedAt.UTC(), EverReady: s.everReady, Strikes: s.strikes,
		}
		if s.state == Unconfirmed {
			e.Reason, e.Since = s.reason, s.since.UTC()
			f.Unconfirmed = append(f.Unconfirmed, e)
			continue
		}
		f.Replicas = append(f.Replicas, e)
	}
	return f
}

// StateStore is the state file of one router. Its lock keeps a second router off
// until Close. It has one user at a time.
type StateStore struct {
	path string
	lock *os.File
}

// OpenState locks the state file at a path and makes its folder. The error is a
// folder that cannot be made, or another router that holds the lock.
func OpenState(path string) (*StateStore, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("open state file: %w", err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open state file: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errors.New("another router uses it")
		}
		return nil, fmt.Errorf("lock state file %s: %w", path, err)
	}
	return &StateStore{path: path, lock: lock}, nil
}

// Close gives the lock back; the lock file stays.
func (s *StateStore) Close() error { return s.lock.Close() }

// Load reads the file. A missing one is empty; one that cannot be read or
// understood is an error, and nothing may be launched then.
func (s *StateStore) Load() (StateFile, error) {
	f, err := os.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return StateFile{}, nil
	}
	if err != nil {
		return StateFile{}, fmt.Errorf("read state file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxStateBytes+1))
	if err != nil {
		return StateFile{}, fmt.Errorf("read state file: %w", err)
	}
	out, err := ParseState(text)
	if err != nil {
		return StateFile{}, fmt.Errorf("%s: %w; look at what it recorded, then start with --discard-state", s.path, err)
	}
	return out, nil
}

// Save replaces the file as a whole: after a crash at any moment it is the old one
// or the new one.
func (s *StateStore) Save(f StateFile) error {
	text, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return fmt.Errorf("write state file: %w", err)
	}
	if err := s.replace(append(bytes.TrimSpace(text), '\n')); err != nil {
		return fmt.Errorf("write state file %s: %w", s.path, err)
	}
	return nil
}

func (s *StateStore) replace(text []byte) error {
	temporary := s.path + ".tmp" // one writer, by the lock
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, s.path); err != nil {
		return err
	}
	// The new name is durable only with its folder.
	dir, err := os.Open(filepath.Dir(s.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
