package fleet

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/router/relay"
)

// requestHeader carries the id by which one request is found in logs.
const requestHeader = "X-Request-Id"

// maxWhole bounds an answer that is read before it is passed on, so that the
// client gets its length, or a proper error instead of its half. A longer one is
// passed on as it comes.
const maxWhole = 4 << 20

// errDeadline is why a generation is cut that outlasts --request-timeout.
var errDeadline = errors.New("the request timeout has passed")

// The reasons why a generation did not complete, as logs and metrics have them.
const (
	causeNoReplica   = "no_replica"
	causeUnreachable = "unreachable"
	causeInterrupted = "interrupted"
	causeMalformed   = "malformed_answer"
	causeDeadline    = "deadline"
	causeClientGone  = "client_gone"
	causeDraining    = "draining"
	causeStopping    = "stopping"
	causeLocal       = "router_out_of_resources"
	causeMethod      = "method"
)

// causes are all of them, which is what makes them a metric's label.
var causes = []string{
	causeNoReplica, causeUnreachable, causeInterrupted, causeMalformed, causeDeadline, causeClientGone, causeDraining, causeStopping,
	causeLocal, causeMethod,
}

// failure is how a generation ended that did not complete. Status and message are
// for a client that has no answer yet; status 0 has nobody to tell.
type failure struct {
	cause   string
	status  int
	message string
}

var (
	failedNoReplica  = &failure{causeNoReplica, 503, "no serving replica is currently routable"}
	failedDraining   = &failure{causeDraining, 503, "the router is shutting down and takes no new requests"}
	failedStopping   = &failure{causeStopping, 503, "the router is shutting down"}
	failedClientGone = &failure{causeClientGone, 0, ""}
)

// generation answers one call of a generation route. Whatever the answer is, it
// tells the conversation's id.
func (r *Router) generation(c *edge.Call) {
	res := r.stats.begin(c.Path())
	defer func() { r.finish(c, res) }()
	res.asked = len(c.Body())
	s := r.session(c)
	res.session, res.fresh = s.ID, s.Fresh
	c.SetHeader(SessionHeader, s.ID)
	if s.Refused != 0 {
		r.log.Warn("session id cannot be used and was replaced", "request", res.id, "length", s.Refused)
	}
	if c.Method() != "POST" {
		res.failed = &failure{cause: causeMethod}
		r.only(c, nil, "POST")
		return
	}
	if f := r.forward(c, res); f != nil {
		res.failed = f
		if f.status != 0 && !c.Answered() {
			reply(c, f.status, errorBody{Message: f.message})
		}
	}
}

// Refusing puts the conversation's id on what the edge refuses by itself, for
// edge.ServerConfig.Refusing. The body was not read, so that only a header can have
// it.
func (r *Router) Refusing(c *edge.Call, status int) {
	if path := c.Path(); path == pathCompletions || path == pathChat {
		s := r.session(c)
		c.SetHeader(SessionHeader, s.ID)
		r.log.Info("request refused", "route", routeOf(path), "status", status)
	}
}

func (r *Router) session(c *edge.Call) Session {
	q := SessionRequest{Body: c.Body()}
	for name, value := range c.Headers() {
		switch {
		case strings.EqualFold(name, SessionHeader):
			q.Headers = append(q.Headers, value)
		case r.options.Options.Keys.Cookie != "" && strings.EqualFold(name, "Cookie"):
			q.Cookies = append(q.Cookies, value)
		}
	}
	return SessionOf(q, r.options.Options.Keys, NewSessionID)
}

// forward gives the generation to a replica and relays its answer.
func (r *Router) forward(c *edge.Call, res *result) *failure {
	if r.draining.Load() {
		return failedDraining
	}
	ctx, cancel := context.WithTimeoutCause(c.Context(), r.options.Options.RequestTimeout, errDeadline)
	defer cancel()
	header := r.requestHeader(c, res)
	var before *failure
	for {
		// A pipelined request of a client that has left still arrives here.
		if ctx.Err() != nil {
			return r.ended(ctx, "")
		}
		again, f := r.try(ctx, c, &header, res)
		switch {
		case !again && f == failedNoReplica && before != nil:
			// What is known of the first one says more.
			return before
		case !again:
			return f
		}
		before = f
	}
}

// requestHeader is what goes to the replica: everything that passes a hop, and
// the ids that the router goes by.
func (r *Router) requestHeader(c *edge.Call, res *result) []edge.Field {
	named := false
	header := relay.EndToEnd(c.Headers(), func(name string) bool {
		named = named || strings.EqualFold(name, requestHeader)
		return strings.EqualFold(name, SessionHeader)
	})
	header = append(header, edge.Field{Name: SessionHeader, Value: res.session})
	if !named {
		header = append(header, edge.Field{Name: requestHeader, Value: res.id})
	}
	return header
}

// try gives the generation to one replica. again says that nothing of it was sent
// and that another one may be tried. What was sent is let go of: a stream may be
// long.
func (r *Router) try(ctx context.Context, c *edge.Call, header *[]edge.Field, res *result) (again bool, f *failure) {
	m, miss, err := r.pool.Choose(res.session)
	if err != nil {
		return false, failedNoReplica
	}
	res.replica = m.Name
	res.tries++
	// The count is given back whatever happens, a panic included.
	defer r.pool.Done(res.session, m)
	defer func() {
		if !again {
			r.pool.Sent(m, miss)
		}
	}()
	x, err := r.legs.Send(ctx, edge.Request{
		Method: "POST", Address: m.Address, Trust: m.Trust, Target: c.Target(), Header: *header, Body: c.Body(),
	})
	if err == nil {
		*header = nil
		c.Forget()
		defer x.Close()
		err = x.Await()
	}
	switch {
	case err == nil && x.Status() >= 200:
		return false, r.relay(ctx, c, x, m, res)
	case err == nil:
		err = fmt.Errorf("it answered %d, which nobody asked for", x.Status())
	case ctx.Err() != nil:
		return false, r.interrupted(ctx, m)
	}
	r.log.Warn("replica cannot be reached", "request", res.id, "replica", m.Name, "error", err)
	if edge.LocalFault(err) {
		return false, &failure{causeLocal, 503, "the router is out of connections"}
	}
	f = &failure{causeUnreachable, 502, fmt.Sprintf("replica %s is unreachable", m.Name)}
	switch {
	case edge.DialFailed(err):
		r.pool.Unreachable(m)
		return res.tries <= r.options.Options.ConnectRetries, f
	case errors.Is(err, edge.ErrEarlyEnd):
		r.pool.Unreachable(m)
	default:
		// It lives, and what it said is no HTTP.
		f.cause, f.message = causeMalformed, fmt.Sprintf("replica %s gave an answer that cannot be read", m.Name)
		r.pool.Suspect(m)
	}
	return false, f
}

// ended words the end of a call's time.
func (r *Router) ended(ctx context.Context, replica string) *failure {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errDeadline):
		return &failure{causeDeadline, 504, fmt.Sprintf("replica %s did not answer within %v", replica, r.options.Options.RequestTimeout)}
	case errors.Is(cause, edge.ErrStopping):
		return failedStopping
	}
	return failedClientGone
}

// interrupted is ended for a request that a replica has. A time that has passed is
// no proof of its death.
func (r *Router) interrupted(ctx context.Context, m *Member) *failure {
	f := r.ended(ctx, m.Name)
	if f.cause == causeDeadline {
		r.pool.Suspect(m)
	}
	return f
}

// relay passes an answer on: bytes and header lines as they are, framed anew.
func (r *Router) relay(ctx context.Context, c *edge.Call, x *edge.Exchange, m *Member, res *result) *failure {
	var err error
	if n := x.Length(); n >= 0 && n <= maxWhole && !relay.IsEventStream(x) {
		err = whole(c, x, res)
	} else {
		err = stream(c, x, res)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, edge.ErrClientGone):
		return failedClientGone
	case ctx.Err() != nil:
		return r.interrupted(ctx, m)
	}
	r.log.Warn("answer broke off", "request", res.id, "replica", m.Name, "error", err)
	r.pool.Suspect(m)
	return &failure{causeInterrupted, 502, fmt.Sprintf("the answer of replica %s broke off before its end", m.Name)}
}

// answerHeader puts the answer's end-to-end header lines on the client's.
func answerHeader(c *edge.Call, x *edge.Exchange, res *result) {
	named := false
	for _, f := range relay.EndToEnd(x.Headers(), func(name string) bool { return strings.EqualFold(name, SessionHeader) }) {
		named = named || strings.EqualFold(f.Name, requestHeader)
		c.AddHeader(f.Name, f.Value)
	}
	if !named {
		c.AddHeader(requestHeader, res.id)
	}
}

// whole passes on an answer of known length, which is read to its end first.
func whole(c *edge.Call, x *edge.Exchange, res *result) error {
	body, err := x.ReadAll(maxWhole)
	if err != nil {
		return err
	}
	res.took(&res.first)
	answerHeader(c, x, res)
	c.Reply(x.Status(), x.Header("Content-Type"), body)
	if c.Sent() < int64(len(body)) && c.Context().Err() != nil {
		return edge.ErrClientGone
	}
	return nil
}

// stream passes an answer on as it comes. Its end is the answer's: one that breaks
// upstream breaks for the client.
func stream(c *edge.Call, x *edge.Exchange, res *result) error {
	answerHeader(c, x, res)
	kind, length := x.Header("Content-Type"), x.Length()
	x.Forget()
	pass := func(w *edge.StreamWriter) error {
		_, err := x.CopyTo(w, func() { res.took(&res.first) })
		return err
	}
	if length >= 0 {
		return c.StreamSized(x.Status(), kind, length, pass)
	}
	return c.Stream(x.Status(), kind, pass)
}

// newRequestID makes an id of 64 random bits.
func newRequestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
