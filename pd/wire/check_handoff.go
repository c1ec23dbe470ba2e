package wire

import (
	"fmt"
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Check implements Message. It computes both digests of the continuation, which
// for a long prompt takes tens of milliseconds.
func (m *Reserve) Check() error {
	c := check{message: m}
	c.fence(&m.Fence)
	c.digest("contract_digest", m.ContractDigest)
	c.digest("metadata_hash", m.MetadataHash)
	c.digest("prepared_digest", m.PreparedDigest)
	if m.RemainingMillis < 1 {
		c.refuse(pd.CodeDeadline, "the request's time was over when it was sent")
	}
	c.between("remaining_millis", m.RemainingMillis, 1, pd.MaxTimeout.Milliseconds())
	c.continuation(m)
	if c.err != nil {
		return c.err
	}
	hash, err := MetadataHash(&m.Continuation)
	if err == nil && hash != m.MetadataHash {
		c.refuse(pd.CodeInvalidDigest, "metadata_hash is not that of the continuation")
	}
	prepared, err2 := PreparedDigest(m.MetadataHash)
	if err2 == nil && prepared != m.PreparedDigest {
		c.refuse(pd.CodeInvalidDigest, "prepared_digest is not that of the metadata hash")
	}
	c.fail(err)
	c.fail(err2)
	return c.result()
}

func (c *check) continuation(m *Reserve) {
	k := &m.Continuation
	n := len(k.PromptTokens)
	switch {
	case n < 1 || n > pd.MaxPromptTokens:
		c.refuse(pd.CodeInvalidLength, "the prompt has %d tokens, want 1..%d", n, pd.MaxPromptTokens)
	case n != m.PromptTokenCount:
		c.refuse(pd.CodeInvalidLength, "prompt_token_count is %d, the prompt has %d tokens", m.PromptTokenCount, n)
	case k.MaxNewTokens < 1 || k.MaxNewTokens > pd.MaxModelTokens-n:
		c.refuse(pd.CodeInvalidLength, "max_new_tokens is %d, want 1..%d after a prompt of %d", k.MaxNewTokens, pd.MaxModelTokens-n, n)
	}
	if i := slices.IndexFunc(k.PromptTokens, func(t pd.Token) bool { return t < 0 }); i >= 0 {
		c.refuse(pd.CodeInvalidRequest, "prompt_tokens[%d] is %d", i, k.PromptTokens[i])
	}
	if k.EOS != nil {
		c.between("eos", int64(*k.EOS), 0, 1<<31-1)
	}
	c.decimal("temperature", k.Temperature)
	c.decimal("top_p", k.TopP)
	c.length("stop", len(k.Stop), 0, pd.MaxStopStrings)
	for i, s := range k.Stop {
		c.text(fmt.Sprintf("stop[%d]", i), s, 1, pd.MaxStopBytes)
	}
	c.text("output_parser", k.OutputParser, 0, pd.MaxIDBytes)
	c.text("constraint", k.Constraint, 0, pd.MaxConstraintBytes)
}

// Check implements Message.
func (m *Reserved) Check() error {
	c := check{message: m}
	c.id("reservation_id", string(m.Reservation))
	c.between("partition", int64(m.Partition), 0, pd.MaxRanks-1)
	c.between("prefix_hit_tokens", int64(m.HitTokens), 0, pd.MaxPromptTokens)
	c.between("bootstrap_slot", int64(m.BootstrapSlot), 0, pd.MaxCapacity-1)
	c.length("tables", len(m.Tables), 1, pd.MaxGroups)
	for g, runs := range m.Tables {
		c.id("a table's group", string(g))
		if _, err := pd.TableOf(runs, pd.MaxTablePages); err != nil {
			c.refuse(pd.CodeInvalidRequest, "tables.%s: %v", g, err)
		}
	}
	return c.result()
}

// Check implements Message. It computes the manifest's hash.
func (m *Chunk) Check() error {
	c := check{message: m}
	c.manifest(&m.Manifest)
	c.digest("manifest_hash", m.ManifestHash)
	if c.err != nil {
		return c.err
	}
	hash, err := ManifestHash(&m.Manifest)
	c.fail(err)
	if hash != m.ManifestHash {
		c.refuse(pd.CodeInvalidPlan, "manifest_hash is not that of the manifest")
	}
	return c.result()
}

func (c *check) manifest(m *pd.Manifest) {
	c.fence(&m.Fence)
	c.between("chunk", int64(m.Chunk), 0, pd.MaxPromptTokens)
	if m.Span.Start < 0 || m.Span.End <= m.Span.Start || m.Span.End > pd.MaxPromptTokens {
		c.refuse(pd.CodeInvalidPlan, "span %v, want a part of [0,%d)", m.Span, pd.MaxPromptTokens)
	}
	c.between("source_partition", int64(m.SourcePartition), 0, pd.MaxRanks-1)
	c.between("target_partition", int64(m.TargetPartition), 0, pd.MaxRanks-1)
	c.between("source_hit_tokens", int64(m.SourceHitTokens), 0, int64(max(m.Span.End, 0)))
	c.rankMap(m.RankMap)
	c.copies(m.Copies)
	c.units(m.Units)
	set := m.Bootstrap != nil || m.FirstToken != nil || m.MetadataHash != "" || m.PreparedDigest != ""
	whole := m.Bootstrap != nil && m.FirstToken != nil && m.MetadataHash != "" && m.PreparedDigest != ""
	switch {
	case !m.Final && set:
		c.refuse(pd.CodeInvalidPlan, "bootstrap, first_token, metadata_hash and prepared_digest belong to the final chunk only")
	case m.Final && !whole:
		c.refuse(pd.CodeInvalidPlan, "the final chunk needs bootstrap, first_token, metadata_hash and prepared_digest")
	case m.Final:
		c.between("bootstrap.source_slot", int64(m.Bootstrap.SourceSlot), 0, pd.MaxCapacity-1)
		c.between("bootstrap.target_slot", int64(m.Bootstrap.TargetSlot), 0, pd.MaxCapacity-1)
		c.between("first_token", int64(*m.FirstToken), 0, 1<<31-1)
		c.digest("metadata_hash", m.MetadataHash)
		c.digest("prepared_digest", m.PreparedDigest)
	}
}

// rankMap wants exactly one source for each target.
func (c *check) rankMap(pairs []pd.RankPair) {
	c.length("rank_map", len(pairs), 1, pd.MaxRanks)
	targets := make(map[pd.Rank]bool, min(len(pairs), pd.MaxRanks))
	c.each("rank_map", len(pairs), func(i int) {
		p := pairs[i]
		c.between("source", int64(p.Source), 0, pd.MaxRanks-1)
		c.between("target", int64(p.Target), 0, pd.MaxRanks-1)
		if targets[p.Target] {
			c.refuse(pd.CodeInvalidPlan, "target is %d, which another pair already feeds", p.Target)
		}
		targets[p.Target] = true
	})
}

// copies wants page ranges that exist in 31 bits. Whether they lie in the
// arenas is the planner's check.
func (c *check) copies(copies []pd.Copy) {
	c.length("copies", len(copies), 0, pd.MaxCopies)
	c.each("copies", len(copies), func(i int) {
		k := &copies[i]
		c.id("component", string(k.Component))
		c.between("count", int64(k.Count), 1, pd.MaxTablePages)
		c.between("source", int64(k.Source), 0, 1<<31-1-int64(k.Count))
		c.between("target", int64(k.Target), 0, 1<<31-1-int64(k.Count))
		c.between("valid_rows", int64(k.ValidRows), 0, pd.MaxPageRows)
	})
}

func (c *check) units(units []pd.Unit) {
	c.length("units", len(units), 1, pd.MaxUnits)
	type key struct {
		target    pd.Rank
		component pd.ComponentID
	}
	seen := make(map[key]bool, min(len(units), pd.MaxUnits))
	c.each("units", len(units), func(i int) {
		u := units[i]
		c.between("target", int64(u.Target), 0, pd.MaxRanks-1)
		c.id("component", string(u.Component))
		c.between("bytes", u.Bytes, 0, 1<<62)
		if k := (key{u.Target, u.Component}); seen[k] {
			c.refuse(pd.CodeInvalidPlan, "component is %s, which rank %d already has", u.Component, u.Target)
		} else {
			seen[k] = true
		}
	})
}

// Check implements Message.
func (m *ChunkAck) Check() error {
	c := check{message: m}
	c.between("chunk", int64(m.Chunk), 0, pd.MaxPromptTokens)
	return c.result()
}

// Check implements Message.
func (m *Results) Check() error {
	c := check{message: m}
	c.fence(&m.Fence)
	c.length("results", len(m.Results), 1, pd.MaxResults)
	c.results(m.Results)
	return c.result()
}

// Check implements Message.
func (m *Ack) Check() error { return nil }

// Check implements Message.
func (m *Commit) Check() error {
	c := check{message: m}
	c.fence(&m.Fence)
	c.digest("manifest_hash", m.ManifestHash)
	c.digest("metadata_hash", m.MetadataHash)
	c.between("first_token", int64(m.FirstToken), 0, 1<<31-1)
	c.results(m.Results)
	return c.result()
}

// Check implements Message.
func (m *Committed) Check() error {
	c := check{message: m}
	c.text("reservation_id", string(m.Reservation), 0, pd.MaxIDBytes)
	c.digest("manifest_hash", m.ManifestHash)
	return c.result()
}

// Check implements Message.
func (m *Abort) Check() error {
	c := check{message: m}
	c.fence(&m.Fence)
	c.id("from", m.From)
	c.text("reason", m.Reason, 0, maxText)
	c.results(m.Results)
	return c.result()
}

// Check implements Message.
func (m *StatusQuery) Check() error {
	c := check{message: m}
	c.fence(&m.Fence)
	return c.result()
}

// Check implements Message.
func (m *Status) Check() error {
	c := check{message: m}
	c.id("state", m.State)
	if m.Reservation != "" {
		c.id("reservation_id", string(m.Reservation))
	}
	if m.ManifestHash != "" {
		c.digest("manifest_hash", m.ManifestHash)
	}
	c.text("code", m.Code, 0, pd.MaxIDBytes)
	c.text("why", m.Why, 0, maxText)
	c.between("progress", int64(m.Progress), 0, pd.MaxPromptTokens)
	c.between("released_pages", int64(m.Released), 0, 1<<40)
	c.between("held_pages", int64(m.Held), 0, 1<<40)
	return c.result()
}

// Check implements Message.
func (m *SourceStopped) Check() error {
	c := check{message: m}
	c.peer("peer", m.Peer)
	if m.Fact == 0 {
		c.refuse(pd.CodeInvalidRequest, "stop_fact is empty")
	}
	return c.result()
}
