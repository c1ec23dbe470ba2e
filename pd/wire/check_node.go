package wire

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Check implements Message.
func (m *Node) Check() error {
	c := check{message: m}
	c.version(m.ProtocolVersion)
	c.peer("this node", pd.Peer{Node: m.Node, Boot: m.Boot})
	c.id("run_id", string(m.Run))
	c.address("http_address", m.HTTPAddress)
	c.address("control_address", m.ControlAddress)
	c.id("transfer_hostname", m.TransferHostname)
	c.text("reason", m.Reason, 0, maxText)
	c.id("served_model", m.ServedModel)
	c.between("max_model_tokens", int64(m.MaxModelTokens), 1, pd.MaxModelTokens)
	c.fail(m.Topology.Check())
	c.counts("ring_periods", m.RingPeriods)
	c.between("capacity.limit", int64(m.Capacity.Limit), 1, pd.MaxCapacity)
	for _, n := range []struct {
		what string
		v    int
	}{
		{"capacity.active", m.Capacity.Active},
		{"capacity.reservations", m.Capacity.Reservations},
		{"capacity.quarantined", m.Capacity.Quarantined},
	} {
		c.between(n.what, int64(n.v), 0, 1<<31-1)
	}
	c.contract(&m.Contract, m.ContractDigest)
	return c.result()
}

// Check implements Message.
func (m *Session) Check() error {
	c := check{message: m}
	c.version(m.ProtocolVersion)
	c.peer("peer", m.Peer)
	c.id("run_id", string(m.Run))
	c.fail(pd.CheckHexID("nonce", m.Nonce))
	c.contract(&m.Contract, m.ContractDigest)
	c.registry(&m.Registry)
	return c.result()
}

func (c *check) version(v int) {
	if v != pd.ProtocolVersion {
		c.refuse(pd.CodeVersionMismatch, "the peer speaks protocol version %d, this node speaks %d", v, pd.ProtocolVersion)
	}
}

// counts checks page counts by group.
func (c *check) counts(what string, m map[pd.GroupName]int) {
	c.length(what, len(m), 0, pd.MaxGroups)
	for g, n := range m {
		c.id("a group of "+what, string(g))
		c.between(fmt.Sprintf("%s.%s", what, g), int64(n), 1, pd.MaxArenaPages)
	}
}

// contract bounds a data contract so that no size computed from it overflows,
// and compares it with its digest. Whether it is the right one is a comparison
// of two nodes.
func (c *check) contract(k *pd.Contract, digest string) {
	c.version(k.ProtocolVersion)
	for _, f := range []struct{ what, s string }{
		{"adapter", k.Adapter},
		{"family", k.Family},
		{"variant", k.Variant},
		{"continuation", k.Continuation},
		{"granularity", k.Granularity},
		{"final_partial", k.FinalPartial},
		{"model_revision", k.ModelRevision},
		{"provider", k.Provider},
		{"mapping", k.Mapping},
		{"rolling_policy", k.RollingPolicy},
	} {
		c.id("contract."+f.what, f.s)
	}
	c.between("contract.adapter_version", int64(k.AdapterVersion), 1, 1<<31-1)
	c.between("contract.speculative_tokens", int64(k.SpeculativeTokens), 0, pd.MaxPageRows)
	c.between("contract.alignment_tokens", int64(k.AlignmentTokens), 1, pd.MaxPromptTokens)
	c.between("contract.byte_alignment", int64(k.ByteAlignment), 1, 1<<20)
	c.groups(k)
	c.components(k)
	c.id("contract.bootstrap.component", string(k.Bootstrap.Component))
	c.between("contract.bootstrap.rows", int64(k.Bootstrap.Rows), 1, pd.MaxPageRows)
	c.between("contract.bootstrap.row_elements", int64(k.Bootstrap.RowElements), 1, pd.MaxRowElements)
	c.between("contract.bootstrap.element_bytes", int64(k.Bootstrap.ElementBytes), 1, pd.MaxElementBytes)
	c.digest("contract_digest", digest)
	if c.err != nil {
		return
	}
	own, err := ContractDigest(k)
	c.fail(err)
	if own != digest {
		c.refuse(pd.CodeContractMismatch, "contract_digest is not that of the contract")
	}
}

func (c *check) groups(k *pd.Contract) {
	c.length("contract.groups", len(k.Groups), 1, pd.MaxGroups)
	seen := map[pd.GroupName]bool{}
	for i, g := range k.Groups {
		if c.err != nil {
			return
		}
		at := fmt.Sprintf("contract.groups[%d]", i)
		c.id(at+".name", string(g.Name))
		c.between(at+".page_tokens", int64(g.PageTokens), 1, pd.MaxPromptTokens)
		c.between(at+".window_tokens", int64(g.WindowTokens), 0, pd.MaxModelTokens)
		if (g.Kind == pd.Full) != (g.WindowTokens == 0) {
			c.refuse(pd.CodeInvalidRequest, "%s: a %v group has a window of %d tokens", at, g.Kind, g.WindowTokens)
		}
		if seen[g.Name] {
			c.refuse(pd.CodeInvalidRequest, "%s: the name %s occurs twice", at, g.Name)
		}
		seen[g.Name] = true
	}
}

func (c *check) components(k *pd.Contract) {
	c.length("contract.components", len(k.Components), 1, pd.MaxComponents)
	seen := map[pd.ComponentID]bool{k.Bootstrap.Component: true}
	for i := range k.Components {
		if c.err != nil {
			return
		}
		m := &k.Components[i]
		at := fmt.Sprintf("contract.components[%d]", i)
		c.id(at+".id", string(m.ID))
		c.text(at+".atomic", m.Atomic, 0, pd.MaxIDBytes)
		c.id(at+".dtype", m.DType)
		c.between(at+".element_bytes", int64(m.ElementBytes), 1, pd.MaxElementBytes)
		c.between(at+".rows_per_page", int64(m.RowsPerPage), 1, pd.MaxPageRows)
		c.between(at+".row_tokens", int64(m.RowTokens), 1, pd.MaxPromptTokens)
		c.between(at+".row_elements", int64(m.RowElements), 1, pd.MaxRowElements)
		c.length(at+".layers", len(m.Layers), 1, pd.MaxLayers)
		for j, l := range m.Layers {
			if l < 0 || l >= pd.MaxLayers || j > 0 && l <= m.Layers[j-1] {
				c.refuse(pd.CodeInvalidRequest, "%s.layers[%d] is %d; layers ascend below %d", at, j, l, pd.MaxLayers)
			}
		}
		if _, ok := k.Group(m.Group); !ok {
			c.refuse(pd.CodeInvalidRequest, "%s: there is no group %.64q", at, string(m.Group))
		}
		if seen[m.ID] {
			c.refuse(pd.CodeInvalidRequest, "%s: the id %s occurs twice", at, m.ID)
		}
		seen[m.ID] = true
	}
}

// registry bounds a peer's registration; its sizes are compared with the
// contract by the node.
func (c *check) registry(r *pd.Registry) {
	c.fail(r.Topology.Check())
	c.counts("registry.pages_per_layer", r.PagesPerLayer)
	c.counts("registry.ring_periods", r.RingPeriods)
	c.between("registry.bootstrap_slots", int64(r.BootstrapSlots), 1, pd.MaxCapacity)
	c.id("registry.build", r.Build)
	if len(r.Ranks) != r.Topology.Ranks {
		c.refuse(pd.CodeRegistryMismatch, "registry.ranks has %d elements for %d ranks", len(r.Ranks), r.Topology.Ranks)
	}
	for i := range r.Ranks {
		if c.err != nil {
			return
		}
		c.rank(i, &r.Ranks[i])
	}
}

func (c *check) rank(i int, r *pd.RankRegistration) {
	at := fmt.Sprintf("registry.ranks[%d]", i)
	if int(r.Rank) != i {
		c.refuse(pd.CodeRegistryMismatch, "%s is rank %d; ranks stand in order", at, r.Rank)
	}
	if r.Epoch < 1 {
		c.refuse(pd.CodeRegistryMismatch, "%s has epoch 0", at)
	}
	c.text(at+".endpoint", r.Endpoint, 1, pd.MaxEnvelopeBytes)
	c.length(at+".regions", len(r.Regions), 1, pd.MaxComponents+1)
	for j, region := range r.Regions {
		what := fmt.Sprintf("%s.regions[%d]", at, j)
		c.id(what+".component", string(region.Component))
		c.between(what+".bytes", region.Bytes, 1, 1<<62)
		c.text(what+".envelope", region.Envelope, 1, pd.MaxEnvelopeBytes)
	}
}
