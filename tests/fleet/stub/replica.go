package stub

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Config is what a replica says and how fast. It can be changed by POST
// /control.
type Config struct {
	// Name is served_by in every answer, Model what /v1/models says.
	Name, Model string
	// Tokens is how many pieces an answer has; 0 means 2. TokenDelay is the time
	// before each.
	Tokens     int
	TokenDelay time.Duration
}

// Replica is the HTTP side of a stub. Its methods may be called from any
// goroutine.
type Replica struct {
	id  string
	mux *http.ServeMux

	mu sync.Mutex
	// guarded by mu
	config   Config
	notReady bool
	record   Record
	hung     chan struct{} // nil unless it hangs; closed when it goes on
}

// Record is what a replica has seen, as GET /record answers it.
type Record struct {
	// Requests are the generations that have begun, in that order.
	Requests []Request `json:"requests"`
	// Running are under way now; Aborted have lost their client.
	Running int `json:"running"`
	Aborted int `json:"aborted"`
	Probes  int `json:"probes"`
}

// Request is one generation.
type Request struct {
	Path    string      `json:"path"`
	Query   string      `json:"query"`
	Session string      `json:"session"`
	Headers http.Header `json:"headers"`
	// Body is what was sent, byte for byte.
	Body []byte `json:"body"`
}

// New makes a replica that is ready.
func New(c Config) *Replica {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	r := &Replica{id: hex.EncodeToString(id[:]), mux: http.NewServeMux()}
	r.configure(c)
	for pattern, h := range map[string]http.HandlerFunc{
		"GET /health": r.health, "GET /v1/models": r.models, "GET /metrics": r.metrics, "GET /metrics/json": r.metricsJSON,
		"POST /v1/completions": r.generate, "POST /v1/chat/completions": r.generate,
		"POST /toggle": r.toggle, "POST /hang": r.hang, "POST /control": r.control, "GET /record": r.answerRecord,
	} {
		r.mux.HandleFunc(pattern, h)
	}
	return r
}

func (r *Replica) configure(c Config) {
	if c.Tokens == 0 {
		c.Tokens = 2
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.config = c
}

// ID is server_id: one life of the replica.
func (r *Replica) ID() string { return r.id }

// Record is what the replica has seen so far.
func (r *Replica) Record() Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.record
	out.Requests = slices.Clone(out.Requests)
	return out
}

// ServeHTTP implements http.Handler.
func (r *Replica) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	hung := r.hung
	r.mu.Unlock()
	if hung != nil {
		select {
		case <-hung:
		case <-q.Context().Done():
			return
		}
	}
	r.mux.ServeHTTP(w, q)
}

// SetReady says what /health answers from now on: 200, or 503.
func (r *Replica) SetReady(ready bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notReady = !ready
}

// Hang answers nothing until the function that it returns is called, which must
// be called.
func (r *Replica) Hang() (goOn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hung == nil {
		r.hung = make(chan struct{})
	}
	hung := r.hung
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.hung == hung {
			r.hung = nil
			close(hung)
		}
	}
}

func (r *Replica) settings() (Config, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.config, !r.notReady
}

func answer(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		panic(err) // values of this package
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b)
}

type object = map[string]any

func (r *Replica) health(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	r.record.Probes++
	r.mu.Unlock()
	if c, ready := r.settings(); ready {
		answer(w, http.StatusOK, object{"status": "ok", "served_by": c.Name})
	} else {
		answer(w, http.StatusServiceUnavailable, object{"status": "not_ready", "served_by": c.Name})
	}
}

func (r *Replica) models(w http.ResponseWriter, _ *http.Request) {
	c, _ := r.settings()
	answer(w, http.StatusOK, object{"object": "list", "served_by": c.Name, "data": []object{{"id": c.Model, "object": "model", "owned_by": "pypto"}}})
}

func (r *Replica) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	fmt.Fprintf(w, "# TYPE pypto:num_requests_running gauge\npypto:num_requests_running %d\n", r.Record().Running)
}

func (r *Replica) metricsJSON(w http.ResponseWriter, _ *http.Request) {
	c, _ := r.settings()
	answer(w, http.StatusOK, object{"server_id": r.id, "served_by": c.Name, "pypto:num_requests_running": r.Record().Running})
}

func (r *Replica) answerRecord(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, r.Record())
}

func (r *Replica) toggle(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	r.notReady = !r.notReady
	ready := !r.notReady
	r.mu.Unlock()
	answer(w, http.StatusOK, object{"ready": ready})
}

// hang answers this call and then no other one any more.
func (r *Replica) hang(w http.ResponseWriter, _ *http.Request) {
	r.Hang()
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusNoContent)
}

// control changes the configuration; what the body leaves out stays.
func (r *Replica) control(w http.ResponseWriter, q *http.Request) {
	c, _ := r.settings()
	if err := json.NewDecoder(q.Body).Decode(&c); err != nil {
		answer(w, http.StatusBadRequest, object{"object": "error", "message": err.Error()})
		return
	}
	r.configure(c)
	answer(w, http.StatusOK, c)
}

// begin notes a generation; the function that it returns notes its end.
func (r *Replica) begin(q Request) (Config, func(aborted bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record.Requests = append(r.record.Requests, q)
	r.record.Running++
	return r.config, func(aborted bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.record.Running--
		if aborted {
			r.record.Aborted++
		}
	}
}

// generate answers with as many pieces as are configured. A body that is no JSON
// object is 400, as the scheduler's refusals are.
func (r *Replica) generate(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return // the client is gone
	}
	c, end := r.begin(Request{Path: q.URL.Path, Query: q.URL.RawQuery, Session: q.Header.Get("X-Session-Id"), Headers: q.Header, Body: body})
	aborted := false
	defer func() { end(aborted) }()
	var asked struct {
		Stream bool   `json:"stream"`
		Model  string `json:"model"`
	}
	if err := json.Unmarshal(body, &asked); err != nil {
		answer(w, http.StatusBadRequest, object{"object": "error", "message": "the stub wants a JSON object", "served_by": c.Name})
		return
	}
	a := newShape(q.URL.Path, c)
	if asked.Stream {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	for i := range c.Tokens {
		pause.Reset(c.TokenDelay)
		select {
		case <-pause.C:
		case <-q.Context().Done():
			aborted = true
			return
		}
		if asked.Stream {
			event(w, a.piece(i))
		}
	}
	if !asked.Stream {
		answer(w, http.StatusOK, a.whole())
		return
	}
	event(w, a.usage())
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

func event(w http.ResponseWriter, body object) {
	b, err := json.Marshal(body)
	if err != nil {
		panic(err) // values of this package
	}
	fmt.Fprintf(w, "data: %s\n\n", b)
	w.(http.Flusher).Flush()
}
