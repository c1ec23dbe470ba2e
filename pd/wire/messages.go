package wire

import "github.com/hw-native-sys/pypto-pd/pd"

// Paths of the control protocol, version 2 (pd-domain §4.3).
const (
	PathNode          = "/pd/v2/node"
	PathSession       = "/pd/v2/session"
	PathStatus        = "/pd/v2/status"
	PathAbort         = "/pd/v2/abort"
	PathReserve       = "/pd/v2/reserve"
	PathChunk         = "/pd/v2/chunk"
	PathResult        = "/pd/v2/result"
	PathCommit        = "/pd/v2/commit"
	PathSourceStopped = "/pd/v2/source-stopped"
)

// Node is the descriptor of one node: what a router or a peer may know of it.
type Node struct {
	ProtocolVersion  int         `json:"protocol_version"`
	Role             pd.Role     `json:"role"`
	Node             pd.NodeID   `json:"node_id"`
	Boot             pd.BootID   `json:"boot_id"`
	Run              pd.RunID    `json:"run_id"`
	HTTPAddress      string      `json:"http_address"`
	ControlAddress   string      `json:"control_address"`
	TransferHostname string      `json:"transfer_hostname"`
	Health           pd.Health   `json:"health"`
	Reason           string      `json:"reason"`
	ServedModel      string      `json:"served_model"`
	MaxModelTokens   int         `json:"max_model_tokens"`
	Contract         pd.Contract `json:"contract"`
	ContractDigest   string      `json:"contract_digest"`
	Topology         pd.Topology `json:"topology"`
	// RingPeriods are local; a pair whose transfer would not fit is refused.
	RingPeriods   map[pd.GroupName]int `json:"ring_periods"`
	PrefixCaching bool                 `json:"prefix_caching"`
	Capacity      Capacity             `json:"capacity"`
}

// Capacity is a node's own count of its requests.
type Capacity struct {
	Limit        int `json:"limit"`
	Active       int `json:"active"`
	Reservations int `json:"reservations"`
	Quarantined  int `json:"quarantined"`
	// Sequence rises with every change, so that an older snapshot is seen as such.
	Sequence int64 `json:"sequence"`
}

// Session is the hello of prefill to decode, and decode's answer. The nonce is
// 16 bytes as 32 hex digits; the answer repeats it.
type Session struct {
	ProtocolVersion int         `json:"protocol_version"`
	Role            pd.Role     `json:"role"`
	Peer            pd.Peer     `json:"peer"`
	Run             pd.RunID    `json:"run_id"`
	Nonce           string      `json:"nonce"`
	Contract        pd.Contract `json:"contract"`
	ContractDigest  string      `json:"contract_digest"`
	Registry        pd.Registry `json:"registry"`
}

// Reserve asks decode for a lease. The continuation travels here and only here.
type Reserve struct {
	Fence            pd.Fence        `json:"fence"`
	ContractDigest   string          `json:"contract_digest"`
	PromptTokenCount int             `json:"prompt_token_count"`
	Continuation     pd.Continuation `json:"continuation"`
	MetadataHash     string          `json:"metadata_hash"`
	PreparedDigest   string          `json:"prepared_digest"`
	RemainingMillis  int64           `json:"remaining_millis"`
}

// Reserved grants a lease. Page ids here authorize nothing; only the answer to
// a chunk does.
type Reserved struct {
	Reservation   pd.ReservationID              `json:"reservation_id"`
	Partition     pd.Partition                  `json:"partition"`
	Tables        map[pd.GroupName][]pd.PageRun `json:"tables"`
	HitTokens     int                           `json:"prefix_hit_tokens"`
	BootstrapSlot int                           `json:"bootstrap_slot"`
	Generation    pd.Generation                 `json:"bootstrap_generation"`
}

// Chunk offers one chunk. Decode plans it again from its own tables.
type Chunk struct {
	Manifest     pd.Manifest `json:"manifest"`
	ManifestHash string      `json:"manifest_hash"`
}

// ChunkAck is the only authority to write, and only for this chunk.
type ChunkAck struct {
	Chunk pd.ChunkID `json:"chunk"`
}

// Results states settled units; it may be repeated.
type Results struct {
	Fence   pd.Fence        `json:"fence"`
	Results []pd.UnitResult `json:"results"`
}

// Ack says that a message was taken in.
type Ack struct{}

// Commit ends the transfer. Results holds every fact not acknowledged before.
type Commit struct {
	Fence        pd.Fence        `json:"fence"`
	ManifestHash string          `json:"manifest_hash"`
	FirstToken   pd.Token        `json:"first_token"`
	MetadataHash string          `json:"metadata_hash"`
	Results      []pd.UnitResult `json:"results"`
}

// Committed says that decode owns the request now.
type Committed struct {
	Reservation  pd.ReservationID `json:"reservation_id"`
	ManifestHash string           `json:"manifest_hash"`
	Admitted     bool             `json:"admitted"`
}

// Abort ends a handoff that has not been committed. Fact is set by the sender's
// boot only; an abort of a router carries a reason and no fact.
type Abort struct {
	Fence   pd.Fence        `json:"fence"`
	From    string          `json:"from"`
	Reason  string          `json:"reason"`
	Fact    pd.StopFact     `json:"stop_fact,omitempty"`
	Results []pd.UnitResult `json:"results,omitempty"`
}

// StatusQuery asks how a handoff stands.
type StatusQuery struct {
	Fence pd.Fence `json:"fence"`
}

// Status is one node's view of a handoff. It is answered from the tombstone
// after the end; UNKNOWN_KEY means "not here", never "safe to reuse memory".
type Status struct {
	Role         pd.Role          `json:"role"`
	State        string           `json:"state"`
	Reservation  pd.ReservationID `json:"reservation_id,omitempty"`
	ManifestHash string           `json:"manifest_hash,omitempty"`
	Admitted     bool             `json:"admitted"`
	// Progress counts computed prompt tokens on prefill.
	Progress int    `json:"progress"`
	Code     string `json:"code,omitempty"`
	// Fact is prefill's stop fact, once its owners are sealed.
	Fact pd.StopFact `json:"stop_fact,omitempty"`
	// Released and Held say what an abort gave back and what it holds, in pages.
	Released int    `json:"released_pages"`
	Held     int    `json:"held_pages"`
	Why      string `json:"why,omitempty"`
}

// SourceStopped is prefill's word at shutdown that all its writes have ended.
type SourceStopped struct {
	Peer pd.Peer     `json:"peer"`
	Fact pd.StopFact `json:"stop_fact"`
}

// Failure is the body of every refusal on the control port (pd-domain §4.10).
type Failure struct {
	Error FailureBody `json:"error"`
}

// FailureBody says what was refused and whether it may be tried again.
type FailureBody struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`
	// Definite: nothing was changed and nothing will be by this message.
	Definite bool `json:"definite"`
}
