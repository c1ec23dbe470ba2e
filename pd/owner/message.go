package owner

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// kind names a message on the wire. Numbers are append-only.
type kind uint16

// From the node:
const (
	kindStart  kind = 1
	kindTarget kind = 2
	kindRetire kind = 3
	kindWrite  kind = 4
	kindSeal   kind = 5
	kindForget kind = 6
	kindFence  kind = 7
	kindPing   kind = 8
	kindCopy   kind = 9
	kindClose  kind = 10
)

// From the owner:
const (
	kindStarted kind = 101
	kindRefused kind = 102
	kindBegan   kind = 103
	kindSettled kind = 104
	kindSealed  kind = 105
	kindFenced  kind = 106
	kindPong    kind = 107
	kindCopied  kind = 108
	kindClosed  kind = 109
	kindFreed   kind = 110
)

const (
	// maxFrameSegments is how many segments one frame holds; a longer job takes
	// several.
	maxFrameSegments = 16384
	segmentBytes     = 26
	// maxCopyBytes bounds one copy in or out.
	maxCopyBytes = 512 << 10
	// maxOptionBytes bounds a provider's options.
	maxOptionBytes = 64 << 10
	// maxDetailBytes bounds a provider's own words.
	maxDetailBytes = 1024
)

// message is one message of either direction.
type message interface {
	kind() kind
	// append adds the body to b.
	append(b []byte) []byte
}

// The messages that are read once in a while are strict JSON.
type (
	startMessage struct {
		Node         pd.NodeID  `json:"node"`
		Boot         pd.BootID  `json:"boot"`
		Rank         pd.Rank    `json:"rank"`
		Hostname     string     `json:"hostname"`
		AttemptNanos int64      `json:"attempt_timeout_ns"`
		ConnectNanos int64      `json:"connect_timeout_ns"`
		Provider     string     `json:"provider"`
		Options      string     `json:"options"`
		Regions      []madeInto `json:"regions"`
		UsedPorts    []int      `json:"used_ports"`
	}
	// madeInto is a region; what the owner made of it is absent in the order.
	madeInto struct {
		Component pd.ComponentID `json:"component"`
		Bytes     int64          `json:"bytes"`
		Envelope  string         `json:"envelope,omitempty"`
		// Offset is where the region lies in the shared memory, plus 1; absent where it
		// does not.
		Offset int64 `json:"offset,omitempty"`
	}
	startedMessage struct {
		Life    lifeMessage  `json:"life"`
		Facts   factsMessage `json:"facts"`
		Regions []madeInto   `json:"regions"`
	}
	lifeMessage struct {
		Epoch    pd.Epoch `json:"epoch"`
		Endpoint string   `json:"endpoint"`
		Ports    []int    `json:"ports"`
	}
	factsMessage struct {
		FenceProves         bool   `json:"fence_proves"`
		DeathSuffices       bool   `json:"death_suffices"`
		TerminalFreesSource bool   `json:"terminal_frees_source"`
		Acknowledged        bool   `json:"acknowledged"`
		LocksMemory         bool   `json:"locks_memory"`
		Build               string `json:"build"`
	}
	refusedMessage struct {
		Code pd.Code `json:"code"`
		Text string  `json:"text"`
	}
	targetMessage struct {
		ID       uint64      `json:"id"`
		Node     pd.NodeID   `json:"node"`
		Boot     pd.BootID   `json:"boot"`
		Rank     pd.Rank     `json:"rank"`
		Epoch    pd.Epoch    `json:"epoch"`
		Endpoint string      `json:"endpoint"`
		Regions  []pd.Region `json:"regions"`
	}
	retireMessage struct {
		ID uint64 `json:"id"`
	}
	sealMessage struct {
		Handoff pd.HandoffID `json:"handoff"`
	}
	forgetMessage struct {
		Handoff pd.HandoffID `json:"handoff"`
	}
	fenceMessage struct {
		TimeoutNanos int64 `json:"timeout_ns"`
		UsedPorts    []int `json:"used_ports"`
	}
	pingMessage   struct{}
	closeMessage  struct{}
	sealedMessage struct {
		Handoff pd.HandoffID `json:"handoff"`
	}
	// fencedMessage has a life where the fence succeeded, else code and text.
	fencedMessage struct {
		Life *lifeMessage `json:"life,omitempty"`
		Code pd.Code      `json:"code,omitempty"`
		Text string       `json:"text,omitempty"`
	}
	pongMessage   struct{}
	closedMessage struct{}
)

// The messages of every chunk are fixed binary, little endian.
type (
	// writeMessage is a part of a job: Segments follow those that came before, and
	// the job is whole with the Total-th.
	writeMessage struct {
		Job      uint64
		Target   uint64
		Handoff  pd.HandoffID
		Chunk    pd.ChunkID
		Total    int
		Segments []wireSegment
	}
	// wireSegment names its component by its place in the start message.
	wireSegment struct {
		component              uint16
		source, target, length int64
	}
	beganMessage   struct{ Job uint64 }
	freedMessage   struct{ Job uint64 }
	settledMessage struct {
		Job          uint64
		First, Count int
		Outcome      outcome
	}
	// copyMessage copies Data in, or Length bytes out where Data is nil.
	copyMessage struct {
		Component uint16
		Offset    int64
		Length    int
		Data      []byte
	}
	copiedMessage struct {
		Text string
		Data []byte
	}
)

func (startMessage) kind() kind   { return kindStart }
func (targetMessage) kind() kind  { return kindTarget }
func (retireMessage) kind() kind  { return kindRetire }
func (writeMessage) kind() kind   { return kindWrite }
func (sealMessage) kind() kind    { return kindSeal }
func (forgetMessage) kind() kind  { return kindForget }
func (fenceMessage) kind() kind   { return kindFence }
func (pingMessage) kind() kind    { return kindPing }
func (copyMessage) kind() kind    { return kindCopy }
func (closeMessage) kind() kind   { return kindClose }
func (startedMessage) kind() kind { return kindStarted }
func (refusedMessage) kind() kind { return kindRefused }
func (beganMessage) kind() kind   { return kindBegan }
func (freedMessage) kind() kind   { return kindFreed }
func (settledMessage) kind() kind { return kindSettled }
func (sealedMessage) kind() kind  { return kindSealed }
func (fencedMessage) kind() kind  { return kindFenced }
func (pongMessage) kind() kind    { return kindPong }
func (copiedMessage) kind() kind  { return kindCopied }
func (closedMessage) kind() kind  { return kindClosed }

// appendJSON adds the JSON form of a message.
func appendJSON(b []byte, m any) []byte {
	text, err := strictjson.Canonical(m)
	if err != nil {
		panic(fmt.Sprintf("owner: %T has no JSON form: %v", m, err)) // strings, numbers and lists of them
	}
	return append(b, text...)
}

func (m startMessage) append(b []byte) []byte   { return appendJSON(b, m) }
func (m targetMessage) append(b []byte) []byte  { return appendJSON(b, m) }
func (m retireMessage) append(b []byte) []byte  { return appendJSON(b, m) }
func (m sealMessage) append(b []byte) []byte    { return appendJSON(b, m) }
func (m forgetMessage) append(b []byte) []byte  { return appendJSON(b, m) }
func (m fenceMessage) append(b []byte) []byte   { return appendJSON(b, m) }
func (m startedMessage) append(b []byte) []byte { return appendJSON(b, m) }
func (m refusedMessage) append(b []byte) []byte { return appendJSON(b, m) }
func (m sealedMessage) append(b []byte) []byte  { return appendJSON(b, m) }
func (m fencedMessage) append(b []byte) []byte  { return appendJSON(b, m) }
func (closedMessage) append(b []byte) []byte    { return b }
func (pingMessage) append(b []byte) []byte      { return b }
func (pongMessage) append(b []byte) []byte      { return b }
func (closeMessage) append(b []byte) []byte     { return b }

func (m writeMessage) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, m.Job)
	b = binary.LittleEndian.AppendUint64(b, m.Target)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Chunk))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Total))
	b = append(b, m.Handoff...) // always 32 hexadecimal digits
	for _, s := range m.Segments {
		b = binary.LittleEndian.AppendUint16(b, s.component)
		b = binary.LittleEndian.AppendUint64(b, uint64(s.source))
		b = binary.LittleEndian.AppendUint64(b, uint64(s.target))
		b = binary.LittleEndian.AppendUint64(b, uint64(s.length))
	}
	return b
}

func (m beganMessage) append(b []byte) []byte { return binary.LittleEndian.AppendUint64(b, m.Job) }

func (m freedMessage) append(b []byte) []byte { return binary.LittleEndian.AppendUint64(b, m.Job) }

func (m settledMessage) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, m.Job)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.First))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Count))
	free := byte(0)
	if m.Outcome.sourceFree {
		free = 1
	}
	b = append(b, byte(m.Outcome.settlement), free)
	return append(b, m.Outcome.detail[:min(len(m.Outcome.detail), maxDetailBytes)]...)
}

func (m copyMessage) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, m.Component)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.Offset))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Length))
	return append(b, m.Data...)
}

func (m copiedMessage) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.Text)))
	return append(append(b, m.Text...), m.Data...)
}

// handoffBytes is the length of a handoff id.
const handoffBytes = 32

// decode reads a message that this side may get. Nothing in it aliases the
// frame, but for the data of a copy.
func decode(f frame, fromNode bool) (message, error) {
	if fromNode {
		switch f.kind {
		case kindStart:
			return decodeJSON[startMessage](f)
		case kindTarget:
			return decodeJSON[targetMessage](f)
		case kindRetire:
			return decodeJSON[retireMessage](f)
		case kindWrite:
			return decodeWrite(f.body)
		case kindSeal:
			return decodeJSON[sealMessage](f)
		case kindForget:
			return decodeJSON[forgetMessage](f)
		case kindFence:
			return decodeJSON[fenceMessage](f)
		case kindPing:
			return decodeEmpty(f, pingMessage{})
		case kindCopy:
			return decodeCopy(f.body)
		case kindClose:
			return decodeEmpty(f, closeMessage{})
		}
		return nil, malformed("a node sends no message of kind %d", f.kind)
	}
	switch f.kind {
	case kindStarted:
		return decodeJSON[startedMessage](f)
	case kindRefused:
		return decodeJSON[refusedMessage](f)
	case kindBegan, kindFreed:
		if len(f.body) != 8 {
			return nil, malformed("began or freed: %d bytes, want 8", len(f.body))
		}
		job := binary.LittleEndian.Uint64(f.body)
		if f.kind == kindFreed {
			return freedMessage{Job: job}, nil
		}
		return beganMessage{Job: job}, nil
	case kindSettled:
		return decodeSettled(f.body)
	case kindSealed:
		return decodeJSON[sealedMessage](f)
	case kindFenced:
		return decodeJSON[fencedMessage](f)
	case kindPong:
		return decodeEmpty(f, pongMessage{})
	case kindCopied:
		return decodeCopied(f.body)
	case kindClosed:
		return decodeEmpty(f, closedMessage{})
	}
	return nil, malformed("an owner sends no message of kind %d", f.kind)
}

func decodeJSON[M message](f frame) (message, error) {
	var m M
	if err := strictjson.Decode(f.body, &m, strictjson.Limits{Bytes: maxFrameBytes}); err != nil {
		return nil, &pd.Error{Op: "owner protocol", Code: pd.CodeMalformed, Text: fmt.Sprintf("message of kind %d", f.kind), Err: err}
	}
	return m, nil
}

func decodeEmpty(f frame, m message) (message, error) {
	if len(f.body) != 0 {
		return nil, malformed("message of kind %d with %d bytes, want none", f.kind, len(f.body))
	}
	return m, nil
}

const writeHeadBytes = 8 + 8 + 4 + 4 + handoffBytes

func decodeWrite(b []byte) (message, error) {
	if len(b) < writeHeadBytes || (len(b)-writeHeadBytes)%segmentBytes != 0 {
		return nil, malformed("write of %d bytes", len(b))
	}
	m := writeMessage{
		Job: binary.LittleEndian.Uint64(b), Target: binary.LittleEndian.Uint64(b[8:]),
		Chunk: pd.ChunkID(binary.LittleEndian.Uint32(b[16:])), Total: int(binary.LittleEndian.Uint32(b[20:])),
		Handoff: pd.HandoffID(b[24 : 24+handoffBytes]),
	}
	b = b[writeHeadBytes:]
	n := len(b) / segmentBytes
	switch {
	case pd.CheckHexID("handoff", string(m.Handoff)) != nil:
		return nil, malformed("write: handoff %q", m.Handoff)
	case n < 1 || n > m.Total || m.Total > maxSegments:
		return nil, malformed("write: %d segments of %d, want 1..%d", n, m.Total, maxSegments)
	}
	m.Segments = make([]wireSegment, n)
	for i := range m.Segments {
		m.Segments[i] = wireSegment{
			component: binary.LittleEndian.Uint16(b), source: int64(binary.LittleEndian.Uint64(b[2:])),
			target: int64(binary.LittleEndian.Uint64(b[10:])), length: int64(binary.LittleEndian.Uint64(b[18:])),
		}
		b = b[segmentBytes:]
	}
	return m, nil
}

func decodeSettled(b []byte) (message, error) {
	if len(b) < 18 || len(b) > 18+maxDetailBytes {
		return nil, malformed("settled of %d bytes", len(b))
	}
	m := settledMessage{
		Job: binary.LittleEndian.Uint64(b), First: int(binary.LittleEndian.Uint32(b[8:])), Count: int(binary.LittleEndian.Uint32(b[12:])),
		Outcome: outcome{settlement: pd.Settlement(b[16]), sourceFree: b[17] == 1, detail: string(b[18:])},
	}
	switch m.Outcome.settlement {
	case pd.Done, pd.Failed, pd.Uncertain:
	default:
		return nil, malformed("settled as %d", b[16])
	}
	if b[17] > 1 || m.Count < 1 || m.Count > maxSegments || m.First > maxSegments {
		return nil, malformed("settled: segments %d+%d, free %d", m.First, m.Count, b[17])
	}
	return m, nil
}

func decodeCopy(b []byte) (message, error) {
	if len(b) < 14 {
		return nil, malformed("copy of %d bytes", len(b))
	}
	m := copyMessage{Component: binary.LittleEndian.Uint16(b), Offset: int64(binary.LittleEndian.Uint64(b[2:])), Length: int(binary.LittleEndian.Uint32(b[10:]))}
	if data := b[14:]; len(data) > 0 {
		m.Data = data
	}
	if m.Length < 1 || m.Length > maxCopyBytes || m.Data != nil && len(m.Data) != m.Length {
		return nil, malformed("copy of %d bytes with %d", m.Length, len(m.Data))
	}
	return m, nil
}

func decodeCopied(b []byte) (message, error) {
	if len(b) < 4 {
		return nil, malformed("copied of %d bytes", len(b))
	}
	n := int(binary.LittleEndian.Uint32(b))
	if b = b[4:]; n > len(b) {
		return nil, malformed("copied: a text of %d bytes in %d", n, len(b))
	}
	return copiedMessage{Text: string(b[:n]), Data: slices.Clone(b[n:])}, nil
}

func factsOf(m factsMessage) transfer.Facts {
	return transfer.Facts{
		FenceProves: m.FenceProves, DeathSuffices: m.DeathSuffices, TerminalFreesSource: m.TerminalFreesSource,
		Acknowledged: m.Acknowledged, LocksMemory: m.LocksMemory, Build: m.Build,
	}
}

func factsToSend(f transfer.Facts) factsMessage {
	return factsMessage{
		FenceProves: f.FenceProves, DeathSuffices: f.DeathSuffices, TerminalFreesSource: f.TerminalFreesSource,
		Acknowledged: f.Acknowledged, LocksMemory: f.LocksMemory, Build: f.Build,
	}
}

func (l engineLife) message() lifeMessage {
	return lifeMessage{Epoch: l.epoch, Endpoint: l.endpoint, Ports: l.ports}
}

func (m lifeMessage) life() engineLife {
	return engineLife{epoch: m.Epoch, endpoint: m.Endpoint, ports: m.Ports}
}

// check refuses what a provider can never say.
func (m *lifeMessage) check() error {
	if m.Epoch < 1 || m.Endpoint == "" || len(m.Endpoint) > maxEnvelopeBytes {
		return malformed("an engine of epoch %d with an endpoint of %d bytes", m.Epoch, len(m.Endpoint))
	}
	for _, p := range m.Ports {
		if p < 1 || p > 65535 {
			return malformed("an engine on port %d", p)
		}
	}
	return nil
}

// nanos is what is left until the deadline of a context, at most limit.
func nanos(deadline time.Time, ok bool, limit time.Duration) int64 {
	if ok {
		limit = min(limit, time.Until(deadline))
	}
	return int64(max(limit, 0))
}
