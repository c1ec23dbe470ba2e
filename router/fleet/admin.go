package fleet

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

const (
	// defaultLog and maxLog bound the part of a start-up log that is shown.
	defaultLog = 64 << 10
	maxLog     = 1 << 20
)

// errNotWaited is why a retirement goes on without the one who ordered it.
var errNotWaited = errors.New("the end is not waited for")

// adminToken is a digest of the token, nil where /replicas is open. Digests are of
// one length, so that comparing them tells nothing.
type adminToken struct {
	digest atomic.Pointer[[sha256.Size]byte]
}

// SetToken changes the admin token; "" opens /replicas to everyone.
func (r *Router) SetToken(token string) {
	if token == "" {
		r.token.digest.Store(nil)
		return
	}
	sum := sha256.Sum256([]byte(token))
	r.token.digest.Store(&sum)
}

// admits says that a call may use /replicas.
func (t *adminToken) admits(c *edge.Call) bool {
	want := t.digest.Load()
	if want == nil {
		return true
	}
	scheme, given, _ := strings.Cut(c.Header("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimLeft(given, " ")))
	return subtle.ConstantTimeCompare(sum[:], want[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// admin answers everything below /replicas. Who may not is told so before anything
// is looked up.
func (r *Router) admin(c *edge.Call) {
	if !r.token.admits(c) {
		r.unauthorized.Add(1)
		c.SetHeader("WWW-Authenticate", "Bearer")
		reply(c, 401, errorBody{Message: "admin token required"})
		return
	}
	query, err := url.ParseQuery(c.Query())
	if err != nil {
		reply(c, 400, errorBody{Message: "the query cannot be read"})
		return
	}
	rest := strings.TrimPrefix(strings.TrimPrefix(c.Path(), pathReplicas), "/")
	if c.Path() == pathReplicas {
		r.only(c, func(c *edge.Call) {
			if c.Method() == "POST" {
				r.launch(c, query)
			} else {
				r.replicas(c)
			}
		}, "GET", "POST")
		return
	}
	escaped, below, _ := strings.Cut(rest, "/")
	name, err := url.PathUnescape(escaped)
	switch {
	case err != nil || name == "" || below != "" && below != "log" || strings.HasSuffix(rest, "/"):
		reply(c, 404, errorBody{Message: "there is no such path here"})
	case below == "log":
		r.only(c, func(c *edge.Call) { r.tail(c, name, query) }, "GET")
	default:
		r.only(c, func(c *edge.Call) { r.remove(c, name, query) }, "DELETE")
	}
}

type capacityBody struct {
	Owned       int               `json:"owned"`
	Ceiling     int               `json:"ceiling"`
	FreeSlots   []string          `json:"free_slots"`
	Unconfirmed map[string]Reason `json:"unconfirmed"`
	Abandoned   []string          `json:"abandoned"`
}

func capacityOf(v *Snapshot) *capacityBody {
	return &capacityBody{v.Owned, v.Ceiling, v.FreeSlots, v.Unconfirmed, v.Abandoned}
}

func (r *Router) capacity() *capacityBody {
	v := r.pool.Snapshot()
	return capacityOf(&v)
}

type replicaBody struct {
	Name        string `json:"name"`
	URL         string `json:"url"`
	Ready       bool   `json:"ready"`
	Draining    bool   `json:"draining"`
	Owned       bool   `json:"owned"`
	Phase       string `json:"phase"`
	Outstanding int    `json:"outstanding"`
	Routed      int64  `json:"routed"`
}

type replicasBody struct {
	Replicas []replicaBody `json:"replicas"`
	Capacity *capacityBody `json:"capacity"`
}

func (r *Router) replicas(c *edge.Call) {
	v := r.pool.Snapshot()
	b := replicasBody{Replicas: []replicaBody{}, Capacity: capacityOf(&v)}
	for _, m := range v.Replicas {
		b.Replicas = append(b.Replicas, replicaBody{m.Name, m.URL, m.Ready, m.Draining, m.Owned, m.Phase, m.Outstanding, m.Routed})
	}
	reply(c, 200, b)
}

type launchedBody struct {
	Name    string `json:"name"`
	URL     string `json:"url"`
	Ready   bool   `json:"ready"`
	Phase   string `json:"phase"`
	Message string `json:"message"`
}

// launch answers when the launch command was accepted, which is long before the
// replica serves. Without ?slot= the next slot is taken.
func (r *Router) launch(c *edge.Call, query url.Values) {
	if r.draining.Load() {
		reply(c, 503, errorBody{Message: "the router is shutting down and launches nothing"})
		return
	}
	v, err := r.pool.Launch(c.Context(), query.Get("slot"))
	r.audit(c, "launch", v.Name, err)
	if err != nil {
		r.refuse(c, err)
		return
	}
	reply(c, 202, launchedBody{v.Name, v.URL, v.Ready, v.Phase, "the launch was accepted; the replica serves once its model is loaded"})
}

type removedBody struct {
	Name     string        `json:"name"`
	Stopped  bool          `json:"stopped"`
	Released bool          `json:"released,omitempty"`
	Message  string        `json:"message,omitempty"`
	Capacity *capacityBody `json:"capacity"`
}

// remove retires a replica, or tries again to stop what an unconfirmed slot may
// hold. With force=true the operator vouches that nothing is left in the slot;
// with wait=false the end is not waited for.
func (r *Router) remove(c *edge.Call, name string, query url.Values) {
	force, err1 := flag(query, "force", false)
	wait, err2 := flag(query, "wait", true)
	if err := errors.Join(err1, err2); err != nil {
		reply(c, 400, errorBody{Message: err.Error()})
		return
	}
	if force {
		err := r.pool.Release(name)
		r.audit(c, "release by the operator's word", name, err)
		if err != nil {
			r.refuse(c, err)
			return
		}
		reply(c, 200, removedBody{Name: name, Released: true, Capacity: r.capacity()})
		return
	}
	ctx := c.Context()
	if !wait {
		ended, cancel := context.WithCancelCause(ctx)
		cancel(errNotWaited)
		ctx = ended
	}
	err := r.pool.Retire(ctx, name)
	if !errors.Is(err, errNotWaited) {
		r.audit(c, "retire", name, err)
	}
	switch {
	case err == nil:
		reply(c, 200, removedBody{Name: name, Stopped: true, Capacity: r.capacity()})
	case errors.Is(err, errNotWaited):
		reply(c, 202, removedBody{Name: name, Message: "the replica is being retired", Capacity: r.capacity()})
	default:
		r.refuse(c, err)
	}
}

func flag(query url.Values, name string, otherwise bool) (bool, error) {
	if !query.Has(name) {
		return otherwise, nil
	}
	v, err := strconv.ParseBool(query.Get(name))
	if err != nil {
		return false, fmt.Errorf("%s must be true or false", name)
	}
	return v, nil
}

// tail shows the end of a slot's start-up log, which is on another machine and the
// only place where a failed load can be diagnosed.
func (r *Router) tail(c *edge.Call, name string, query url.Values) {
	limit := defaultLog
	if query.Has("bytes") {
		n, err := strconv.Atoi(query.Get("bytes"))
		if err != nil || n < 1 || n > maxLog {
			reply(c, 400, errorBody{Message: fmt.Sprintf("bytes must be in 1..%d", maxLog)})
			return
		}
		limit = n
	}
	text, err := r.pool.Log(c.Context(), name, limit)
	if err != nil {
		r.refuse(c, err)
		return
	}
	c.Reply(200, "text/plain; charset=utf-8", text)
}

// audit notes who ordered what. A name that does not exist is a stranger's text, which
// is not logged.
func (r *Router) audit(c *edge.Call, order, name string, err error) {
	attrs := []any{"order", order, "from", c.RemoteAddr().String()}
	switch {
	case err == nil:
		attrs = append(attrs, "replica", name)
	case pd.CodeOf(err) == pd.CodeNotFound:
		attrs = append(attrs, "refused", "there is no such replica")
	default:
		attrs = append(attrs, "replica", name, "refused", err)
	}
	r.log.Info("admin", attrs...)
}

// refuse answers for an order that was not carried out.
func (r *Router) refuse(c *edge.Call, err error) {
	if cause := context.Cause(c.Context()); cause != nil && errors.Is(err, cause) {
		if errors.Is(cause, edge.ErrStopping) {
			reply(c, 503, errorBody{Message: failedStopping.message})
		}
		return
	}
	body := errorBody{Message: err.Error()}
	if e, ok := errors.AsType[*pd.Error](err); ok && e.Error() == err.Error() {
		body.Message = e.Message()
	}
	launch, failed := errors.AsType[*LaunchError](err)
	status := 502
	switch code := pd.CodeOf(err); {
	case failed:
		body.Message = launch.Error()
	case errors.Is(err, ErrPoolFull):
		status, body.Capacity = 409, r.capacity()
		body.Message = fmt.Sprintf("the pool is full: %d of %d slots are in use", body.Capacity.Owned, body.Capacity.Ceiling)
	case code == pd.CodeConflict:
		status, body.Capacity = 409, r.capacity()
	case errors.Is(err, ErrStopUnconfirmed):
		status, body.Capacity = 500, r.capacity()
	case code == pd.CodeNotFound:
		status = 404
	case code == pd.CodeDraining:
		status = 503
	}
	reply(c, status, body)
}
