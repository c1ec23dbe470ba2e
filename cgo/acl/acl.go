package acl

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/cgo/dl"
)

// EnvLibrary is the variable that holds the library's path.
const EnvLibrary = "PYPTO_ASCENDCL_LIBRARY"

// Options say where the library is.
type Options struct {
	// Path is the library's file; "" means EnvLibrary, then the usual places.
	Path string
	// AllowGoRuntime lets a library in that brings a second Go runtime.
	AllowGoRuntime bool
}

// Identify says which file Load would load, and loads nothing. Built without cgo
// it answers dl.ErrNoCgo, as Load does.
func Identify(o Options) (dl.Info, error) { return dl.Identify(o.request()) }

func (o *Options) request() dl.Request {
	return dl.Request{
		What: "Ascend runtime", Path: o.Path, Env: EnvLibrary,
		Names: []string{"libascendcl.so"},
		Dirs: []string{
			"/usr/local/Ascend/ascend-toolkit/latest/lib64", "/usr/local/Ascend/latest/lib64", "/usr/local/Ascend/nnrt/latest/lib64",
		},
		AllowGoRuntime: o.AllowGoRuntime,
		Need:           "install CANN and source its set_env.sh, or choose protocol tcp",
	}
}

// Error is the refusal of one call of the runtime.
type Error struct {
	// Call is the name of the C function and Code what it returned.
	Call string
	Code int
	// Text is the runtime's own message, if it had one.
	Text string
}

// Error prints "call: code n: text".
func (e *Error) Error() string {
	text := fmt.Sprintf("%s: code %d", e.Call, e.Code)
	if meaning := meaningOf(e.Code); meaning != "" {
		text += " (" + meaning + ")"
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

func meaningOf(code int) string {
	switch {
	case code == 100000:
		return "invalid parameter"
	case code == 100001:
		return "not initialised"
	case code == 107002:
		return "the thread has no device context"
	case code == 207001:
		return "out of memory"
	case code/100000 == 1:
		return "wrong use"
	case code/100000 == 2:
		return "resources"
	case code/100000 == 3:
		return "busy"
	case code/100000 == 5:
		return "internal"
	}
	return ""
}

// symbols are the functions of the table, in its order.
var symbols = []dl.Symbol{
	{Name: "aclInit"},
	{Name: "aclrtSetDevice"},
	{Name: "aclrtResetDevice"},
	{Name: "aclrtGetDeviceCount"},
	{Name: "aclrtMalloc"},
	{Name: "aclrtFree"},
	{Name: "aclrtMemcpy"},
	{Name: "aclrtMemset"},
	{Name: "aclrtGetMemInfo"},
	{Name: "aclGetRecentErrMsg", Optional: true},
	{Name: "aclrtGetVersion", Optional: true},
	{Name: "aclrtGetSocName", Optional: true},
}

// Symbols lists the C functions that are looked for, the required ones first.
func Symbols() (required, optional []string) {
	for _, s := range symbols {
		if s.Optional {
			optional = append(optional, s.Name)
		} else {
			required = append(required, s.Name)
		}
	}
	return required, optional
}

// checkBuffer refuses a copy that C must not be asked for.
func checkBuffer(call string, address uintptr, bytes int64) error {
	if address == 0 || bytes <= 0 || address+uintptr(bytes) < address {
		return &Error{Call: call, Code: 100000, Text: fmt.Sprintf("%d bytes: want more than 0, and an address that is not 0", bytes)}
	}
	return nil
}
