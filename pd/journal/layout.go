package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Role is the part that a process plays. It is spelled as in the events.
type Role string

// The roles.
const (
	Router  Role = "router"
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

// RoleOf is the journal's name of a node's role.
func RoleOf(r pd.Role) Role { return Role(r.String()) }

// folder is the role's folder name: router, p or d.
func (r Role) folder() string {
	if r == Router {
		return string(r)
	}
	return string(r[:1])
}

// Files are the places of one process of one run.
type Files struct {
	Log     string
	Events  string
	Startup string
	// State is the folder of state journals; Prefix begins the names in it.
	State  string
	Prefix string
	// Admin is the name of a node's admin socket and Lock that of its boot lock,
	// both in the state folder.
	Admin string
	Lock  string
}

// FilesOf computes the places from what every process knows: root is the log
// folder of pd.json, identity is the node id, or a router's listen address.
func FilesOf(root string, run pd.RunID, role Role, identity string) Files {
	sum := sha256.Sum256([]byte(identity))
	name := string(role[:1]) + "-" + hex.EncodeToString(sum[:4])
	folder := filepath.Join(root, string(run), role.folder())
	base := filepath.Join(folder, name)
	return Files{
		Log: base + ".log", Events: base + ".events.jsonl", Startup: base + ".startup.json",
		State: filepath.Join(folder, "state"), Prefix: name + ".",
		Admin: name + ".admin.sock", Lock: name + ".lock",
	}
}

// state is the state journal of one boot.
func (f Files) state(boot pd.BootID) string {
	return filepath.Join(f.State, f.Prefix+string(boot)+".jsonl")
}
