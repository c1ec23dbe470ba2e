package reference

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// key names a token prefix of one model revision.
type key [16]byte

// keys[i] names the first i tokens of a request.
type keys []key

func newKeys(revision string) keys {
	sum := sha256.Sum256([]byte("pypto-pd reference engine\n" + revision))
	return keys{key(sum[:16])}
}

func (k keys) extend(tokens []pd.Token) keys {
	for _, t := range tokens {
		var b [20]byte
		last := k[len(k)-1]
		copy(b[:], last[:])
		binary.LittleEndian.PutUint32(b[16:], uint32(t))
		sum := sha256.Sum256(b[:])
		k = append(k, key(sum[:16]))
	}
	return k
}

// fill writes the bytes of one row.
func fill(dst []byte, k key, component, layer int) {
	var g rand.PCG
	g.Seed(binary.LittleEndian.Uint64(k[:8])^uint64(component)<<32^uint64(layer), binary.LittleEndian.Uint64(k[8:]))
	for len(dst) >= 8 {
		binary.LittleEndian.PutUint64(dst, g.Uint64())
		dst = dst[8:]
	}
	if len(dst) > 0 {
		var tail [8]byte
		binary.LittleEndian.PutUint64(tail[:], g.Uint64())
		copy(dst, tail[:])
	}
}

// write computes every row that closes in span, on every rank of the partition.
func (s *store) write(p pd.Partition, tables adapter.Tables, k keys, span pd.Span) {
	for ci := range s.contract.Components {
		c := &s.contract.Components[ci]
		g, _ := s.contract.Group(c.Group)
		buf := make([]byte, c.RowBytes())
		for row := span.Start / c.RowTokens; row < span.End/c.RowTokens; row++ {
			page := tables[c.Group][adapter.Slot(g, s.layout.RingPeriods[c.Group], row/c.RowsPerPage)]
			for l, layer := range c.Layers {
				fill(buf, k[(row+1)*c.RowTokens], ci, layer)
				for _, r := range s.layout.Topology.RanksOf(p) {
					s.put(s.arenas[r][ci], s.place(c, l, page, row%c.RowsPerPage), buf)
				}
			}
		}
	}
}

// capture writes the hidden states of span that fall into the last window of a
// prompt. Rows beyond a short prompt stay zero.
func (s *store) capture(p pd.Partition, slot int, k keys, span pd.Span, prompt int) {
	b := s.contract.Bootstrap
	base := max(0, prompt-b.Rows)
	for pos := max(span.Start, base); pos < span.End; pos++ {
		buf := make([]byte, b.RowBytes())
		fill(buf, k[pos+1], len(s.contract.Components), 0)
		for _, r := range s.layout.Topology.RanksOf(p) {
			at := slot*b.SlotBytes() + (pos-base)*b.RowBytes()
			s.put(s.arenas[r][len(s.contract.Components)], at, buf)
		}
	}
}

// resume is what an engine does that goes on behind a cached prefix: it reads
// the window and the states before that point. Here they are compared with what
// they must be; a difference spoils everything that is computed from there on,
// as it would in a real model.
func (s *store) resume(p pd.Partition, tables adapter.Tables, k keys, n int) keys {
	for ci := range s.contract.Components {
		c := &s.contract.Components[ci]
		g, _ := s.contract.Group(c.Group)
		if g.Kind == pd.Full {
			continue // read by every later digest
		}
		want := make([]byte, c.RowBytes())
		for row := max(0, n-g.WindowTokens) / c.RowTokens; row < n/c.RowTokens; row++ {
			page := tables[c.Group][adapter.Slot(g, s.layout.RingPeriods[c.Group], row/c.RowsPerPage)]
			for l, layer := range c.Layers {
				fill(want, k[(row+1)*c.RowTokens], ci, layer)
				for _, r := range s.layout.Topology.RanksOf(p) {
					if got := s.get(s.arenas[r][ci], s.place(c, l, page, row%c.RowsPerPage), c.RowBytes()); !bytes.Equal(got, want) {
						sum := sha256.Sum256(append(k[n][:], got...))
						k[n] = key(sum[:16])
						return k
					}
				}
			}
		}
	}
	return k
}

// clearSlot makes a bootstrap slot ready on every rank of the partition: zeroed
// for this engine's own rows, poisoned for those of a peer.
func (s *store) clearSlot(p pd.Partition, slot int, receiving bool) {
	size := s.contract.Bootstrap.SlotBytes()
	fresh := make([]byte, size)
	if receiving {
		poison(fresh)
	}
	for _, r := range s.layout.Topology.RanksOf(p) {
		a := s.arenas[r][len(s.contract.Components)]
		if receiving && a.copier != nil {
			continue // the node's loop must not wait for a device
		}
		s.put(a, slot*size, fresh)
	}
}

// freed poisons a page that nobody holds any more. Memory behind a copier stays
// as it is: the node's loop must not wait for a device.
func (s *store) freed(p pd.Partition, group pd.GroupName, page pd.Page) {
	for ci := range s.contract.Components {
		c := &s.contract.Components[ci]
		if c.Group != group {
			continue
		}
		for l := range c.Layers {
			for _, r := range s.layout.Topology.RanksOf(p) {
				if a := s.arenas[r][ci]; a.copier == nil {
					poison(s.get(a, s.place(c, l, page, 0), c.PageBytes()))
				}
			}
		}
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// digest is what decode sees of a request with n tokens in its cache: the full
// history of the compressed groups and the windows of the others. Every replica
// is read; they must agree.
func (s *store) digest(p pd.Partition, tables adapter.Tables, n int) ([32]byte, error) {
	return s.agree(p, func(rank []arena, sums []byte) []byte {
		for ci := range s.contract.Components {
			c := &s.contract.Components[ci]
			g, _ := s.contract.Group(c.Group)
			first := 0
			if g.Kind != pd.Full {
				first = max(0, n-g.WindowTokens) / c.RowTokens
			}
			for l := range c.Layers {
				sum := uint32(0)
				for row := first; row < n/c.RowTokens; {
					in := row % c.RowsPerPage
					count := min(c.RowsPerPage-in, n/c.RowTokens-row)
					page := tables[c.Group][adapter.Slot(g, s.layout.RingPeriods[c.Group], row/c.RowsPerPage)]
					sum = crc32.Update(sum, castagnoli, s.get(rank[ci], s.place(c, l, page, in), count*c.RowBytes()))
					row += count
				}
				sums = binary.LittleEndian.AppendUint32(sums, sum)
			}
		}
		return sums
	})
}

// bootstrap is what the drafter sees at admission: the rows of the real tokens.
func (s *store) bootstrap(p pd.Partition, slot, prompt int) ([32]byte, error) {
	b := s.contract.Bootstrap
	return s.agree(p, func(rank []arena, sums []byte) []byte {
		rows := s.get(rank[len(s.contract.Components)], slot*b.SlotBytes(), min(prompt, b.Rows)*b.RowBytes())
		return binary.LittleEndian.AppendUint32(sums, crc32.Checksum(rows, castagnoli))
	})
}

func (s *store) agree(p pd.Partition, read func(rank []arena, sums []byte) []byte) ([32]byte, error) {
	var first []byte
	for _, r := range s.layout.Topology.RanksOf(p) {
		sums := read(s.arenas[r], nil)
		if first == nil {
			first = sums
		} else if string(first) != string(sums) {
			return [32]byte{}, pd.Errorf(pd.CodeIntegrity, "read", "rank %d and the first rank of partition %d hold different bytes", r, p)
		}
	}
	return sha256.Sum256(first), s.broken()
}

// chain carries every digest so far into every later token.
type chain [32]byte

// next absorbs what was read.
func (c chain) next(parts ...[]byte) chain {
	h := sha256.New()
	h.Write(c[:])
	for _, p := range parts {
		h.Write(p)
	}
	return chain(h.Sum(nil))
}

// token is the i-th token that this state of the chain yields.
func (c chain) token(i int) pd.Token {
	n := c.next([]byte{byte(i)})
	return choose(binary.LittleEndian.Uint64(n[:8]))
}

// accepted is how many tokens one verification yields: 1 to 8, the bonus token
// included.
func (c chain) accepted() int { return 1 + int(c[31]%8) }

// firstToken is what prefill samples from its own pages.
func firstToken(digest [32]byte) pd.Token { return chain{}.next(digest[:]).token(0) }

// begin is the chain of a request at admission: first token, cache, bootstrap.
func begin(first pd.Token, digest, bootstrap [32]byte) chain {
	return chain{}.next(binary.LittleEndian.AppendUint32(nil, uint32(first)), digest[:], bootstrap[:])
}
