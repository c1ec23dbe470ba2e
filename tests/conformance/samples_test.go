package conformance

import (
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// sample is one message of the protocol with every field set.
type sample struct {
	name string
	// value is a pointer to a message.
	value wire.Message
	// decode reads the message back, as a pointer.
	decode func([]byte) (wire.Message, error)
}

func of[T any, M interface {
	*T
	wire.Message
}](name string, value T) sample {
	return sample{name: name, value: M(&value), decode: func(b []byte) (wire.Message, error) {
		m, err := wire.Decode[T, M](b)
		return M(&m), err
	}}
}

func ptr[T any](v T) *T { return &v }

var fence = pd.Fence{
	Request: "cmpl-7", Handoff: "0123456789abcdef0123456789abcdef", Run: "pd-7563c15ba60c0820",
	Prefill: pd.Peer{Node: "10.1.0.1:8000", Boot: "11111111111111111111111111111111"},
	Decode:  pd.Peer{Node: "[fd00::2]:8000", Boot: "22222222222222222222222222222222"},
}

func contract() pd.Contract {
	return pd.Contract{
		ProtocolVersion: 2, Adapter: "two-groups", AdapterVersion: 7, Family: "toy", Variant: "k7", SpeculativeTokens: 7,
		Continuation: "toy-k7/v3", Granularity: "chunk_after_prefill", FinalPartial: "exclusive_full_page",
		ModelRevision: strings.Repeat("ab", 32), Provider: "simulator", Mapping: "rank-mod", RollingPolicy: "tail",
		AlignmentTokens: 128, ByteAlignment: 64,
		Groups: []pd.CacheGroup{
			{Name: "full", Kind: pd.Full, PageTokens: 128},
			{Name: "ring", Kind: pd.Rolling, PageTokens: 32, WindowTokens: 128},
			{Name: "state", Kind: pd.FinalOnly, PageTokens: 4, WindowTokens: 8},
		},
		Components: []pd.Component{
			{ID: "kv", Group: "full", Atomic: "kv", DType: "bfloat16", ElementBytes: 2, RowsPerPage: 128, RowTokens: 1, RowElements: 512, Layers: []int{0, 2, 5}},
			{ID: "win", Group: "ring", Atomic: "win", DType: "bfloat16", ElementBytes: 2, RowsPerPage: 32, RowTokens: 1, RowElements: 512, Layers: []int{1}},
			{ID: "acc", Group: "state", Atomic: "acc", DType: "float32", ElementBytes: 4, RowsPerPage: 4, RowTokens: 1, RowElements: 64, Layers: []int{1, 2}},
		},
		Bootstrap: pd.Bootstrap{Component: "hidden", Rows: 128, RowElements: 64, ElementBytes: 2},
	}
}

func registry() pd.Registry {
	r := pd.Registry{
		Topology:       pd.Topology{Ranks: 2, TP: 1},
		PagesPerLayer:  map[pd.GroupName]int{"full": 100, "ring": 80, "state": 90},
		RingPeriods:    map[pd.GroupName]int{"ring": 9, "state": 4},
		BootstrapSlots: 4,
		Build:          "simulator/1",
	}
	for rank := range pd.Rank(2) {
		r.Ranks = append(r.Ranks, pd.RankRegistration{
			Rank: rank, Epoch: 1, Endpoint: "127.0.0.1:15000",
			Regions: []pd.Region{{Component: "kv", Bytes: 39321600, Envelope: "e0"}, {Component: "hidden", Bytes: 65536, Envelope: "é\n\"\\"}},
		})
	}
	return r
}

func continuation() pd.Continuation {
	return pd.Continuation{
		PromptTokens: []pd.Token{0, 1, 2147483647}, MaxNewTokens: 128, Temperature: "0", TopP: "0.95", Seed: ptr(int64(9007199254740993)),
		Stop: []string{"\n\n", "</é>"}, EOS: ptr(pd.Token(2)), Stream: true, OutputParser: "dsml", Constraint: `{"type":"object"}`,
	}
}

func manifest() pd.Manifest {
	return pd.Manifest{
		Fence: fence, Chunk: 1, Span: pd.Span{Start: 128, End: 300}, Final: true, SourcePartition: 1, TargetPartition: 3,
		RankMap: []pd.RankPair{{Source: 5, Target: 6}, {Source: 4, Target: 7}}, SourceHitTokens: 128,
		Copies: []pd.Copy{
			{Component: "win", Source: 3, Target: 4, Count: 2, ValidRows: 12},
			{Component: "kv", Source: 10, Target: 0, Count: 2, ValidRows: 44},
		},
		Units: []pd.Unit{
			{Target: 7, Component: "kv", Bytes: 786432},
			{Target: 6, Component: "kv", Bytes: 786432},
			{Target: 6, Component: "acc"},
			{Target: 6, Component: "hidden", Bytes: 16384},
		},
		Bootstrap: &pd.BootstrapCopy{SourceSlot: 2, TargetSlot: 0, TargetGeneration: 18446744073709551615}, FirstToken: ptr(pd.Token(0)),
		MetadataHash: strings.Repeat("0c", 32), PreparedDigest: strings.Repeat("d0", 32),
	}
}

func results() []pd.UnitResult {
	return []pd.UnitResult{
		{Chunk: 0, Source: 4, Target: 7, Component: "kv", Settlement: pd.Done},
		{Chunk: 1, Source: 5, Target: 6, Component: "kv", Settlement: pd.Uncertain, Detail: "TIMEOUT 5"},
	}
}

// must is for values that the tests compute themselves.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func samples() []sample {
	c, k, m := contract(), continuation(), manifest()
	contractDigest := must(wire.ContractDigest(&c))
	metadata := must(wire.MetadataHash(&k))
	hash := must(wire.ManifestHash(&m))
	early := manifest()
	early.Chunk, early.Span, early.Final, early.Copies = 0, pd.Span{Start: 0, End: 128}, false, nil
	early.Bootstrap, early.FirstToken, early.MetadataHash, early.PreparedDigest = nil, nil, "", ""
	return []sample{
		of("node", wire.Node{
			ProtocolVersion: 2, Role: pd.Decode, Node: fence.Decode.Node, Boot: fence.Decode.Boot, Run: fence.Run,
			HTTPAddress: "[fd00::2]:8000", ControlAddress: "[fd00::2]:18000", TransferHostname: "fd00::2",
			Health: pd.Ready, ServedModel: "toy", MaxModelTokens: 655360, Contract: c, ContractDigest: contractDigest,
			Topology: pd.Topology{Ranks: 16, TP: 4}, RingPeriods: registry().RingPeriods, PrefixCaching: true,
			Capacity: wire.Capacity{Limit: 8, Active: 3, Reservations: 2, Quarantined: 1, Sequence: 99},
		}),
		of("session", wire.Session{
			ProtocolVersion: 2, Role: pd.Prefill, Peer: fence.Prefill, Run: fence.Run, Nonce: "33333333333333333333333333333333",
			Contract: c, ContractDigest: contractDigest, Registry: registry(),
		}),
		of("reserve", wire.Reserve{
			Fence: fence, ContractDigest: contractDigest, PromptTokenCount: 3, Continuation: k,
			MetadataHash: metadata, PreparedDigest: must(wire.PreparedDigest(metadata)), RemainingMillis: 299999,
		}),
		of("reserved", wire.Reserved{
			Reservation: "pd-0123456789ab", Partition: 3, HitTokens: 128, BootstrapSlot: 0, Generation: 5,
			Tables: map[pd.GroupName][]pd.PageRun{"full": {{First: 0, Count: 2}, {First: 9, Count: 1}}, "ring": {}},
		}),
		of("chunk", wire.Chunk{Manifest: m, ManifestHash: hash}),
		of("chunk_early", wire.Chunk{Manifest: early, ManifestHash: must(wire.ManifestHash(&early))}),
		of("chunk_ack", wire.ChunkAck{Chunk: 1}),
		of("results", wire.Results{Fence: fence, Results: results()}),
		of("ack", wire.Ack{}),
		of("commit", wire.Commit{Fence: fence, ManifestHash: hash, FirstToken: 0, MetadataHash: metadata, Results: results()}),
		of("committed", wire.Committed{Reservation: "pd-0123456789ab", ManifestHash: hash, Admitted: true}),
		of("abort", wire.Abort{Fence: fence, From: "10.1.0.1:8000", Reason: "client is gone", Fact: pd.DefiniteFailed, Results: results()}),
		of("abort_router", wire.Abort{Fence: fence, From: "router", Reason: "prefill answered 503"}),
		of("status_query", wire.StatusQuery{Fence: fence}),
		of("status", wire.Status{
			Role: pd.Prefill, State: "TRANSFERRING", Reservation: "pd-0123456789ab", ManifestHash: hash, Progress: 300,
			Code: "UNCERTAIN", Fact: pd.Unknown, Released: 3, Held: 44, Why: "one write of rank 5 is not settled",
		}),
		of("source_stopped", wire.SourceStopped{Peer: fence.Prefill, Fact: pd.AllDone}),
		of("failure", wire.Failure{Error: wire.FailureBody{Code: "CAPACITY_EXHAUSTED", Message: "full: need 3, free 1", Retryable: true, Definite: true}}),
	}
}
