package host

import (
	"context"
	"sync"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Kind is what an event asks of the host or tells it. Numbers are append-only:
// they are part of the C ABI.
type Kind int

// The kinds.
const (
	// Accepted: decode holds the request's memory; the answer may begin.
	Accepted Kind = 1
	// Ended: the POST is over, with Code 0 as intended. It comes once per POST.
	Ended Kind = 2
	// Prefill: compute the prompt chunk by chunk, waiting for Resume in between.
	Prefill Kind = 3
	// Resume: compute the next chunk.
	Resume Kind = 4
	// StopPrefill: let the prompt go and answer PrefillStopped.
	StopPrefill Kind = 5
	// PagesFree: the pages of Chunk are read no more.
	PagesFree Kind = 6
	// Reserve: answer with Grant or Refuse.
	Reserve Kind = 7
	// Withdrawn: the reservation is wanted no more. What was granted for it is
	// the host's again.
	Withdrawn Kind = 8
	// Adopt: the pages are complete; decode.
	Adopt Kind = 9
	// StopDecode: stop and answer DecodeStopped.
	StopDecode Kind = 10
	// Released: the pages and the slot are the host's again.
	Released Kind = 11
	// Quarantined: writes may still land in the pages; they stay out of use
	// until Released, however long that is.
	Quarantined Kind = 12
)

// Event is one order or fact. Fields that a kind does not need are zero.
type Event struct {
	Kind    Kind
	Handoff pd.HandoffID
	Request pd.RequestID
	// Code is why, with Ended.
	Code pd.Code
	// Why is the error's text, with Ended.
	Why   string
	Chunk pd.ChunkID
	// Partition and Slot are where the request was granted memory.
	Partition pd.Partition
	Slot      int
	// FirstToken, HitTokens and CachedTokens come with Adopt: what prefill
	// sampled, how much of the prompt this node had, how much prefill had.
	FirstToken   pd.Token
	HitTokens    int
	CachedTokens int
	// Tokens is the length of the prompt; HitLimit bounds HitTokens of a grant.
	Tokens   int
	HitLimit int
	// MaxNewTokens bounds the output.
	MaxNewTokens int
}

// queue holds events until the host polls them. Its length is bounded by the
// requests that the node admits: each has a few events of each kind.
type queue struct {
	wake chan struct{}

	// guarded by mu
	mu     sync.Mutex
	events []Event
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

func (q *queue) put(e Event) {
	q.mu.Lock()
	q.events = append(q.events, e)
	q.mu.Unlock()
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take waits for the next event; the context's end is CodeDeadline.
func (q *queue) take(ctx context.Context) (Event, error) {
	for {
		q.mu.Lock()
		if len(q.events) > 0 {
			e := q.events[0]
			q.events = q.events[1:]
			more := len(q.events) > 0
			q.mu.Unlock()
			if more {
				q.signal() // several threads may poll
			}
			return e, nil
		}
		q.mu.Unlock()
		select {
		case <-q.wake:
		case <-ctx.Done():
			return Event{}, pd.Errorf(pd.CodeDeadline, "poll", "no event yet")
		}
	}
}
