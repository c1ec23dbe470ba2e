package simulator

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// connectTimeout bounds a Connect whose context has no deadline.
const connectTimeout = 5 * time.Second

// sessionKey is one life of one target rank, as decided in decisions.md "PD
// wire" 16: a fence or a restart of the peer makes another session.
type sessionKey struct {
	identity transfer.Identity
	endpoint string
}

type engine struct {
	*transfer.Verdicts

	// constant
	provider *Provider
	options  transfer.Options
	timeout  time.Duration

	// owned by the caller's goroutine
	inbound    *inbound
	components []pd.ComponentID // by region number
	extents    transfer.Extents
	source     map[pd.ComponentID][]byte
	frozen     bool
	closed     bool
	pacer      *pacer
	sessions   map[sessionKey]*session
	lastTicket transfer.Ticket
}

// check refuses calls to an engine that has ended.
func (e *engine) check(op string) error {
	if e.closed {
		return pd.Errorf(pd.CodeOwnerLost, op, "the engine is closed")
	}
	return nil
}

// Register implements transfer.Engine.
func (e *engine) Register(component pd.ComponentID, m transfer.Memory) (string, error) {
	op := "register " + string(component)
	if err := e.check(op); err != nil {
		return "", err
	}
	bytes := m.Bytes()
	switch {
	case e.frozen:
		return "", pd.Errorf(pd.CodeFrozen, op, "regions are frozen; register all before the first connection")
	case component == "":
		return "", pd.Errorf(pd.CodeInvalidConfig, op, "component is empty")
	case len(bytes) == 0:
		return "", pd.Errorf(pd.CodeUnsupported, op, "the simulator writes host memory only")
	case int64(len(bytes)) != m.Len():
		return "", pd.Errorf(pd.CodeInvalidConfig, op, "memory has %d bytes but says %d", len(bytes), m.Len())
	case m.Base()%transfer.Alignment != 0:
		return "", pd.Errorf(pd.CodeInvalidConfig, op, "base address is not a multiple of %d", transfer.Alignment)
	}
	if _, twice := e.source[component]; twice {
		return "", pd.Errorf(pd.CodeConflict, op, "the component is registered already")
	}
	e.source[component] = bytes
	e.extents[component] = m.Len()
	e.components = append(e.components, component)
	return envelope(len(e.components)-1, m.Len()), nil
}

// Freeze implements transfer.Engine. From here on peers can write.
func (e *engine) Freeze() error {
	const op = "freeze regions"
	if err := e.check(op); err != nil {
		return err
	}
	switch {
	case e.frozen:
		return pd.Errorf(pd.CodeFrozen, op, "regions are frozen already")
	case len(e.components) == 0:
		return pd.Errorf(pd.CodeInvalidConfig, op, "nothing is registered")
	}
	e.frozen = true
	e.inbound.serve(e.regions())
	return nil
}

func (e *engine) regions() [][]byte {
	regions := make([][]byte, len(e.components))
	for i, c := range e.components {
		regions[i] = e.source[c]
	}
	return regions
}

// Endpoint implements transfer.Engine.
func (e *engine) Endpoint() string {
	_, port, _ := net.SplitHostPort(e.inbound.listener.Addr().String())
	return net.JoinHostPort(e.options.Hostname, port)
}

// Ports implements transfer.Ported.
func (e *engine) Ports() []int { return []int{portOf(e.inbound.listener)} }

// Epoch implements transfer.Engine.
func (e *engine) Epoch() pd.Epoch { return e.inbound.identity.Epoch }

// Connect implements transfer.Engine.
func (e *engine) Connect(ctx context.Context, t transfer.Target) (transfer.Session, error) {
	op := fmt.Sprintf("connect to rank %d", t.Identity.Rank)
	if err := e.check(op); err != nil {
		return nil, err
	}
	if !e.frozen {
		return nil, pd.Errorf(pd.CodeInternal, op, "freeze the regions first")
	}
	if err := t.Identity.Check(); err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeRegistryMismatch, Node: t.Peer.Node, Err: err}
	}
	key := sessionKey{identity: t.Identity, endpoint: t.Endpoint}
	if s := e.sessions[key]; s != nil && s.alive() {
		return s, nil
	}
	e.forgetLost()
	if len(e.sessions) >= maxInbound {
		return nil, pd.Errorf(pd.CodeBusy, op, "%d sessions are open", len(e.sessions))
	}
	regions, extents, err := readRegions(t.Regions)
	if err != nil {
		return nil, &pd.Error{Op: op, Code: pd.CodeRegistryMismatch, Node: t.Peer.Node, Err: err}
	}
	conn, failed := dial(ctx, t.Endpoint, t.Identity)
	if failed != nil {
		failed.Op, failed.Node = op, t.Peer.Node
		return nil, failed
	}
	s := newSession(e, conn, t.Identity.Rank, regions, extents)
	e.sessions[key] = s
	s.start()
	return s, nil
}

// forgetLost ends what is left of lost sessions and forgets them.
func (e *engine) forgetLost() {
	for key, s := range e.sessions {
		if !s.alive() {
			s.conn.Close()
			<-s.done
			delete(e.sessions, key)
		}
	}
}

// readRegions opens the envelopes of a peer's registration.
func readRegions(list []pd.Region) (map[pd.ComponentID]uint32, transfer.Extents, error) {
	regions, extents := map[pd.ComponentID]uint32{}, transfer.Extents{}
	for _, r := range list {
		index, bytes, err := parseEnvelope(r.Envelope)
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("region %s: %w", r.Component, err)
		case bytes != r.Bytes:
			return nil, nil, fmt.Errorf("region %s: %d bytes, but its envelope says %d", r.Component, r.Bytes, bytes)
		}
		if _, twice := regions[r.Component]; twice {
			return nil, nil, fmt.Errorf("region %s is listed twice", r.Component)
		}
		regions[r.Component], extents[r.Component] = index, r.Bytes
	}
	return regions, extents, nil
}

// Fence implements transfer.Engine. After an error the engine takes no writes;
// Fence may be called again.
func (e *engine) Fence(ctx context.Context) error {
	op := fmt.Sprintf("fence epoch %d of rank %d", e.Epoch(), e.inbound.identity.Rank)
	if err := e.check(op); err != nil {
		return err
	}
	if !e.frozen {
		return pd.Errorf(pd.CodeInternal, op, "freeze the regions first")
	}
	if e.provider.fenceHangs(e.inbound.identity.Rank) {
		<-ctx.Done()
		return &pd.Error{Op: op, Code: pd.CodeDeadline, Text: "fault " + FenceHangs, Err: ctx.Err()}
	}
	// The new listener is opened while the old one still holds its port, so the
	// two differ.
	listener, err := listen(ctx, e.options)
	if err != nil {
		return &pd.Error{Op: op, Code: pd.CodeInternal, Text: "listen on " + e.options.Hostname, Err: err}
	}
	e.inbound.shut()
	e.endSessions()
	if err := e.inbound.silent(ctx); err != nil {
		listener.Close()
		return &pd.Error{Op: op, Code: pd.CodeDeadline, Text: "an inbound write has not ended", Err: err}
	}
	identity := e.inbound.identity
	identity.Epoch++
	e.inbound = newInbound(listener, identity, &e.provider.delayedWrites)
	e.inbound.serve(e.regions())
	return nil
}

// endSessions closes every session and waits until nothing reads source memory
// for them. What was unsettled is Uncertain.
func (e *engine) endSessions() {
	for _, s := range e.sessions {
		s.end()
	}
	for key, s := range e.sessions {
		<-s.done
		delete(e.sessions, key)
	}
}

// Close implements transfer.Engine. It is idempotent.
func (e *engine) Close() error {
	if e.closed {
		return nil
	}
	e.closed = true
	e.endSessions()
	if !e.frozen {
		return e.inbound.abandon()
	}
	e.inbound.shut()
	<-e.inbound.idle
	return nil
}
