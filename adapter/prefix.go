package adapter

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// prefixRoot is the first part of every chain; a change of it is a change of
// every key.
const prefixRoot = "pypto-serving-prefix-root/v1"

// PrefixHashes computes the hash chains of a prompt, one for each page size of
// the groups that can be shared. The chain is the same on every node with the
// same contract: root, then for each page the hash of its parent, the number of
// tokens and the token ids (pd-domain §4.5). The root names the model revision
// and the contract, so that a cache cannot outlive a change of either.
func PrefixHashes(c *pd.Contract, contractDigest string, tokens []pd.Token) pd.PrefixHashes {
	out := pd.PrefixHashes{}
	for _, g := range c.Groups {
		if g.Kind != pd.FinalOnly && out[g.PageTokens] == nil {
			out[g.PageTokens] = chainOf(c.ModelRevision, contractDigest, tokens, g.PageTokens)
		}
	}
	return out
}

func chainOf(revision, digest string, tokens []pd.Token, size int) []pd.PageHash {
	parent := pd.PageHash(sha256.Sum256([]byte(prefixRoot + "\n" + revision + "\n" + digest)))
	chain := make([]pd.PageHash, 0, len(tokens)/size)
	buf := make([]byte, 0, len(parent)+4+8*size)
	for ; len(tokens) >= size; tokens = tokens[size:] {
		buf = append(buf[:0], parent[:]...)
		buf = binary.BigEndian.AppendUint32(buf, uint32(size))
		for _, t := range tokens[:size] {
			buf = binary.BigEndian.AppendUint64(buf, uint64(int64(t)))
		}
		parent = sha256.Sum256(buf)
		chain = append(chain, parent)
	}
	return chain
}
