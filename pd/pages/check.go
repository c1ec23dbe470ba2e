package pages

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Check implements lease.Allocator: it counts every reference anew, unless
// nothing has changed since the last time.
func (a *Allocator) Check() error {
	if a.checked {
		return nil
	}
	if err := a.check(); err != nil {
		return err
	}
	a.checked = true
	return nil
}

func (a *Allocator) check() error {
	want := make([]map[pd.GroupName][]int32, len(a.pools))
	wantSlots := make([][]int32, len(a.slots))
	for p := range a.pools {
		want[p] = map[pd.GroupName][]int32{}
		for g, pool := range a.pools[p] {
			want[p][g] = make([]int32, len(pool.refs))
		}
		wantSlots[p] = make([]int32, a.cfg.Slots)
	}
	count := func(p pd.Partition, t Tables, slot int) {
		for g, table := range t {
			for _, page := range table {
				want[p][g][page]++
			}
		}
		wantSlots[p][slot]++
	}
	for _, o := range a.owners {
		count(o.partition, o.tables, o.slot)
	}
	for _, p := range a.pins {
		count(p.partition, p.snapshot.Tables, p.snapshot.Slot)
	}
	for p := range a.pools {
		for _, g := range slices.Sorted(maps.Keys(a.pools[p])) {
			pool := a.pools[p][g]
			if !slices.Equal(pool.refs, want[p][g]) {
				return fmt.Errorf("invariant I-05: references of group %s in partition %d differ from tables and pins", g, p)
			}
			if err := pool.check(); err != nil {
				return fmt.Errorf("invariant I-05: group %s in partition %d: %w", g, p, err)
			}
		}
		if !slices.Equal(a.slots[p].refs, wantSlots[p]) {
			return fmt.Errorf("invariant I-05: slot references in partition %d differ from owners and pins", p)
		}
		for _, g := range slices.Sorted(maps.Keys(a.pools[p])) {
			pool := a.pools[p][g]
			if len(pool.cached) != len(pool.names) {
				return fmt.Errorf("invariant I-05: group %s in partition %d has %d names and %d named pages", g, p, len(pool.cached), len(pool.names))
			}
			for page, k := range pool.names {
				if pool.cached[k] != page {
					return fmt.Errorf("invariant I-05: page %d of group %s in partition %d has the name of page %d", page, g, p, pool.cached[k])
				}
			}
		}
		freeSlots := make([]bool, a.cfg.Slots)
		for slot, refs := range a.slots[p].refs {
			freeSlots[slot] = refs == 0
		}
		if err := a.slots[p].free.check(freeSlots); err != nil {
			return fmt.Errorf("invariant I-05: slots of partition %d: %w", p, err)
		}
	}
	return nil
}

// check compares both queues with references and names.
func (p *pool) check() error {
	free, idle := make([]bool, len(p.refs)), make([]bool, len(p.refs))
	for id := range p.names {
		idle[id] = p.refs[id] == 0
	}
	for id, refs := range p.refs {
		free[id] = refs == 0 && !idle[id]
	}
	if err := p.free.check(free); err != nil {
		return fmt.Errorf("free queue: %w", err)
	}
	if err := p.idle.check(idle); err != nil {
		return fmt.Errorf("cached queue: %w", err)
	}
	return nil
}
