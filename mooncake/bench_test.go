package mooncake

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

var benchRounds = flag.Int("mooncake.bench", 0, "compare with C in so many rounds per pattern; 0 does not")

// pattern is a transfer of count scattered pieces, so many times.
type pattern struct{ count, bytes, times int64 }

var patterns = []pattern{
	{1, 256 << 20, 1},   // a region as a whole
	{4096, 32 << 10, 1}, // the pages of a long prompt
	{43, 32 << 10, 64},  // a page of every layer, chunk after chunk
}

const benchBytes = 256 << 20

// aim is what Go may cost: the throughput of C, and this much less.
const aim = 0.95

// TestThroughputIsThatOfC compares this package with a C program over the same
// library, in turns. make bench-transfer runs it.
func TestThroughputIsThatOfC(t *testing.T) {
	if *benchRounds == 0 {
		t.Skip("make bench-transfer compares with C")
	}
	fake := needFakes(t)
	p, library := tcp(t, fake), fake.TransferEngine
	if kept["PYPTO_MOONCAKE_LIBRARY"] != "" {
		p = real(t)
		library = p.options.Library
	}
	c := exec.Command(fake.Bench, library, strconv.Itoa(benchBytes))
	c.Env = append(os.Environ(), "MC_FORCE_TCP=1", "MC_TCP_ENABLE_CONNECTION_POOL=1", "MC_RETRY_CNT=1", "MC_LOG_LEVEL=ERROR")
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		require.NoError(t, in.Close())
		require.NoError(t, c.Wait())
	})
	answers := bufio.NewScanner(out)
	inC := func(x pattern) time.Duration {
		_, err := fmt.Fprintln(in, x.count, x.bytes, x.times)
		require.NoError(t, err)
		require.True(t, answers.Scan(), "the C program ended")
		nanos, err := strconv.ParseInt(answers.Text(), 10, 64)
		require.NoError(t, err)
		return time.Duration(nanos)
	}

	source, target := newSide(t, p, sideOptions{bytes: benchBytes}), newSide(t, p, sideOptions{rank: 1, bytes: benchBytes})
	source.noise(1)
	copy(target.memory.Bytes(), source.memory.Bytes()) // both are in memory, not only mapped
	session := source.connect(t, target.target())
	var report strings.Builder
	for _, x := range patterns {
		segments := pieces(x.count*x.bytes, x.count)
		var ours, theirs []time.Duration
		inC(x) // warm
		for round := range *benchRounds {
			first, second := func() { theirs = append(theirs, inC(x)) }, func() { ours = append(ours, inGo(t, source, session, segments, x.times)) }
			if round%2 == 1 {
				first, second = second, first
			}
			first()
			second()
		}
		slices.Sort(ours)
		slices.Sort(theirs)
		total := float64(x.count * x.bytes * x.times)
		rate := func(d time.Duration) float64 { return total / float64(d.Nanoseconds()) }
		median := rate(ours[len(ours)/2]) / rate(theirs[len(theirs)/2])
		best := rate(ours[0]) / rate(theirs[0])
		fmt.Fprintf(&report, "%5d x %8d x %3d: Go %.2f GB/s, C %.2f GB/s (medians), ratio %.3f, of the best rounds %.3f\n",
			x.count, x.bytes, x.times, rate(ours[len(ours)/2]), rate(theirs[len(theirs)/2]), median, best)
		if max(median, best) < aim {
			t.Errorf("%d x %d x %d: ratio %.3f, want %.2f", x.count, x.bytes, x.times, max(median, best), aim)
		}
	}
	_, _ = io.WriteString(os.Stdout, report.String())
}

// inGo makes the transfers of a pattern and says how long they took.
func inGo(t *testing.T, source *side, session transfer.Session, segments []pd.Segment, times int64) time.Duration {
	var verdicts []transfer.Verdict
	sizes := map[transfer.Ticket]int{}
	open := 0
	settle := func() {
		verdicts = source.Poll(verdicts[:0])
		for _, v := range verdicts {
			require.Equal(t, pd.Done, v.Settlement, v.Detail)
			open -= sizes[v.Ticket]
			delete(sizes, v.Ticket)
		}
	}
	begin := time.Now()
	for range times {
		for rest := segments; len(rest) > 0; {
			n := min(len(rest), pd.MaxSegmentTasks)
			if open+n > pd.MaxOutstandingTasks {
				<-source.Wake()
				settle()
				continue
			}
			ticket, err := session.Submit(rest[:n])
			require.NoError(t, err)
			sizes[ticket] = n
			open += n
			rest = rest[n:]
		}
	}
	for open > 0 {
		<-source.Wake()
		settle()
	}
	return time.Since(begin)
}

// TestSubmitAllocatesPerBatch: what a segment costs does not allocate.
func TestSubmitAllocatesPerBatch(t *testing.T) {
	l := needFakes(t)
	p := tcp(t, l)
	source, target := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
	s := source.connect(t, target.target()).(*session)
	segments := pieces(64<<10, pd.MaxSegmentTasks)
	per := testing.AllocsPerRun(50, func() { source.write(t, s, segments) })
	require.Less(t, per/pd.MaxSegmentTasks, 0.25, "%.0f allocations for a batch, with its verdict", per)
	require.Zero(t, testing.AllocsPerRun(50, func() { s.lower(segments) }))
	require.Len(t, s.requests, pd.MaxSegmentTasks)
}

// TestNeighboursBecomeOne: segments that continue each other at both ends are
// one request; others are not.
func TestNeighboursBecomeOne(t *testing.T) {
	l := needFakes(t)
	p := tcp(t, l)
	source, target := newSide(t, p, sideOptions{}), newSide(t, p, sideOptions{rank: 1})
	s := source.connect(t, target.target()).(*session)
	segment := func(from, to, n int64) pd.Segment {
		return pd.Segment{Component: "kv", SourceOffset: from, TargetOffset: to, Bytes: n}
	}
	for name, c := range map[string]struct {
		segments []pd.Segment
		bytes    []int64
	}{
		"in a row":           {[]pd.Segment{segment(0, 640, 64), segment(64, 704, 128), segment(192, 832, 64)}, []int64{256}},
		"gap at the source":  {[]pd.Segment{segment(0, 0, 64), segment(128, 64, 64)}, []int64{64, 64}},
		"gap at the target":  {[]pd.Segment{segment(0, 0, 64), segment(64, 128, 64)}, []int64{64, 64}},
		"backwards":          {[]pd.Segment{segment(64, 64, 64), segment(0, 0, 64)}, []int64{64, 64}},
		"two rows":           {[]pd.Segment{segment(0, 0, 64), segment(64, 64, 64), segment(0, 640, 64), segment(64, 704, 64)}, []int64{128, 128}},
		"one":                {[]pd.Segment{segment(0, 0, 64)}, []int64{64}},
		"the same once more": {[]pd.Segment{segment(0, 0, 64), segment(0, 0, 64)}, []int64{64, 64}},
	} {
		s.lower(c.segments)
		var got []int64
		for _, r := range s.requests {
			got = append(got, r.Bytes)
		}
		require.Equal(t, c.bytes, got, name)
		require.Equal(t, source.memory.Base()+uintptr(c.segments[0].SourceOffset), s.requests[0].Source, name)
		require.Equal(t, target.memory.Base()+uintptr(c.segments[0].TargetOffset), s.requests[0].Target, name)
	}
}

// BenchmarkLower is the cost of Go per segment before C is called.
func BenchmarkLower(b *testing.B) {
	l := needFakes(b)
	p := tcp(b, l)
	source, target := newSide(b, p, sideOptions{}), newSide(b, p, sideOptions{rank: 1})
	s := source.connect(b, target.target()).(*session)
	segments := pieces(64<<10, pd.MaxSegmentTasks)
	b.ReportAllocs()
	for b.Loop() {
		_, err := transfer.CheckSegments(segments, source.native.extents, s.extents)
		require.NoError(b, err)
		s.lower(segments)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(segments)), "ns/segment")
}
