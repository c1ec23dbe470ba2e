package relay

import (
	"iter"
	"slices"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// hopByHop are the header lines that belong to one connection, in lower case,
// with those that the edge makes anew.
var hopByHop = []string{
	"connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization",
	"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}

// EndToEnd copies the header lines that pass a hop: not those of a connection,
// not those that a Connection line names, and not those that drop names. Order,
// spelling and repetition are kept.
func EndToEnd(headers iter.Seq2[string, string], drop func(name string) bool) []edge.Field {
	var nominated []string
	for name, value := range headers {
		if strings.EqualFold(name, "Connection") {
			for option := range strings.SplitSeq(value, ",") {
				nominated = append(nominated, strings.ToLower(strings.TrimSpace(option)))
			}
		}
	}
	var out []edge.Field
	for name, value := range headers {
		lower := strings.ToLower(name)
		if slices.Contains(hopByHop, lower) || slices.Contains(nominated, lower) || drop != nil && drop(name) {
			continue
		}
		out = append(out, edge.Field{Name: name, Value: value})
	}
	return out
}

// HasPrefixFold says that a header name begins with prefix in any case.
func HasPrefixFold(name, prefix string) bool {
	return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}

// setHeaders puts an answer's end-to-end header lines on the client's answer.
// Date and Server stay those of the hop that made the answer.
func setHeaders(c *edge.Call, x *edge.Exchange, drop func(name string) bool) {
	for _, f := range EndToEnd(x.Headers(), drop) {
		c.AddHeader(f.Name, f.Value)
	}
}
