package sim

import (
	"fmt"
	"time"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// host is one entry of pd.json: an address, device memory that outlives
// processes, and the process that runs there now, if any.
type host struct {
	// constant
	world  *World
	site   int
	name   string
	id     pd.NodeID
	role   pd.Role
	layout adapter.Layout
	cache  bool
	// unacknowledged: see Options.
	unacknowledged bool
	// memory[rank][component]: every boot has the same addresses.
	memory []map[pd.ComponentID][]byte

	proc     *process
	boots    int
	lastPort int
	// ports are those of the last boot.
	ports []int
	// lingering are owners of an earlier boot that still hold the boot lock.
	lingering *owners
}

func (w *World) newHost(role pd.Role, index, tp int, s settings) *host {
	h := &host{
		world: w, site: len(w.hosts), name: fmt.Sprintf("%s%d", map[pd.Role]string{pd.Prefill: "P", pd.Decode: "D"}[role], index),
		role: role, id: pd.NodeID(fmt.Sprintf("%s-%d", role, index)), cache: s.cachePrefill, lastPort: 15000,
	}
	size := adapter.Sizing{Topology: pd.Topology{Ranks: ranks, TP: tp}, PoolTokens: s.poolPrefill, StepTokens: s.chunkTokens, Sequences: s.sequences, Checkpoints: s.checkpoints}
	if role == pd.Decode {
		size.PoolTokens, size.StepTokens, h.cache = s.poolDecode, s.stepDecode, s.cacheDecode
	}
	h.layout = adapter.LayoutFor(&model.contract, size)
	for range ranks {
		h.memory = append(h.memory, regions(&model.contract, h.layout))
	}
	return h
}

// ranks is how many devices a node has.
const ranks = 4

// port takes a data-plane port that no engine of this host had, or with a
// broken rule that of the last boot.
func (h *host) port(rank int, reuse bool) int {
	if reuse && rank < len(h.ports) {
		return h.ports[rank]
	}
	h.lastPort++
	return h.lastPort
}

// start begins a new boot, once nothing of the old one holds its lock. A start
// waits for it for a while and then refuses; whoever started it tries again.
func (h *host) start(after time.Duration) {
	w := h.world
	w.after(after, func() {
		if h.proc != nil {
			return
		}
		if h.lingering != nil && w.opt.Broken != NoBootLock {
			w.note(h.name, "start refused", "", "owners of boot %s hold the lock", short(pd.HandoffID(h.lingering.proc.peer.Boot)))
			h.start(between(w.rand("restart"), time.Second, bootLockWait))
			return
		}
		h.boot()
	})
}

// bootLockWait is how long a start waits for owners of an earlier boot.
const bootLockWait = 10 * time.Second
