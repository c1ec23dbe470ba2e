package journal

import (
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Names of events. A node may write others; these have a meaning here or in the
// tools that read journals.
const (
	ServiceStarting        = "SERVICE_STARTING"
	ServiceReady           = "SERVICE_READY"
	ServiceStopped         = "SERVICE_STOPPED"
	HandoffCreated         = "HANDOFF_CREATED"
	HandoffReserved        = "HANDOFF_RESERVED"
	HandoffCommitted       = "HANDOFF_COMMITTED"
	HandoffCompleted       = "HANDOFF_COMPLETED"
	HandoffFailed          = "HANDOFF_FAILED"
	DecodeAdmitted         = "DECODE_ADMITTED"
	ChunkPlanned           = "CHUNK_PLANNED"
	ChunkRegistered        = "CHUNK_REGISTERED"
	ChunkSubmitted         = "CHUNK_SUBMITTED"
	ControlMessageRejected = "CONTROL_MESSAGE_REJECTED"
	RecoveryRequired       = "RECOVERY_REQUIRED"
	// Compute and Transfer have Began and Ended set: the time in which a chunk
	// was computed, and the time in which it moved. Transfer of one chunk
	// overlapping Compute of the next is what the pipeline is for.
	Compute  = "COMPUTE"
	Transfer = "TRANSFER"
	// Dropped says how many lines are missing before it, in Count.
	Dropped = "JOURNAL_DROPPED"
)

// lifecycle are the events of the state journal: enough to see which handoffs a
// boot had begun and not ended.
var lifecycle = []string{HandoffCreated, HandoffReserved, HandoffCommitted, HandoffCompleted, HandoffFailed, RecoveryRequired}

func isLifecycle(event string) bool { return slices.Contains(lifecycle, event) }

// Event is one line. Fields that do not apply are left out.
type Event struct {
	Event string `json:"event"`
	// Time is when it happened, by the wall clock.
	Time time.Time `json:"time"`
	// Sequence counts the lines of one boot's file from one; the journal sets
	// it, and the four fields that say who writes.
	Sequence uint64     `json:"seq"`
	Run      pd.RunID   `json:"run"`
	Role     Role       `json:"role"`
	Node     string     `json:"node"`
	Boot     pd.BootID  `json:"boot"`
	Peer     *pd.Peer   `json:"peer,omitempty"`
	Request  string     `json:"request,omitempty"`
	Handoff  string     `json:"handoff,omitempty"`
	Chunk    *int       `json:"chunk,omitempty"`
	Span     *pd.Span   `json:"span,omitempty"`
	Bytes    int64      `json:"bytes,omitempty"`
	Ranks    int        `json:"ranks,omitempty"`
	Count    int64      `json:"count,omitempty"`
	Regions  ByteCounts `json:"regions,omitempty"`
	// BeganNanos and EndedNanos count from the start of the boot by the
	// monotonic clock, so that events of one process can be compared exactly.
	BeganNanos int64  `json:"began_ns,omitempty"`
	EndedNanos int64  `json:"ended_ns,omitempty"`
	Code       string `json:"code,omitempty"`
	Detail     string `json:"detail,omitempty"`
}

// ByteCounts says how many bytes of each component moved.
type ByteCounts map[pd.ComponentID]int64

// Duration is how long the event lasted; 0 for one that is a moment.
func (e Event) Duration() time.Duration { return time.Duration(e.EndedNanos - e.BeganNanos) }

// Overlap is how long two events of one boot ran at the same time.
func (e Event) Overlap(o Event) time.Duration {
	return time.Duration(max(0, min(e.EndedNanos, o.EndedNanos)-max(e.BeganNanos, o.BeganNanos)))
}

// Startup is the record of one start.
type Startup struct {
	Role           Role      `json:"role"`
	Run            pd.RunID  `json:"run_id"`
	Node           string    `json:"node_id"`
	Boot           pd.BootID `json:"boot_id"`
	Started        time.Time `json:"started"`
	PID            int       `json:"pid"`
	Program        string    `json:"program"`
	Version        string    `json:"version"`
	Go             string    `json:"go"`
	Provider       string    `json:"provider,omitempty"`
	ContractDigest string    `json:"contract_digest,omitempty"`
}
