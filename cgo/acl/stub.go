//go:build !cgo || !linux

package acl

import "github.com/hw-native-sys/pypto-pd/cgo/dl"

// API is a loaded runtime; without cgo there is none.
type API struct{}

// Load answers dl.ErrNoCgo.
func Load(Options) (*API, error) { return nil, dl.ErrNoCgo }

// Info tells which file was loaded.
func (a *API) Info() dl.Info { return dl.Info{} }

// Init answers dl.ErrNoCgo.
func (a *API) Init() error { return dl.ErrNoCgo }

// SetDevice answers dl.ErrNoCgo.
func (a *API) SetDevice(int) error { return dl.ErrNoCgo }

// ResetDevice answers dl.ErrNoCgo.
func (a *API) ResetDevice(int) error { return dl.ErrNoCgo }

// DeviceCount answers dl.ErrNoCgo.
func (a *API) DeviceCount() (int, error) { return 0, dl.ErrNoCgo }

// Malloc answers dl.ErrNoCgo.
func (a *API) Malloc(int64) (uintptr, error) { return 0, dl.ErrNoCgo }

// Free answers dl.ErrNoCgo.
func (a *API) Free(uintptr) error { return dl.ErrNoCgo }

// Fill answers dl.ErrNoCgo.
func (a *API) Fill(uintptr, int64, byte) error { return dl.ErrNoCgo }

// CopyIn answers dl.ErrNoCgo.
func (a *API) CopyIn(uintptr, []byte) error { return dl.ErrNoCgo }

// CopyOut answers dl.ErrNoCgo.
func (a *API) CopyOut(uintptr, []byte) error { return dl.ErrNoCgo }

// MemoryInfo answers dl.ErrNoCgo.
func (a *API) MemoryInfo() (free, total int64, err error) { return 0, 0, dl.ErrNoCgo }

// Version is empty.
func (a *API) Version() string { return "" }

// SocName is empty.
func (a *API) SocName() string { return "" }
