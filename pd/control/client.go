package control

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// Target is the node that is called. Its address comes from pd.json.
type Target struct {
	Node    pd.NodeID
	Address string
}

// ClientConfig bounds a client. Zero fields take the defaults.
type ClientConfig struct {
	// DialTimeout bounds making a connection (5 s); a call's context may be
	// shorter.
	DialTimeout time.Duration
	// Signer proves that calls come from the deployment and demands the same of
	// answers. Nil does neither.
	Signer *Signer
}

// Client calls control servers over a pool of its own, so that no call waits
// behind a stream or a probe. Its methods are safe for concurrent use.
//
// A call takes as long as its context allows. Every message may be repeated
// without harm (docs/protocol.md), so a call whose pooled connection turned out
// to be closed is sent once more on a fresh one. Errors are *pd.Error with the
// target's node id and never its address:
//
//	CodePeerUnreachable  no connection, or it ended before the answer
//	CodeDeadline         the context's deadline passed
//	CodeAborted          the context was cancelled
//	CodeMalformed        the answer is not of this protocol
//	CodeVersionMismatch  the answer is of another version
//	CodeIdentity         another node answered
//	any other            the peer refused; see wire.Failure
type Client struct {
	pooled *edge.Client
	fresh  *edge.Client
	signer *Signer
}

// NewClient makes a client; Close releases its idle connections.
func NewClient(config ClientConfig) *Client {
	c := edge.ClientConfig{DialTimeout: config.DialTimeout, MaxResponse: pd.MaxControlBytes, ReusePOST: true}
	alone := c
	alone.MaxIdle = -1
	return &Client{pooled: edge.NewClient(c), fresh: edge.NewClient(alone), signer: config.Signer}
}

// Close closes idle connections. Running calls go on.
func (c *Client) Close() {
	c.pooled.Close()
	c.fresh.Close()
}

// Node asks for the target's descriptor.
func (c *Client) Node(ctx context.Context, t Target) (wire.Node, error) {
	m, err := ask[wire.Node](ctx, c, t, "ask node", wire.PathNode, nil)
	if err == nil && m.Node != t.Node {
		err = otherNode("ask node", t, m.Node)
	}
	return m, err
}

// Session says hello with a fresh nonce and returns the target's half.
func (c *Client) Session(ctx context.Context, t Target, m wire.Session) (wire.Session, error) {
	const op = "open session"
	var nonce [16]byte
	rand.Read(nonce[:]) // never returns an error
	m.Nonce = hex.EncodeToString(nonce[:])
	answer, err := ask[wire.Session](ctx, c, t, op, wire.PathSession, &m)
	switch {
	case err != nil:
	case answer.Peer.Node != t.Node:
		err = otherNode(op, t, answer.Peer.Node)
	case answer.Nonce != m.Nonce:
		err = &pd.Error{Op: op, Code: pd.CodeIdentity, Node: t.Node, Text: "the answer repeats another nonce"}
	}
	return answer, err
}

// Status asks how a handoff stands.
func (c *Client) Status(ctx context.Context, t Target, m wire.StatusQuery) (wire.Status, error) {
	return ask[wire.Status](ctx, c, t, "ask status", wire.PathStatus, &m)
}

// Abort asks to end a handoff.
func (c *Client) Abort(ctx context.Context, t Target, m wire.Abort) (wire.Status, error) {
	return ask[wire.Status](ctx, c, t, "abort", wire.PathAbort, &m)
}

// Reserve asks decode for a lease.
func (c *Client) Reserve(ctx context.Context, t Target, m wire.Reserve) (wire.Reserved, error) {
	return ask[wire.Reserved](ctx, c, t, "reserve", wire.PathReserve, &m)
}

// Chunk offers a chunk; its ack is the authority to write it.
func (c *Client) Chunk(ctx context.Context, t Target, m wire.Chunk) (wire.ChunkAck, error) {
	answer, err := ask[wire.ChunkAck](ctx, c, t, "offer chunk", wire.PathChunk, &m)
	if err == nil && answer.Chunk != m.Manifest.Chunk {
		err = &pd.Error{Op: "offer chunk", Code: pd.CodeMalformed, Node: t.Node, Text: fmt.Sprintf("the answer acknowledges chunk %d, want %d", answer.Chunk, m.Manifest.Chunk)}
	}
	return answer, err
}

// Results states settled units.
func (c *Client) Results(ctx context.Context, t Target, m wire.Results) (wire.Ack, error) {
	return ask[wire.Ack](ctx, c, t, "state results", wire.PathResult, &m)
}

// Commit ends the transfer.
func (c *Client) Commit(ctx context.Context, t Target, m wire.Commit) (wire.Committed, error) {
	return ask[wire.Committed](ctx, c, t, "commit", wire.PathCommit, &m)
}

// SourceStopped states that this boot writes no more.
func (c *Client) SourceStopped(ctx context.Context, t Target, m wire.SourceStopped) (wire.Ack, error) {
	return ask[wire.Ack](ctx, c, t, "state stop", wire.PathSourceStopped, &m)
}

// ask sends one message, nil for none, and reads the answer.
func ask[A any, M interface {
	*A
	wire.Message
}](ctx context.Context, c *Client, t Target, op, path string, m wire.Message) (A, error) {
	var none A
	r := edge.Request{Method: "GET", Address: t.Address, Target: path, Header: []edge.Field{{Name: "Accept", Value: contentType}}}
	if m != nil {
		body, err := wire.Encode(m)
		if err != nil {
			return none, err
		}
		r.Method, r.Body = "POST", body
		r.Header = append(r.Header, edge.Field{Name: "Content-Type", Value: contentType})
	}
	answer, err := c.proven(ctx, t, r)
	if refused, ok := errors.AsType[*pd.Error](err); ok {
		return none, refused
	}
	if err != nil {
		return none, exchangeError(ctx, op, t, err)
	}
	if answer.Status != 200 {
		return none, refusal(op, t, answer)
	}
	a, err := wire.Decode[A, M](answer.Body)
	if err != nil {
		return none, &pd.Error{Op: op, Code: pd.CodeOf(err), Node: t.Node, Text: "read the answer", Err: err}
	}
	return a, nil
}

// proven sends a request with a proof and checks that of its answer. What a node
// refuses because it has another life by now, or because too many later calls
// overtook this one, is sent once more: the refusal is proven, so nothing has come
// of the first.
func (c *Client) proven(ctx context.Context, t Target, r edge.Request) (*edge.Response, error) {
	if c.signer == nil {
		return c.do(ctx, func() edge.Request { return r })
	}
	if r.Target == wire.PathNode {
		return c.hello(ctx, t, r)
	}
	for again := false; ; again = true {
		if again || !c.signer.knows(t.Address) {
			if err := c.greet(ctx, t); err != nil {
				return nil, err
			}
		}
		var mac string
		answer, err := c.do(ctx, func() (signed edge.Request) {
			signed, mac = c.signer.call(r)
			return signed
		})
		if err == nil {
			err = c.signer.verify(t, mac, answer)
		}
		if err != nil || answer.Status != 401 || again {
			return answer, err
		}
	}
}

// greet learns which life of a node answers at its address.
func (c *Client) greet(ctx context.Context, t Target) error {
	answer, err := c.hello(ctx, t, edge.Request{Method: "GET", Address: t.Address, Target: wire.PathNode})
	if err != nil {
		return err
	}
	if answer.Status != 200 {
		return refusal("ask node", t, answer)
	}
	m, err := wire.Decode[wire.Node](answer.Body)
	if err != nil {
		return &pd.Error{Op: "ask node", Code: pd.CodeOf(err), Node: t.Node, Text: "read the answer", Err: err}
	}
	if m.Node != t.Node {
		return otherNode("ask node", t, m.Node)
	}
	c.signer.learn(t.Address, m.Boot)
	return nil
}

func (c *Client) hello(ctx context.Context, t Target, r edge.Request) (*edge.Response, error) {
	var mac string
	answer, err := c.do(ctx, func() edge.Request {
		r, m := c.signer.hello(r)
		mac = m
		return r
	})
	if err != nil {
		return nil, err
	}
	return answer, c.signer.verify(t, mac, answer)
}

// do sends what make gives, which is asked again for the second try, so that no
// proof is used twice.
func (c *Client) do(ctx context.Context, request func() edge.Request) (*edge.Response, error) {
	answer, err := c.pooled.Do(ctx, request())
	if e, ok := errors.AsType[*edge.ExchangeError](err); ok && e.Reused && errors.Is(err, edge.ErrEarlyEnd) && ctx.Err() == nil {
		return c.fresh.Do(ctx, request())
	}
	return answer, err
}

func exchangeError(ctx context.Context, op string, t Target, err error) error {
	out := &pd.Error{Op: op, Code: pd.CodePeerUnreachable, Node: t.Node}
	phase := edge.PhaseDial
	if e, ok := errors.AsType[*edge.ExchangeError](err); ok {
		phase, err = e.Phase, e.Err // without the address
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		out.Code, out.Text = pd.CodeDeadline, "no answer in time"
		return out
	case ctx.Err() != nil:
		out.Code = pd.CodeAborted
	case errors.Is(err, edge.ErrTooLarge):
		out.Code = pd.CodeBodyTooLarge
	}
	out.Err = err
	if phase == edge.PhaseDial {
		out.Text = "no connection"
	}
	return out
}

// refusal reads the body of an answer that is not 200.
func refusal(op string, t Target, answer *edge.Response) error {
	f, err := wire.Decode[wire.Failure](answer.Body)
	if err != nil {
		return &pd.Error{Op: op, Code: pd.CodeMalformed, Node: t.Node, Text: fmt.Sprintf("HTTP status %d without a body of the control protocol; is this its control port?", answer.Status)}
	}
	return f.Err(op, t.Node)
}

func otherNode(op string, t Target, got pd.NodeID) error {
	return &pd.Error{Op: op, Code: pd.CodeIdentity, Node: t.Node, Text: fmt.Sprintf("node %q answers at its control address", string(got))}
}
