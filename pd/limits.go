package pd

import "time"

// Bounds of the whole system. Each has its reason; a literal number in logic
// elsewhere is a mistake.
const (
	// MaxRanks bounds a node: 16 in the reference layout, with room.
	MaxRanks = 256
	// MaxPromptTokens and MaxModelTokens are the reference launch: a
	// 524,288-token prompt and 131,072 generated tokens.
	MaxPromptTokens = 524288
	MaxModelTokens  = 655360
	// MaxTablePages bounds one page table on the wire: the largest group has
	// 128-token pages, rings are shorter (pd-domain §5.5: at most 4101).
	MaxTablePages = 16384
	// MaxControlBytes bounds one control message in either direction
	// (pd-domain §4.1).
	MaxControlBytes = 16 << 20
	// MaxGroups, MaxComponents, MaxLayers, MaxElementBytes, MaxPageRows,
	// MaxRowElements and MaxArenaPages bound a data contract and the arenas built
	// from it, several times above any known model and low enough that no size
	// computed from them overflows 63 bits.
	MaxGroups       = 64
	MaxComponents   = 64
	MaxLayers       = 1024
	MaxElementBytes = 16
	MaxPageRows     = 1024
	MaxRowElements  = 1 << 18
	MaxArenaPages   = 1 << 20
	// MaxCopies, MaxUnits and MaxResults bound the lists of one message below
	// what fits in MaxControlBytes; a unit is a target rank and a component.
	MaxCopies  = 1 << 17
	MaxUnits   = MaxRanks * (MaxComponents + 1)
	MaxResults = 1 << 16
	// MaxEnvelopeBytes bounds a region's envelope and a rank's endpoint, which
	// only a provider can read.
	MaxEnvelopeBytes = 4096
	// MaxConstraintBytes bounds a grammar constraint (pd-domain §4.5).
	MaxConstraintBytes = 2 << 20
	// MaxJSONDepth bounds the nesting of every JSON text that is read strictly;
	// the deepest message has 7 levels, and recursion must end before the stack.
	MaxJSONDepth = 32
	// MaxHTTPBodyBytes is the default bound of an OpenAI body: 524,288 token
	// ids in JSON text need about 3.5 MB (pd-domain §12.3, 27).
	MaxHTTPBodyBytes = 32 << 20
	// MaxConfigBytes bounds pd.json: MaxNodes entries of both roles with the
	// longest names fit.
	MaxConfigBytes = 1 << 20
	// MaxNodes bounds the entries of one role in pd.json.
	MaxNodes = 256
	// MaxCapacity bounds the requests of one node: 16 decode slots on each of
	// MaxRanks ranks.
	MaxCapacity = 4096
	// MaxTombstones bounds how many ended handoffs a node remembers; eviction
	// is harmless because decode allocates only while a POST is open.
	MaxTombstones = 1024
	// MaxHellos is how many hellos decode remembers, so that one that comes twice
	// changes nothing the second time: several from each of MaxNodes peers.
	MaxHellos = 1024
	// MaxPastBoots is how many ended boots of a peer a node remembers, so that a
	// late message does not bring one back.
	MaxPastBoots = 64
	// MaxStopStrings and MaxStopBytes bound the stop list of one request, as
	// OpenAI does (4), with room for engines that allow more.
	MaxStopStrings = 16
	MaxStopBytes   = 1024
	// MaxSegmentTasks is how many tasks one native batch may hold and
	// MaxOutstandingTasks how many may be unsettled per peer (decisions.md
	// "Memory and native libraries").
	MaxSegmentTasks     = 256
	MaxOutstandingTasks = 1024
	// MaxReceivingShare: receiving leases hold at most one part in this many of
	// decode's pages, so that prompts in a prefill queue cannot fill the pool.
	MaxReceivingShare = 2
	// MaxJournalEvents and MaxJournalLogBytes bound what waits for the journal's
	// writer; beyond them the newest line is dropped and counted. Two seconds of
	// a busy node fit.
	MaxJournalEvents   = 8192
	MaxJournalLogBytes = 1 << 20
	// MaxJournalFileBytes is where a log or event file is moved aside, and
	// MaxBootJournals how many boots' state journals are kept.
	MaxJournalFileBytes = 64 << 20
	MaxBootJournals     = 64
	// FillerPages are scratch pages at the end of every layer of an arena.
	FillerPages = 64
)

// Times. A time ends waiting, never ownership of memory.
const (
	// PeerAskInterval is how often decode asks prefill's status while it waits, or
	// a quarter of handoff_timeout where that is less: a question may get lost
	// before silence means anything.
	PeerAskInterval = 5 * time.Second
	// UnreachableMost is how long an abort tries to reach a prefill that cannot be
	// reached before the node is gated; or handoff_timeout where that is less.
	UnreachableMost = 60 * time.Second
	// FactAskFirst and FactAskMost bound how often an unresolved fact is asked for.
	FactAskFirst = 1 * time.Second
	FactAskMost  = 30 * time.Second
	// LoopPause: a pause of a node's loop longer than this moves every deadline
	// by the pause, because the judge itself was asleep.
	LoopPause = 1 * time.Second
	// MinTimeout and MaxTimeout bound the timeouts of pd.json: less is no
	// waiting at all, more is a typing error.
	MinTimeout = 1 * time.Millisecond
	MaxTimeout = 365 * 24 * time.Hour
)
