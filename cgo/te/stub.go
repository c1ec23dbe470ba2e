//go:build !cgo || !linux

package te

import (
	"time"

	"github.com/hw-native-sys/pypto-pd/cgo/dl"
	"github.com/hw-native-sys/pypto-pd/cgo/handle"
)

// API is a loaded library; without cgo there is none.
type API struct{}

// Load answers dl.ErrNoCgo.
func Load(Options) (*API, error) { return nil, dl.ErrNoCgo }

// Info tells which file was loaded.
func (a *API) Info() dl.Info { return dl.Info{} }

// Engine is one native engine; without cgo there is none.
type Engine struct{}

// Create answers dl.ErrNoCgo.
func (a *API) Create(string) (*Engine, error) { return nil, dl.ErrNoCgo }

// Name is empty.
func (e *Engine) Name() string { return "" }

// Destroy does nothing.
func (e *Engine) Destroy() (leaked int) { return 0 }

// OpenSegment answers dl.ErrNoCgo.
func (e *Engine) OpenSegment(string) (Segment, error) { return 0, dl.ErrNoCgo }

// Register answers dl.ErrNoCgo.
func (e *Engine) Register(uintptr, int64, string) error { return dl.ErrNoCgo }

// Unregister answers dl.ErrNoCgo.
func (e *Engine) Unregister(uintptr) error { return dl.ErrNoCgo }

// Submit answers dl.ErrNoCgo.
func (e *Engine) Submit(Opcode, []Request, handle.Handle) error { return dl.ErrNoCgo }

// Live is 0.
func (e *Engine) Live() int { return 0 }

// Yielding does nothing.
func Yielding() {}

// Poll has nothing to say.
func (e *Engine) Poll(dst []Report, _, _ time.Duration) []Report { return dst }
