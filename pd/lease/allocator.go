package lease

import (
	"errors"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// ErrLater is Open's answer while the host has not decided yet: nothing is
// given, and Open is called again with the same demand once it has. An
// allocator that answers so implements Deferred.
var ErrLater = errors.New("the host has not decided yet")

// Deferred is an allocator whose host decides in its own time.
type Deferred interface {
	Allocator
	// Withdraw ends a demand that was answered with ErrLater: what the host gives
	// for it afterwards, or gave meanwhile, goes back to the host.
	Withdraw(owner pd.HandoffID)
	// Unpinned says that a computed chunk came too late to be pinned: nothing
	// reads its pages.
	Unpinned(key PinKey)
}

// Tables are one owner's page tables by group.
type Tables = map[pd.GroupName]pd.PageTable

// Demand asks for the memory of one request.
type Demand struct {
	Owner pd.HandoffID
	// Tokens is how many positions the tables must hold at once.
	Tokens int
	// Prefix are the page hashes of the prompt; nil neither looks up nor
	// publishes. The allocator keeps them.
	Prefix pd.PrefixHashes
	// HitLimit is how many tokens may come from the cache, a multiple of the
	// alignment. Resume says that the engine goes on computing behind the hit,
	// so that the states at its end must be cached too.
	HitLimit int
	Resume   bool
	// Receiving marks memory that peers will write: it may take at most its
	// share of the pool (pd.MaxReceivingShare).
	Receiving bool
}

// Grant is the memory of one owner. The caller may keep the tables; they are
// copies.
type Grant struct {
	Partition pd.Partition
	Tables    Tables
	// HitTokens is how much of the prompt the pages already hold.
	HitTokens int
	// Shared lists the pages of the tables that others may read too; they are
	// never written.
	Shared map[pd.GroupName][]pd.Page
	// ColdRetry: the pages of a hit were there, but not the memory behind them,
	// and the placement started anew without the hit.
	ColdRetry bool
	// Slot and Generation are the bootstrap slot and this use of it.
	Slot       int
	Generation pd.Generation
}

// PinKey names one pin.
type PinKey struct {
	Owner pd.HandoffID
	Chunk pd.ChunkID
}

// Snapshot is what was pinned. The tables are copies and never change.
type Snapshot struct {
	Tables Tables
	Slot   int
}

// Usage counts the pages of one group in all partitions.
type Usage struct {
	Free, Held, Quarantined, Total int
}

// Allocator hands out pages. In our own nodes it is pd/pages; in a foreign
// host it is the host's cache manager. Calls change either everything they say
// or nothing.
type Allocator interface {
	// Open gives an owner tables and a bootstrap slot. It fails with
	// CodeCapacityExhausted or CodeBootstrapExhausted, or with ErrLater.
	Open(d Demand) (Grant, error)
	// Publish makes full pages of an owner findable by their hash: per group the
	// logical pages whose bytes are known, as half-open spans in ascending order.
	// Between two spans there may be pages that never came. Pages that a ring has
	// given up since are left out.
	Publish(owner pd.HandoffID, known map[pd.GroupName][]pd.Span)
	// Received ends the Receiving share of an owner.
	Received(owner pd.HandoffID)
	// Close takes an owner's tables and slot back. Pages that are pinned stay
	// held until Unpin.
	Close(owner pd.HandoffID)
	// Quarantine keeps an owner's writable pages and its slot out of use until
	// Close, withdraws what it published, lets shared pages go, and says how many
	// pages are held.
	Quarantine(owner pd.HandoffID) (pages int)
	// Pin holds every page and the slot of an owner's tables as they are now.
	Pin(key PinKey) (Snapshot, error)
	// Unpin drops a pin; an unknown key is a broken invariant.
	Unpin(key PinKey)
	// Usage reports every group.
	Usage() map[pd.GroupName]Usage
	// Check reports a broken invariant.
	Check() error
}
