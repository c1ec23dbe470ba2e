package serve

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// Config is what one node serves.
type Config struct {
	// Role is the node's side of a pair, 0 without PD. Self and Run are its
	// identity and must be set with a role.
	Role pd.Role
	Self pd.Peer
	Run  pd.RunID

	Model     engine.Model
	Generator engine.Generator
	// ServedModel is the name that clients use.
	ServedModel string
	// DefaultMaxTokens is the output limit of a request without one; 0 means as
	// much as the model's limit leaves.
	DefaultMaxTokens int

	// Health says whether the node takes requests and gives the body of
	// /health. It must not block.
	Health func() (ok bool, body []byte)
	// Routes are further GET endpoints by exact path, such as /metrics.
	Routes map[string]edge.Handler
	// Done, if set, is told the end of every generation, on the call's
	// goroutine. It must not block.
	Done func(Result)
	Log  *slog.Logger
	// Now is the clock of answers and durations; time.Now if nil.
	Now func() time.Time
}

// Result is how one generation ended, for logs and metrics.
type Result struct {
	Kind    openai.Kind
	Request pd.RequestID
	Handoff pd.HandoffID
	Stream  bool
	// Status is the HTTP status; Code is 0 unless the generation failed, also
	// where the status had gone out as 200.
	Status int
	Code   pd.Code
	Finish pd.FinishReason
	Usage  engine.Usage
	// Started is the time of arrival; Admitted, First and Ended count from
	// there, 0 where that did not come to pass.
	Started  time.Time
	Admitted time.Duration
	First    time.Duration
	Ended    time.Duration
}

// Server answers the calls of one node. It holds no state of requests.
type Server struct {
	config  Config
	created int64
}

// New makes the HTTP side of a node.
func New(c Config) *Server {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{config: c, created: c.Now().Unix()}
}

// Refuse words what the edge refuses by itself; it goes into
// edge.ServerConfig.Refuse.
func Refuse(status int, message string) (contentType string, body []byte) {
	return openai.TypeJSON, openai.AppendError(nil, pd.Errorf(openai.CodeOfStatus(status), "read request", "%s", message))
}

// Handle answers one call; it is an edge.Handler.
func (s *Server) Handle(c *edge.Call) {
	path := c.Path()
	if kind, ok := openai.KindOf(path); ok {
		if s.method(c, "POST") {
			s.generate(c, kind)
		}
		return
	}
	handler, ok := s.config.Routes[path]
	switch {
	case ok:
	case path == "/health":
		handler = s.health
	case path == openai.PathModels:
		handler = s.models
	case strings.HasPrefix(path, openai.PathModels+"/"):
		handler = s.model
	default:
		replyError(c, pd.Errorf(pd.CodeNotFound, "route request", "there is no %s here", path))
		return
	}
	if s.method(c, "GET") {
		handler(c)
	}
}

// method refuses other methods; HEAD goes wherever GET goes.
func (s *Server) method(c *edge.Call, want string) bool {
	if m := c.Method(); m == want || (want == "GET" && m == "HEAD") {
		return true
	}
	c.SetHeader("Allow", want)
	replyError(c, pd.Errorf(pd.CodeMethodNotAllowed, "route request", "%s takes %s", c.Path(), want))
	return false
}

func (s *Server) health(c *edge.Call) {
	ok, body := s.config.Health()
	status := 503
	if ok {
		status = 200
	}
	c.Reply(status, openai.TypeJSON, body)
}

func (s *Server) listed() openai.Model {
	return openai.Model{ID: s.config.ServedModel, Created: s.created, MaxTokens: s.config.Model.MaxTokens()}
}

func (s *Server) models(c *edge.Call) {
	c.Reply(200, openai.TypeJSON, openai.AppendModels(nil, s.listed()))
}

func (s *Server) model(c *edge.Call) {
	name := strings.TrimPrefix(c.Path(), openai.PathModels+"/")
	if name != s.config.ServedModel {
		replyError(c, modelNotFound(name))
		return
	}
	c.Reply(200, openai.TypeJSON, openai.AppendModel(nil, s.listed()))
}

func modelNotFound(name string) error {
	e := pd.Errorf(pd.CodeModelNotFound, "read request", "the model %q is not served here", shorten(name))
	e.Param = "model"
	return e
}

// shorten bounds what an error repeats of a client's text.
func shorten(s string) string {
	const most = 100
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// replyError answers with an error body. Its text goes to the client, so it
// must come from here or from a *pd.Error.
func replyError(c *edge.Call, err error) {
	code := pd.CodeOf(err)
	if openai.RetryAfter(code) {
		c.SetHeader("Retry-After", "1")
	}
	c.Reply(openai.HTTPStatus(code), openai.TypeJSON, openai.AppendError(nil, err))
}

// classify gives every error of a generation a code and a text that may leave
// the node. A context that ended says more than what the generator made of it.
func classify(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, edge.ErrClientGone):
		return &pd.Error{Op: "generate", Code: pd.CodeClientGone, Err: cause}
	case errors.Is(cause, edge.ErrStopping):
		return pd.Errorf(pd.CodeAborted, "generate", "the node is stopping")
	}
	if _, ok := errors.AsType[*pd.Error](err); ok {
		return err
	}
	if _, ok := errors.AsType[pd.Code](err); ok {
		return err
	}
	return pd.Errorf(pd.CodeInternal, "generate", "the engine failed; the node's log says why")
}
