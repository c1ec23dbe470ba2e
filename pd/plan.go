package pd

// Copy moves consecutive source pages onto consecutive target pages of one
// component, for every layer of the contract's list and every pair of the rank
// map.
type Copy struct {
	Component ComponentID `json:"component"`
	Source    Page        `json:"source"`
	Target    Page        `json:"target"`
	Count     int         `json:"count"`
	// ValidRows is how many rows of the last page hold data; the whole page is
	// copied. It equals the component's rows per page except for the final
	// partial page.
	ValidRows int `json:"valid_rows"`
}

// Unit is the completion record of one component on one target rank within one
// chunk. A unit of zero bytes is kept, so that "nothing to send" is a fact.
type Unit struct {
	Target    Rank        `json:"target"`
	Component ComponentID `json:"component"`
	Bytes     int64       `json:"bytes"`
}

// BootstrapCopy moves the whole bootstrap slot on every pair of the rank map.
type BootstrapCopy struct {
	SourceSlot int `json:"source_slot"`
	TargetSlot int `json:"target_slot"`
	// TargetGeneration is decode's use of its slot, as granted in reserve.
	TargetGeneration Generation `json:"target_generation"`
}

// Manifest is everything that one chunk of a handoff moves. Both nodes compute
// it from their own tables and must agree on every byte of it.
type Manifest struct {
	Fence           Fence      `json:"fence"`
	Chunk           ChunkID    `json:"chunk"`
	Span            Span       `json:"span"`
	Final           bool       `json:"final"`
	SourcePartition Partition  `json:"source_partition"`
	TargetPartition Partition  `json:"target_partition"`
	RankMap         []RankPair `json:"rank_map"`
	SourceHitTokens int        `json:"source_hit_tokens"`
	Copies          []Copy     `json:"copies"`
	Units           []Unit     `json:"units"`
	// Bootstrap, FirstToken, MetadataHash and PreparedDigest are present in the
	// final chunk only.
	Bootstrap      *BootstrapCopy `json:"bootstrap,omitempty"`
	FirstToken     *Token         `json:"first_token,omitempty"`
	MetadataHash   string         `json:"metadata_hash,omitempty"`
	PreparedDigest string         `json:"prepared_digest,omitempty"`
}

// UnitResult is the settled fact of one unit of one chunk.
type UnitResult struct {
	Chunk      ChunkID     `json:"chunk"`
	Source     Rank        `json:"source"`
	Target     Rank        `json:"target"`
	Component  ComponentID `json:"component"`
	Settlement Settlement  `json:"settlement"`
	// Detail is the provider's code for people; it decides nothing.
	Detail string `json:"detail,omitempty"`
}

// Segment is one contiguous write from a source region into a target region of
// the same component. Offsets and length are multiples of the contract's byte
// alignment and lie inside both extents.
type Segment struct {
	Component    ComponentID
	SourceOffset int64
	TargetOffset int64
	Bytes        int64
}

// RankWrite is all segments of one chunk between one pair of ranks.
type RankWrite struct {
	Pair     RankPair
	Segments []Segment
}
