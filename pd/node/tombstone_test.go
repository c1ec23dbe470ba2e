package node_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// Decode asks again and again for a fact that prefill does not know. However
// many handoffs prefill forgets meanwhile, this is not one of them: its "no
// record" would mean that nothing was ever submitted.
func TestUnknownFactIsNeverForgotten(t *testing.T) {
	c := newPair(t, nil)
	c.do([]string{"hold", "writes"})
	c.do([]string{"post", "d", "1"})
	c.do([]string{"post", "p", "1"})
	c.run()
	c.do([]string{"settle", "1", "0", "uncertain"})
	c.run()
	ask := func() wire.Status {
		var answer wire.Status
		c.deliver(c.p, wire.Abort{Fence: c.fence("1"), From: pd.Decode.String(), Reason: "what became of it?"}, func(a any, err error) {
			require.NoError(t, err)
			answer = a.(wire.Status)
		})
		c.run()
		return answer
	}
	require.Equal(t, pd.Unknown, ask().Fact)
	for i := range pd.MaxTombstones + 1 {
		c.deliver(c.p, wire.Abort{Fence: c.fence(fmt.Sprint(1000 + i)), From: "router", Reason: "client gone"}, func(any, error) {})
	}
	c.run()
	require.Equal(t, pd.Unknown, ask().Fact)
}
