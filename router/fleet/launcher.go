package fleet

import (
	"context"
	"errors"
	"time"
)

// Launcher runs the commands of slots; router/fleet/launcher is the real one.
// Its methods are safe for concurrent use, one call of Launch or Stop at a time
// for each slot.
type Launcher interface {
	// Launch runs a slot's launch command and returns when it is accepted, which
	// is long before the replica serves. After an error nothing was started,
	// unless it wraps ErrLaunchUncertain.
	//
	// A local process that ends with another status than 0 is reported through
	// exited, with the end of its log, unless Stop was called for it; exited is
	// called at most once, on a goroutine of the launcher's.
	Launch(ctx context.Context, l Launch, exited func(err error)) error
	// Stop runs the slot's stop command and returns nil when that exits 0.
	Stop(ctx context.Context, l Launch) error
	// Log is the end of the slot's start-up log, at most limit bytes.
	Log(ctx context.Context, l Launch, limit int) ([]byte, error)
}

// Launch is one slot with all that its commands are made of.
type Launch struct {
	Slot Slot
	Host *Host
	// Instance names this life of the slot.
	Instance string
	// Grace is how long a stopped replica may take to be gone.
	Grace time.Duration
}

// ErrLaunchUncertain: the launch command failed and something may have been
// started nevertheless.
var ErrLaunchUncertain = errors.New("something may have been started")
