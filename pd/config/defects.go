package config

import (
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
)

// Defects are everything that is wrong with one pd.json, in the order of the file.
type Defects = strictjson.FileDefects

// removed explains fields of earlier formats, by name.
var removed = map[string]string{
	"prefix_cache_mode":           "prefix caching is a flag of each node: --no-enable-prefix-caching",
	"control_host":                "control listens at host; only control_port may be set",
	"enable_chunk_overlap":        "transfer always overlaps with computation",
	"max_active_handoffs":         "use capacity, which bounds the requests of one node",
	"max_pending_handoffs":        "a node never queues for capacity; see --queue-size of the router",
	"generation":                  "every start of a process has a new boot identity of its own",
	"endpoint_generation":         "every start of a process has a new boot identity of its own",
	"route_epoch":                 "every start of a process has a new boot identity of its own",
	"control_incarnation":         "every start of a process has a new boot identity of its own",
	"connect_timeout_seconds":     "use handoff_timeout",
	"request_timeout_seconds":     "use request_timeout",
	"transfer_timeout_seconds":    "use handoff_timeout",
	"tp":                          "the topology is a flag of each node: --tp",
	"dp":                          "the topology is a flag of each node: --dp",
	"shared_secret":               "the control port is for a trusted network",
	"auth_secret":                 "the control port is for a trusted network",
	"auth_secret_env":             "the control port is for a trusted network",
	"max_inflight_transfer_bytes": "transfers are bounded by the owners",
}

// explain adds what became of a field that is unknown now.
func explain(e *strictjson.Error) *strictjson.Error {
	name := e.Path[strings.LastIndexByte(e.Path, '.')+1:]
	if why, ok := removed[name]; ok && strings.HasPrefix(e.Text, strictjson.UnknownName) {
		e.Text = "there is no such field any more: " + why
	}
	return e
}

// covers says that a defect at path already speaks of what is at other.
func covers(path, other string) bool {
	rest, ok := strings.CutPrefix(other, path)
	return ok && (rest == "" || path == "" || rest[0] == '.' || rest[0] == '[')
}
