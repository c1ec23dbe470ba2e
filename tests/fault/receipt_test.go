package fault

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// receipts finds the router's log lines of what nodes said of the end of a
// handoff.
func receipts(c *cluster.Cluster, id string) []string {
	var out []string
	for line := range strings.Lines(c.Router.Stderr()) {
		if strings.Contains(line, `msg="abort receipt"`) && strings.Contains(line, "handoff="+id) {
			out = append(out, line)
		}
	}
	return out
}

// number is a number field of a log line.
func number(t *testing.T, line, name string) int {
	t.Helper()
	m := regexp.MustCompile(` ` + name + `=(\d+)`).FindStringSubmatch(line)
	require.NotNil(t, m, "no %s in %s", name, line)
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	return n
}

// wantReceipts waits for the receipts of both sides; prefill's comes first.
func wantReceipts(t *testing.T, c *cluster.Cluster, id string) (prefill, decode string) {
	t.Helper()
	cluster.Eventually(t, func() error {
		prefill, decode = "", ""
		for _, line := range receipts(c, id) {
			if strings.Contains(line, "side=prefill") {
				prefill = line
			} else {
				decode = line
			}
		}
		if prefill == "" || decode == "" {
			return fmt.Errorf("receipts of handoff %s: prefill %q, decode %q", id, prefill, decode)
		}
		return nil
	})
	return prefill, decode
}

// The router logs what each node says of a request that did not end by itself:
// what stopped, the pages that are free again, those that are held and why. An
// operator sees the same.
func TestReceiptsSayWhatStoppedAndWhatIsHeld(t *testing.T) {
	t.Parallel()
	c := transfers.start(t, hasty)
	c.AssertIdle(t)

	// The client of a request leaves under a transfer: all comes back.
	client := cluster.Dial(t, c.URL, cluster.Completion{Prompt: cluster.Prompt("leaves", 128), Max: 16, Stream: true})
	id := handoff(t, c.Prefill[0], 0)
	transfers.reached(t, c, id)
	client.Close()
	prefill, decode := wantReceipts(t, c, id)
	for _, line := range []string{prefill, decode} {
		require.Contains(t, line, `reason="the client is gone"`)
		require.Contains(t, line, "state=Aborted")
		require.Zero(t, number(t, line, "held"), line)
	}
	require.Contains(t, prefill, "fact=all_done")
	require.Positive(t, number(t, decode, "released"), decode)
	c.AssertIdle(t)

	// An operator ends a request and sees the same at once.
	f, id := transfers.fly(t, c, "cancelled", false)
	request := ""
	for _, e := range c.Prefill[0].EventsOf(t, id) {
		request = cmp.Or(request, e.Request)
	}
	require.NotEmpty(t, request)
	code, printed := pdctl(t, c, "cancel", request)
	require.Zero(t, code, "%s", printed)
	require.Regexp(t, `decode node \S+: the request is Aborted: .*\([1-9]\d* pages released, 0 held\)`, printed)
	f.wantError(t)
	wantReceipts(t, c, id)
	c.AssertIdle(t)

	// Prefill dies under a transfer: decode holds the pages and says why.
	f, id = transfers.fly(t, c, "held", true)
	c.Prefill[0].Kill()
	f.wantError(t)
	wantGated(t, c, c.Decode[0], id)
	cluster.Eventually(t, func() error {
		for _, line := range receipts(c, id) {
			if strings.Contains(line, "side=decode") {
				decode = line
				return nil
			}
		}
		return fmt.Errorf("no receipt of decode for handoff %s", id)
	})
	require.Contains(t, decode, "level=WARN")
	require.Contains(t, decode, "state=Quarantined")
	require.Positive(t, number(t, decode, "held"), decode)
	require.Zero(t, number(t, decode, "released"), decode)
	require.NotContains(t, decode, `why=""`)

	code, printed = pdctl(t, c, "status", "--router", strings.TrimPrefix(c.URL, "http://"))
	require.Zero(t, code, "%s", printed)
	require.Regexp(t, `(?m)^router http://\S+: error, 0 pairs`, printed)
	require.Regexp(t, `(?m)^  prefill .*, 1 unconfirmed`, printed, "nobody can say what prefill still runs")
	require.Regexp(t, `(?m)^  ended \S+ on decode node .*: Quarantined, 0 pages released, [1-9]\d* held.*`, printed)
	require.Regexp(t, `(?m)^  ended \S+ on decode node .*the client is gone.*: Aborted, [1-9]\d* pages released, 0 held`, printed)
	fence(t, c, c.Decode[0])
	again(t, c, c.Prefill[0])
	tenOfTen(t, c, "after") // the new life has no slot of the old
}
