package te

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/cgo/dl"
	"github.com/hw-native-sys/pypto-pd/cgo/handle"
)

// MaxTasks bounds the requests of one batch. The library's status call looks
// at the whole batch, so its cost grows with the square of this.
const MaxTasks = 256

// EnvLibrary is the variable that holds the library's path.
const EnvLibrary = "PYPTO_MOONCAKE_LIBRARY"

// Options say where the library is and in what environment it is to run.
type Options struct {
	// Path is the library's file; "" means EnvLibrary, then the usual places.
	Path string
	// Env is set for C code before the library is loaded; an empty value removes a
	// variable. It has no effect on a library that is loaded already.
	Env map[string]string
	// AllowGoRuntime lets a library in that brings a second Go runtime.
	AllowGoRuntime bool
}

func (o *Options) request() dl.Request {
	return dl.Request{
		What: "Mooncake Transfer Engine", Path: o.Path, Env: EnvLibrary,
		Names:          []string{"libtransfer_engine.so"},
		AllowGoRuntime: o.AllowGoRuntime,
		Need: "build Mooncake's transfer engine as a shared library with its C API (BUILD_SHARED_LIBS=ON, without etcd) " +
			"and give its path, or set \"provider\": \"simulator\" to run without it",
	}
}

// Identify says which file Load would load, with its digest, and loads nothing.
// Built without cgo it answers dl.ErrNoCgo, as Load does.
func Identify(o Options) (dl.Info, error) { return dl.Identify(o.request()) }

// Opcode says which way bytes go.
type Opcode int

// The opcodes. The library does not check them, so there are no others.
const (
	// Read copies from the peer into this process.
	Read Opcode = 0
	// Write copies from this process to the peer.
	Write Opcode = 1
)

// Segment names a peer within one engine.
type Segment int32

// Request is one copy.
type Request struct {
	// Source is the address here, and Target the one in the peer's process.
	Source  uintptr
	Target  uintptr
	Segment Segment
	// Bytes is the length, more than 0.
	Bytes int64
}

// Status is the library's status of one task.
type Status int

// The statuses. Only Completed and Failed end a task.
const (
	Waiting   Status = 0
	Pending   Status = 1
	Invalid   Status = 2
	Canceled  Status = 3
	Completed Status = 4
	Timeout   Status = 5
	Failed    Status = 6
)

var statusNames = map[Status]string{
	Waiting: "WAITING", Pending: "PENDING", Invalid: "INVALID", Canceled: "CANCELED",
	Completed: "COMPLETED", Timeout: "TIMEOUT", Failed: "FAILED",
}

// String gives the library's spelling.
func (s Status) String() string {
	if name, ok := statusNames[s]; ok {
		return name
	}
	return fmt.Sprintf("status %d", int(s))
}

// Report is what Poll has to say about one batch.
type Report struct {
	// Owner is what the batch was submitted with.
	Owner handle.Handle
	// Ended: every task was seen to have ended. Reports before that tell of a
	// task in a state that the library does not end tasks in.
	Ended bool
	// Freed: the native batch is gone. A batch that ended and
	// could not be freed is tried again by every later Poll, silently.
	Freed bool
	// Tasks is how many requests the batch has; the others count how many of them
	// completed with all bytes, completed with other than all bytes, failed, and
	// were not there to be asked.
	Tasks, Completed, Short, Failed, Absent int
	// Task, Status and Code are of the first task that did not simply complete:
	// its position, its status, and the code of the status call, of the submit
	// call or of the free call, whichever failed first.
	Task   int
	Status Status
	Code   int
	Call   string
}

// Error is the refusal of one call of the library.
type Error struct {
	// Call is the name of the C function and Code what it returned.
	Call string
	Code int
	// Text says more, if more is known.
	Text string
}

// Both error conventions of the library: codes of memory and segment calls are
// negative, those of submit, status and free are positive and mean the same.
var codeNames = map[int]string{
	1: "invalid argument", 2: "too many requests", 3: "address not registered", 4: "batch busy",
	6: "device not found", 7: "address overlaps a registered one", 8: "transport not supported",
	101: "name resolution", 102: "socket", 103: "malformed JSON", 104: "handshake rejected",
	200: "metadata", 201: "endpoint", 202: "context", 300: "NUMA", 301: "clock", 302: "memory",
	303: "not implemented", 999: "not implemented",
}

// Error prints "call: code n (meaning): text".
func (e *Error) Error() string {
	text := fmt.Sprintf("%s: code %d", e.Call, e.Code)
	if name := codeNames[max(e.Code, -e.Code)]; name != "" && !e.blunt() {
		text += " (" + name + ")"
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

// blunt says that the call knows one code only, for whatever went wrong.
func (e *Error) blunt() bool {
	return e.Call == "createTransferEngine" || e.Call == "openSegmentNoCache"
}

// Refused says that a submit call was refused as a whole: nothing of it was
// or will be begun. Any other code leaves that open.
func (e *Error) Refused() bool {
	return e.Call == "submitTransfer" && (e.Code == 1 || e.Code == 2)
}

// check refuses requests that must not reach the library, which would follow
// them.
func check(op Opcode, requests []Request) error {
	if op != Read && op != Write {
		return fmt.Errorf("opcode %d: want %d or %d", op, Read, Write)
	}
	if n := len(requests); n < 1 || n > MaxTasks {
		return fmt.Errorf("%d requests: want 1..%d", n, MaxTasks)
	}
	for i := range requests {
		r := &requests[i]
		switch {
		case r.Source == 0 || r.Target == 0:
			return fmt.Errorf("request %d: an address is 0", i)
		case r.Bytes <= 0:
			return fmt.Errorf("request %d: length %d: want more than 0", i, r.Bytes)
		case r.Segment < 0:
			return fmt.Errorf("request %d: segment %d does not exist", i, r.Segment)
		case r.Source+uintptr(r.Bytes) < r.Source || r.Target+uintptr(r.Bytes) < r.Target:
			return fmt.Errorf("request %d: address plus length overflows", i)
		}
	}
	return nil
}

// symbols are the functions of the table, in its order.
var symbols = []dl.Symbol{
	{Name: "createTransferEngine"},
	{Name: "destroyTransferEngine"},
	{Name: "getLocalIpAndPort"},
	{Name: "openSegmentNoCache"},
	{Name: "registerLocalMemory"},
	{Name: "unregisterLocalMemory"},
	{Name: "allocateBatchID"},
	{Name: "submitTransfer"},
	{Name: "getTransferStatus"},
	{Name: "freeBatchID"},
}

// Symbols lists the C functions that a library must export.
func Symbols() []string {
	names := make([]string, len(symbols))
	for i, s := range symbols {
		names[i] = s.Name
	}
	return names
}
