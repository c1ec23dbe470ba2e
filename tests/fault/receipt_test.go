package fault

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// receiptOf waits for the router's log line of what one side said of the end of
// a handoff.
func receiptOf(t *testing.T, c *cluster.Cluster, side, id string) string {
	t.Helper()
	found := ""
	cluster.Eventually(t, func() error {
		found = routerLine(c, `msg="abort receipt"`, "handoff="+id, "side="+side)
		if found == "" {
			return fmt.Errorf("the router has no receipt of %s for handoff %s", side, id)
		}
		return nil
	})
	return found
}

// routerLine finds the first line of the router's log that has all parts.
func routerLine(c *cluster.Cluster, parts ...string) string {
	for line := range strings.Lines(c.Router.Stderr()) {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
			return line
		}
	}
	return ""
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

// wantReceipts waits for the receipts of both sides.
func wantReceipts(t *testing.T, c *cluster.Cluster, id string) (prefill, decode string) {
	t.Helper()
	return receiptOf(t, c, "prefill", id), receiptOf(t, c, "decode", id)
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
	await(t, c.Prefill[0], id, journal.ChunkSubmitted)
	client.Close()
	prefill, decode := wantReceipts(t, c, id)
	for _, line := range []string{prefill, decode} {
		require.Contains(t, line, `reason="the client is gone"`)
		require.Contains(t, line, "state=Aborted")
		require.Zero(t, number(t, line, "held"), line)
	}
	require.Regexp(t, ` fact=(all_done|definite_failed|never_submitted) `, prefill, "prefill knows what became of its writes")
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
	decode = receiptOf(t, c, "decode", id)
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
