package wire

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
)

// Message is any message of the protocol.
type Message interface {
	// Check reports the first thing that is wrong with the message as such, as
	// a *pd.Error. It is called by Decode.
	Check() error
}

// message is the pointer to a message type.
type message[T any] interface {
	*T
	Message
}

// Decode reads and checks one message; nothing in it aliases data. Errors are
// *pd.Error: CodeBodyTooLarge, CodeVersionMismatch, CodeMalformed, or what
// Check says.
func Decode[T any, M message[T]](data []byte) (T, error) {
	var m T
	op := "read " + Name(&m)
	if len(data) > pd.MaxControlBytes {
		return m, pd.Errorf(pd.CodeBodyTooLarge, op, "%d bytes, the limit is %d", len(data), pd.MaxControlBytes)
	}
	switch any(&m).(type) {
	case *Node, *Session:
		if err := CheckVersion(data); err != nil {
			return m, err
		}
	}
	if err := strictjson.Decode(data, &m, strictjson.Limits{Bytes: pd.MaxControlBytes}); err != nil {
		return m, &pd.Error{Op: op, Code: pd.CodeMalformed, Text: err.Error()}
	}
	if err := M(&m).Check(); err != nil {
		return m, err
	}
	return m, nil
}

// Encode writes a message in canonical form. Texts for people are cut to their
// bound, so that no message is refused for its wording. The error is a
// *pd.Error: CodeBodyTooLarge where the message does not fit, CodeInternal where
// a field has no wire form, which is a mistake of the sender.
func Encode(m any) ([]byte, error) {
	b, err := strictjson.Canonical(clipped(m))
	switch {
	case err != nil:
		return nil, &pd.Error{Op: "write " + Name(m), Code: pd.CodeInternal, Err: err}
	case len(b) > pd.MaxControlBytes:
		return nil, pd.Errorf(pd.CodeBodyTooLarge, "write "+Name(m), "%d bytes, the limit is %d", len(b), pd.MaxControlBytes)
	}
	return b, nil
}

// Name is a message's name for people: "reserve", "chunk ack".
func Name(m any) string {
	t := reflect.TypeOf(m)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var b strings.Builder
	for i, r := range t.Name() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte(' ')
		}
		b.WriteString(strings.ToLower(string(r)))
	}
	return b.String()
}

// maxIgnored is how many defects of another version's message are skipped
// before the search for its version gives up.
const maxIgnored = 1024

// CheckVersion looks at protocol_version alone, so that a message of another
// version is refused as such whatever else it holds.
func CheckVersion(data []byte) error {
	const op = "read protocol version"
	var m struct {
		Version *int `json:"protocol_version,omitempty"`
	}
	// The other fields are another version's business: their defects are
	// collected and then ignored.
	err := strictjson.Decode(data, &m, strictjson.Limits{Bytes: pd.MaxControlBytes, Defects: maxIgnored, AllowUnknown: true})
	for _, d := range strictjson.Defects(err) {
		if d.Final {
			return &pd.Error{Op: op, Code: pd.CodeMalformed, Text: d.Error()}
		}
		if d.Path == "protocol_version" {
			m.Version = nil
		}
	}
	switch {
	case m.Version == nil:
		return pd.Errorf(pd.CodeVersionMismatch, op, "the peer names no protocol version; this node speaks %d", pd.ProtocolVersion)
	case *m.Version != pd.ProtocolVersion:
		return versionMismatch(op, fmt.Sprint(*m.Version))
	}
	return nil
}

// CheckPath finds the message that a request path names. A path of another
// version of the protocol is CodeVersionMismatch, anything else that is not a
// path of the protocol is CodeNotFound.
func CheckPath(path string) error {
	switch path {
	case PathNode, PathSession, PathStatus, PathAbort, PathReserve, PathChunk, PathResult, PathCommit, PathSourceStopped:
		return nil
	}
	const op = "read path"
	if rest, ok := strings.CutPrefix(path, "/pd/v"); ok {
		version, _, _ := strings.Cut(rest, "/")
		if version != fmt.Sprint(pd.ProtocolVersion) && version != "" && len(version) <= 4 && strings.Trim(version, "0123456789") == "" {
			return versionMismatch(op, version)
		}
	}
	return pd.Errorf(pd.CodeNotFound, op, "%.64q is no path of the control protocol", path)
}

func versionMismatch(op, version string) error {
	return pd.Errorf(pd.CodeVersionMismatch, op, "the peer speaks protocol version %s, this node speaks %d", version, pd.ProtocolVersion)
}
