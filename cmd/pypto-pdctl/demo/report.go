package demo

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
)

// report says what one request made the nodes do, from their journals.
func report(ctx context.Context, p *plan, request string, stdout io.Writer) error {
	source, err := eventsOf(ctx, p, pd.Prefill, request, journal.HandoffCompleted)
	if err != nil {
		return err
	}
	target, err := eventsOf(ctx, p, pd.Decode, request, journal.HandoffCompleted)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "what happened to %s:\n", request)
	fmt.Fprintf(stdout, "  prefill %s -> decode %s, handoff %s\n", source[0].Node, target[0].Node, source[0].Handoff)
	printChunks(source, stdout)
	printRegions(source, stdout)
	printStages(source, target, stdout)
	return nil
}

// eventsOf finds the node that served a request and waits until its journal
// tells the end.
func eventsOf(ctx context.Context, p *plan, role pd.Role, request, last string) ([]journal.Event, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, fmt.Errorf("no %s node's journal tells the end of %s", role, request))
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		for _, e := range p.config.Entries(role) {
			events, err := requestEvents(p, e, request)
			if err != nil {
				return nil, err
			}
			if len(events) > 0 && slices.ContainsFunc(events, func(e journal.Event) bool { return e.Event == last }) {
				return events, nil
			}
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// requestEvents are a node's events of one request; those that know the handoff
// only are found through it.
func requestEvents(p *plan, e config.Entry, request string) ([]journal.Event, error) {
	file := journal.FilesOf(p.config.Observability.Root, p.config.Run(), journal.RoleOf(e.Role), string(e.NodeID)).Events
	all, err := journal.ReadFile(file)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(e journal.Event) bool { return e.Request == request })
	if i < 0 {
		return nil, nil
	}
	handoff := all[i].Handoff
	return slices.DeleteFunc(all, func(e journal.Event) bool { return e.Handoff != handoff }), nil
}

func find(events []journal.Event, name string, chunk int) (journal.Event, bool) {
	i := slices.IndexFunc(events, func(e journal.Event) bool {
		return e.Event == name && (chunk < 0 || e.Chunk != nil && *e.Chunk == chunk)
	})
	if i < 0 {
		return journal.Event{}, false
	}
	return events[i], true
}

// printChunks shows each chunk's compute and transfer, and how much of the
// transfer ran while the next chunk was computed.
func printChunks(source []journal.Event, stdout io.Writer) {
	fmt.Fprintf(stdout, "\n  chunk  tokens         bytes      computed in   moved in   while the next was computed\n")
	for i := 0; ; i++ {
		computed, ok := find(source, journal.Compute, i)
		if !ok {
			return
		}
		moved, _ := find(source, journal.Transfer, i)
		next, more := find(source, journal.Compute, i+1)
		overlap := "-"
		if more {
			overlap = ms(moved.Overlap(next))
		}
		fmt.Fprintf(stdout, "  %5d  %-13v %9d   %9s   %9s   %9s\n", i, *computed.Span, moved.Bytes, ms(computed.Duration()), ms(moved.Duration()), overlap)
	}
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

// printRegions adds up what moved per region.
func printRegions(source []journal.Event, stdout io.Writer) {
	total := map[pd.ComponentID]int64{}
	var order []pd.ComponentID
	ranks := 0
	var sum int64
	for _, e := range source {
		if e.Event != journal.ChunkSubmitted {
			continue
		}
		ranks = e.Ranks
		for region, bytes := range e.Regions {
			if _, seen := total[region]; !seen {
				order = append(order, region)
			}
			total[region] += bytes
			sum += bytes
		}
	}
	slices.Sort(order)
	var parts []string
	for _, region := range order {
		parts = append(parts, fmt.Sprintf("%s %d", region, total[region]))
	}
	fmt.Fprintf(stdout, "\n  %d bytes into %d decode ranks: %s\n", sum, ranks, strings.Join(parts, ", "))
}

// printStages shows when each stage was reached, from the request's arrival at
// each node.
func printStages(source, target []journal.Event, stdout io.Writer) {
	line := func(side string, events []journal.Event, stages ...string) {
		created, ok := find(events, journal.HandoffCreated, -1)
		if !ok {
			return
		}
		var parts []string
		for _, stage := range stages {
			if e, ok := find(events, stage, -1); ok {
				name := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(stage, "HANDOFF_"), "_", " "))
				parts = append(parts, fmt.Sprintf("%s +%s", name, ms(e.Time.Sub(created.Time))))
			}
		}
		fmt.Fprintf(stdout, "  %-8s %s\n", side, strings.Join(parts, ", "))
	}
	line("prefill", source, journal.HandoffReserved, journal.HandoffCommitted, journal.HandoffCompleted)
	line("decode", target, journal.HandoffReserved, journal.DecodeAdmitted, journal.HandoffCompleted)
}
