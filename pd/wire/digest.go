package wire

import (
	"cmp"
	"slices"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
)

// ManifestHash digests a manifest. The order of copies, units and rank pairs
// does not matter; any other difference does. m is not changed.
func ManifestHash(m *pd.Manifest) (string, error) {
	sorted := *m
	sorted.RankMap = slices.Clone(m.RankMap)
	slices.SortFunc(sorted.RankMap, func(a, b pd.RankPair) int {
		return cmp.Or(cmp.Compare(a.Target, b.Target), cmp.Compare(a.Source, b.Source))
	})
	sorted.Units = slices.Clone(m.Units)
	slices.SortFunc(sorted.Units, func(a, b pd.Unit) int {
		return cmp.Or(cmp.Compare(a.Target, b.Target), strings.Compare(string(a.Component), string(b.Component)), cmp.Compare(a.Bytes, b.Bytes))
	})
	sorted.Copies = slices.Clone(m.Copies)
	slices.SortFunc(sorted.Copies, func(a, b pd.Copy) int {
		return cmp.Or(strings.Compare(string(a.Component), string(b.Component)), cmp.Compare(a.Target, b.Target),
			cmp.Compare(a.Source, b.Source), cmp.Compare(a.Count, b.Count), cmp.Compare(a.ValidRows, b.ValidRows))
	})
	return digest("manifest", &sorted)
}

// ContractDigest digests a data contract. The order of groups, components and
// layers is part of the contract.
func ContractDigest(c *pd.Contract) (string, error) { return digest("contract", c) }

// MetadataHash digests a continuation.
func MetadataHash(c *pd.Continuation) (string, error) { return digest("continuation", c) }

// PreparedDigest binds what decode reserves to what prefill later executes. The
// second part is the identity of a prefix match, which this version never
// sends, because decode computes the chain itself.
func PreparedDigest(metadataHash string) (string, error) {
	return digest("prepared request", []string{metadataHash, ""})
}

func digest(what string, v any) (string, error) {
	d, err := strictjson.Digest(v)
	if err != nil {
		return "", &pd.Error{Op: "digest " + what, Code: pd.CodeInternal, Err: err}
	}
	return d, nil
}
