package control

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// Service is what a node does with control messages. Messages are well formed
// and checked by themselves. Methods are called concurrently, own their message
// and should return when ctx ends, which happens when the caller leaves: that
// ends the waiting for an answer and nothing else. A returned error becomes a
// wire.Failure with its code.
type Service interface {
	// Node describes this node.
	Node(ctx context.Context) (wire.Node, error)
	// Session answers a prefill node's hello. The server repeats the nonce.
	Session(ctx context.Context, m wire.Session) (wire.Session, error)
	Status(ctx context.Context, m wire.StatusQuery) (wire.Status, error)
	Abort(ctx context.Context, m wire.Abort) (wire.Status, error)
	Reserve(ctx context.Context, m wire.Reserve) (wire.Reserved, error)
	Chunk(ctx context.Context, m wire.Chunk) (wire.ChunkAck, error)
	Results(ctx context.Context, m wire.Results) (wire.Ack, error)
	Commit(ctx context.Context, m wire.Commit) (wire.Committed, error)
	SourceStopped(ctx context.Context, m wire.SourceStopped) (wire.Ack, error)
}

// ServerConfig says where to listen.
type ServerConfig struct {
	// Address is host:port; port 0 picks a free one.
	Address string
	// MaxConnections bounds open connections (1024): each peer has one per
	// handoff in a call, and routers have a few.
	MaxConnections int
	// Secret, if set, is what callers must prove to have; Self is then this life of
	// the node, for which alone their proofs are good.
	Secret *Secret
	Self   pd.BootID
	// Refused is told of every request that did not reach the Service, from the
	// connection's goroutine; it must not block. Nil tells nobody.
	Refused func(err error)
	// Log gets what is wrong with the server itself. Nil is silent.
	Log *slog.Logger
}

// Server listens on a control port.
type Server struct {
	edge    *edge.Server
	refused func(error)
	guard   *guard // nil without a secret
}

// Listen binds the address. Shutdown ends the server, served or not.
func Listen(config ServerConfig) (*Server, error) {
	s := &Server{refused: config.Refused, guard: newGuard(config.Secret, config.Self)}
	if s.refused == nil {
		s.refused = func(error) {}
	}
	var err error
	s.edge, err = edge.Listen(edge.ServerConfig{
		Address:        config.Address,
		MaxBody:        pd.MaxControlBytes,
		MaxConnections: cmp.Or(config.MaxConnections, defaultConnections),
		// A peer that speaks another protocol is told so after its first bytes;
		// one that says nothing is not kept for long.
		HeaderTimeout: headerTimeout,
		Refuse:        s.refuseUnread,
		Log:           config.Log,
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

const (
	defaultConnections = 1024
	headerTimeout      = 10 * time.Second
	contentType        = "application/json"
)

// Addr is the bound address.
func (s *Server) Addr() net.Addr { return s.edge.Addr() }

// Serve answers calls until Shutdown. It is called once.
func (s *Server) Serve(service Service) error {
	return s.edge.Serve(func(c *edge.Call) { s.answer(c, service) })
}

// Shutdown stops accepting and waits for running calls; when ctx ends first,
// their contexts end and their connections are closed.
func (s *Server) Shutdown(ctx context.Context) error { return s.edge.Shutdown(ctx) }

func (s *Server) answer(c *edge.Call, service Service) {
	// The call's context lives as long as the connection; the Service must not
	// hold on to it after its answer.
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	mac, err := s.guard.admit(c, c.Path() == wire.PathNode && c.Method() == "GET")
	if err == nil {
		err = wire.CheckPath(c.Path())
	}
	if err != nil {
		s.refuse(c, mac, err)
		return
	}
	want := "POST"
	if c.Path() == wire.PathNode {
		want = "GET"
	}
	if c.Method() != want {
		c.SetHeader("Allow", want)
		s.refuse(c, mac, pd.Errorf(pd.CodeMethodNotAllowed, "read method", "%s takes %s, not %.16q", c.Path(), want, c.Method()))
		return
	}
	switch c.Path() {
	case wire.PathNode:
		m, err := service.Node(ctx)
		s.reply(c, mac, &m, err)
	case wire.PathSession:
		call(ctx, s, c, mac, func(ctx context.Context, m wire.Session) (wire.Session, error) {
			nonce := m.Nonce
			answer, err := service.Session(ctx, m)
			answer.Nonce = nonce
			return answer, err
		})
	case wire.PathStatus:
		call(ctx, s, c, mac, service.Status)
	case wire.PathAbort:
		call(ctx, s, c, mac, service.Abort)
	case wire.PathReserve:
		call(ctx, s, c, mac, service.Reserve)
	case wire.PathChunk:
		call(ctx, s, c, mac, service.Chunk)
	case wire.PathResult:
		call(ctx, s, c, mac, service.Results)
	case wire.PathCommit:
		call(ctx, s, c, mac, service.Commit)
	case wire.PathSourceStopped:
		call(ctx, s, c, mac, service.SourceStopped)
	}
}

// call reads one message, hands it over and sends the answer.
func call[T, A any, M interface {
	*T
	wire.Message
}](ctx context.Context, s *Server, c *edge.Call, mac string, f func(context.Context, T) (A, error)) {
	m, err := wire.Decode[T, M](c.Body())
	if err != nil {
		s.refuse(c, mac, err)
		return
	}
	answer, err := f(ctx, m)
	s.reply(c, mac, &answer, err)
}

func (s *Server) refuse(c *edge.Call, mac string, err error) {
	s.refused(err)
	s.reply(c, mac, nil, err)
}

func (s *Server) reply(c *edge.Call, mac string, answer any, err error) {
	status := 200
	var body []byte
	if err == nil {
		body, err = wire.Encode(answer)
	}
	if err != nil {
		status, body = failure(err)
	}
	s.guard.sign(c, mac, status, body)
	c.Reply(status, contentType, body)
}

func failure(err error) (status int, body []byte) {
	status, f := wire.FailureOf(err)
	body, err = wire.Encode(&f)
	if err != nil {
		panic("a failure has no wire form: " + err.Error()) // its strings are clipped and valid UTF-8
	}
	return status, body
}

// refuseUnread words what the edge refuses before there is a call.
func (s *Server) refuseUnread(status int, message string) (string, []byte) {
	code := pd.CodeInternal
	switch status {
	case 400:
		code, message = pd.CodeMalformed, message+"; this is a control port, which speaks HTTP/1.1 under /pd/v2/"
	case 408:
		code = pd.CodeDeadline
	case 413, 431:
		code = pd.CodeBodyTooLarge
	case 503:
		code = pd.CodeBusy
	}
	err := pd.Errorf(code, "read request", "%s", message)
	s.refused(err)
	_, body := failure(err)
	return contentType, body
}
