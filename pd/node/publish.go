package node

import (
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/mutant"
)

// receive notes which logical pages an acknowledged chunk brings: what decode
// publishes at commit are these, with every gap between them (Invariant
// PublishedBytesMatchHash).
func (d *decode) receive(moved map[pd.GroupName]pd.Span) {
	if d.received == nil {
		d.received = map[pd.GroupName][]pd.Span{}
	}
	for g, span := range moved {
		spans := d.received[g]
		switch last := len(spans) - 1; {
		case span.Len() == 0:
		case last >= 0 && spans[last].End == span.Start:
			spans[last].End = span.End
		default:
			d.received[g] = append(spans, span)
		}
	}
}

// known lists the pages that decode may publish at commit.
func (n *Node) known(d *decode) map[pd.GroupName][]pd.Span {
	if mutant.Off(mutant.PublishKnown) {
		for g := range d.received {
			group, _ := n.cfg.Contract.Group(g)
			d.received[g] = []pd.Span{{Start: 0, End: d.end / group.PageTokens}}
		}
	}
	return d.received
}
