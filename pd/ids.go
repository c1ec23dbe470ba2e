package pd

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// MaxIDBytes bounds every identity that crosses a wire (pd-domain §4.2).
const MaxIDBytes = 256

type (
	// RunID groups the processes and logs of one deployment; it is the same in
	// every process that reads the same pd.json.
	RunID string
	// NodeID names one entry of pd.json: its node_id, or host:port.
	NodeID string
	// BootID is one life of a process: 128 random bits as 32 hex digits, drawn
	// at every start. Two boots of one node never share it.
	BootID string
	// RequestID is the request as the client sees it (cmpl-… or chatcmpl-…).
	RequestID string
	// HandoffID is one attempt to hand a request from prefill to decode: 128
	// random bits as 32 hex digits. A retried request gets a new one.
	HandoffID string
	// ReservationID names a decode lease on the wire.
	ReservationID string
	// ComponentID names one tensor of a model's cache; there is one region per
	// component and rank.
	ComponentID string
)

type (
	// Rank is the global index of one device of a node, 0..N-1.
	Rank int
	// Partition is one data-parallel cache namespace of a node.
	Partition int
	// ChunkID numbers the chunks of a handoff 0, 1, 2, … without gaps.
	ChunkID int
	// Token is a vocabulary id.
	Token int32
	// Epoch counts the engines that one owner has had over the same memory.
	Epoch uint64
	// Generation counts the uses of one piece of memory, such as a bootstrap slot.
	Generation uint64
)

// NewBootID draws the identity of one process life.
func NewBootID() BootID { return BootID(randomHex()) }

// NewHandoffID draws the identity of one handoff.
func NewHandoffID() HandoffID { return HandoffID(randomHex()) }

func randomHex() string {
	var b [16]byte
	rand.Read(b[:]) // crypto/rand.Read never returns an error since Go 1.24
	return hex.EncodeToString(b[:])
}

// CheckID reports what is wrong with an identity that came from outside; what
// names the field in the message.
func CheckID(what, id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%s is empty", what)
	case len(id) > MaxIDBytes:
		return fmt.Errorf("%s has %d bytes, the limit is %d", what, len(id), MaxIDBytes)
	}
	for i := range len(id) {
		if id[i] < 0x20 || id[i] == 0x7f {
			return fmt.Errorf("%s holds a control character at byte %d", what, i)
		}
	}
	return nil
}

// CheckHexID reports what is wrong with a 128-bit identity: it must be 32
// lower-case hex digits.
func CheckHexID(what, id string) error {
	if len(id) != 32 {
		return fmt.Errorf("%s must be 32 lower-case hex digits, got %d bytes", what, len(id))
	}
	for i := range len(id) {
		if c := id[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return fmt.Errorf("%s must be 32 lower-case hex digits, byte %d is not", what, i)
		}
	}
	return nil
}
