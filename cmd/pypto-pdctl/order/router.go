package order

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// health is what a router's /health says of its nodes.
type health struct {
	Status string `json:"status"`
	Reason string `json:"reason"`
	Pairs  int    `json:"pairs"`
	Active int    `json:"active"`
	Nodes  []struct {
		Role        string    `json:"role"`
		Node        pd.NodeID `json:"node_id"`
		State       string    `json:"state"`
		Active      int       `json:"active"`
		Unconfirmed int       `json:"unconfirmed"`
		Capacity    int       `json:"capacity"`
		Reason      string    `json:"reason"`
	} `json:"nodes"`
}

// aborts are the last receipts of a router's /metrics/json.
type aborts struct {
	Recent []struct {
		Request  pd.RequestID  `json:"request_id"`
		Role     string        `json:"role"`
		Node     pd.NodeID     `json:"node_id"`
		Reason   string        `json:"reason"`
		State    string        `json:"state"`
		Fact     string        `json:"stop_fact"`
		Released int           `json:"released_pages"`
		Held     int           `json:"held_pages"`
		Why      string        `json:"why"`
		Asked    int           `json:"asked"`
		Took     time.Duration `json:"took_ns"`
	} `json:"recent_aborts"`
}

// routerStatus prints the slots that a router counts on each node, with those
// whose node has not confirmed the end, and what nodes have confirmed last.
func routerStatus(ctx context.Context, router string, stdout io.Writer) error {
	if !strings.Contains(router, "://") {
		router = "http://" + router
	}
	var h health
	if err := get(ctx, router+"/health", &h); err != nil {
		return err
	}
	var a aborts
	if err := get(ctx, router+"/metrics/json", &a); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "router %s: %s, %d pairs, %d requests%s\n", router, h.Status, h.Pairs, h.Active, clause(h.Reason))
	for _, n := range h.Nodes {
		fmt.Fprintf(stdout, "  %-8s %-28s %-18s %3d/%-2d slots, %d unconfirmed%s\n", n.Role, n.Node, n.State, n.Active, n.Capacity, n.Unconfirmed, clause(n.Reason))
	}
	for _, r := range a.Recent {
		fmt.Fprintf(stdout, "  ended %s on %s node %s (%s): %s, %d pages released, %d held%s%s; asked %d times in %v\n",
			r.Request, r.Role, r.Node, r.Reason, r.State, r.Released, r.Held, fact(r.Fact), clause(r.Why), r.Asked, r.Took.Round(time.Millisecond))
	}
	return nil
}

func clause(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

func fact(s string) string {
	if s == "" {
		return ""
	}
	return ", prefill's writes: " + s
}

// get reads a page of a router; one that says 503 of itself has an answer, too.
func get(ctx context.Context, url string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("router %q: %w", url, err)
	}
	q.Close = true
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return fmt.Errorf("the router does not answer: %w", err)
	}
	defer r.Body.Close()
	if r.StatusCode != 200 && r.StatusCode != 503 {
		return fmt.Errorf("%s answered %s; is it a PD router?", url, r.Status)
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, pd.MaxControlBytes)).Decode(v); err != nil {
		return fmt.Errorf("read %s: %w", url, err)
	}
	return nil
}
