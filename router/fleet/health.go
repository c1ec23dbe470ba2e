package fleet

import (
	"context"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// healthBody is what /health answers.
type healthBody struct {
	Status string `json:"status"`
	// Ready counts the replicas that take requests.
	Ready    int             `json:"replicas_ready"`
	Total    int             `json:"replicas_total"`
	Failed   int             `json:"replicas_failed"`
	Sessions int             `json:"sessions"`
	Routed   int64           `json:"routed"`
	Hits     int64           `json:"affinity_hits"`
	Rejected int64           `json:"rejected"`
	Replicas []healthReplica `json:"replicas"`
	// Held: replacements wait, because the router suspects its own network.
	Held       bool        `json:"replacements_held,omitempty"`
	StateError string      `json:"state_file_error,omitempty"`
	Reload     *lastReload `json:"last_reload,omitempty"`
}

// The states of the router itself.
const (
	statusOK       = "ok"
	statusNone     = "no_replicas"
	statusDraining = "draining"
)

type healthReplica struct {
	Name        string `json:"name"`
	URL         string `json:"url"`
	Ready       bool   `json:"ready"`
	Phase       string `json:"phase"`
	Outstanding int    `json:"outstanding"`
	Routed      int64  `json:"routed"`
}

// routable says that new requests may go to a replica.
func (v ReplicaView) routable() bool { return v.Ready && !v.Draining }

// health is 200 while at least one replica takes requests and the router does.
func (r *Router) health(c *edge.Call) {
	v := r.pool.Snapshot()
	b := healthBody{
		Status: statusOK, Total: len(v.Replicas), Sessions: v.Sessions, Routed: v.Counts.Routed, Hits: v.Counts.Hits, Rejected: v.Counts.Rejected,
		Replicas: []healthReplica{}, Held: v.Held, StateError: v.StateError, Reload: r.reloads.shown(),
	}
	for _, m := range v.Replicas {
		if m.routable() {
			b.Ready++
		}
		if m.Phase == Failed.Phase() {
			b.Failed++
		}
		b.Replicas = append(b.Replicas, healthReplica{m.Name, m.URL, m.Ready, m.Phase, m.Outstanding, m.Routed})
	}
	status := 200
	switch {
	case r.draining.Load():
		status, b.Status = 503, statusDraining
	case b.Ready == 0:
		status, b.Status = 503, statusNone
	}
	reply(c, status, b)
}

// models relays the list of the first replica that gives one, in the order of the
// table. One that is draining is asked only if no other answers.
func (r *Router) models(c *edge.Call) {
	var order, last []ReplicaView
	for _, m := range r.pool.Snapshot().Replicas {
		switch {
		case m.routable():
			order = append(order, m)
		case m.Ready:
			last = append(last, m)
		}
	}
	for _, m := range append(order, last...) {
		if answer := r.list(c, m); answer != nil {
			c.Reply(200, answer.Get("Content-Type"), answer.Body)
			return
		}
		if c.Context().Err() != nil {
			return
		}
	}
	reply(c, 503, errorBody{Message: failedNoReplica.message})
}

func (r *Router) list(c *edge.Call, m ReplicaView) *edge.Response {
	ctx, cancel := context.WithTimeout(c.Context(), r.options.Options.ConnectTimeout)
	defer cancel()
	q := edge.Request{Method: "GET", Address: m.address, Trust: m.trust, Target: c.Target()}
	if key := c.Header("Authorization"); key != "" {
		q.Header = []edge.Field{{Name: "Authorization", Value: key}}
	}
	answer, err := r.lists.Do(ctx, q)
	switch {
	case err != nil:
		r.log.Warn("replica does not list its models", "replica", m.Name, "error", err)
		return nil
	case answer.Status != 200:
		r.log.Warn("replica does not list its models", "replica", m.Name, "status", answer.Status)
		return nil
	}
	return answer
}
