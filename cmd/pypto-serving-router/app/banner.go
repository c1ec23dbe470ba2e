package app

import (
	"fmt"
	"io"
	"time"
)

// banner says what the router is about to do, for people.
func (s *setup) banner(w io.Writer, url string) {
	o := s.options
	fmt.Fprintf(w, "%s at %s\n", name, url)
	for _, r := range s.config.Replicas {
		fmt.Fprintf(w, "  replica %s: %s\n", r.Name, r.URL())
	}
	slots := map[int]int{}
	for _, slot := range s.config.Slots {
		slots[slot.Host]++
	}
	for i := range s.config.Hosts {
		h := &s.config.Hosts[i]
		where := "this machine"
		if !h.Local() {
			where = "over ssh to " + h.SSH
		}
		fmt.Fprintf(w, "  host %s (%s): devices %v, %d for a replica, %d slots\n", h.Name, where, h.Devices, h.DevicesPerReplica, slots[i])
	}
	fmt.Fprintf(w, "  pool: ceiling %d, %d launched at start\n", o.Ceiling, o.Initial)
	fmt.Fprintf(w, "  conversations: pinned for %v, slack %d, at most %d\n", o.SessionTTL.Round(time.Millisecond), o.AffinitySlack, o.MaxSessions)
	fmt.Fprintf(w, "  POST /v1/completions /v1/chat/completions, GET /v1/models /health /metrics, GET POST /replicas, DELETE /replicas/NAME, GET /replicas/NAME/log\n")
	for _, warning := range o.Warnings {
		fmt.Fprintf(w, "  warning: %s\n", warning)
	}
}
