package mooncake

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

var benchRounds = flag.Int("mooncake.bench", 0, "compare with C in so many rounds of fresh processes; 0 does not")

// pattern is a transfer of count scattered pieces, so many times.
type pattern struct{ count, bytes, times int64 }

var patterns = []pattern{
	{1, 256 << 20, 1},   // a region as a whole
	{4096, 32 << 10, 1}, // the pages of a long prompt
	{43, 32 << 10, 64},  // a page of every layer, chunk after chunk
}

const (
	benchBytes = 256 << 20
	// tries is how often a process makes a pattern's transfers; all of them count.
	tries = 5
	// aim is what Go may cost over the real library: the throughput of C, and this
	// much less. The test library takes a lock for each segment, so that its figures
	// depend more on who runs when; it must not fall below standIn.
	aim, standIn = 0.95, 0.8
)

// TestThroughputIsThatOfC compares this package with a C program over the same
// library. Where the pages of a process lie moves its figures by a fifth, so that
// every round has fresh processes, and C is compared with itself beside. It fails if
// the ratio is below what is wanted by more than its standard error. make bench-transfer
// runs it.
func TestThroughputIsThatOfC(t *testing.T) {
	if *benchRounds == 0 {
		t.Skip("make bench-transfer compares with C")
	}
	fake := needFakes(t)
	library, least := fake.TransferEngine, standIn
	if kept["PYPTO_MOONCAKE_LIBRARY"] != "" {
		library, least = kept["PYPTO_MOONCAKE_LIBRARY"], aim
	}
	inC := func() *timed {
		c := exec.Command(fake.Bench, library, strconv.Itoa(benchBytes))
		c.Env = append(os.Environ(), "MC_FORCE_TCP=1", "MC_TCP_ENABLE_CONNECTION_POOL=1", "MC_RETRY_CNT=1", "MC_LOG_LEVEL=ERROR")
		return startTimed(t, c)
	}
	inGo := func() *timed {
		c := exec.Command(os.Args[0], "-test.run", "^TestThroughputOfGo$")
		c.Env = append(os.Environ(), envBench+"="+library)
		return startTimed(t, c)
	}
	ratios, control := map[pattern][]float64{}, map[pattern][]float64{}
	rates := map[pattern][2][]float64{}
	for range *benchRounds {
		processes := [3]*timed{inGo(), inC(), inC()}
		for _, x := range patterns {
			var took [3]time.Duration
			for try := range tries + 1 {
				for _, at := range rand.Perm(len(processes)) {
					if d := processes[at].run(x); try > 0 { // the first one warms
						took[at] += d
					}
				}
			}
			inC := math.Sqrt(float64(took[1]) * float64(took[2]))
			ratios[x] = append(ratios[x], inC/float64(took[0]))
			control[x] = append(control[x], float64(took[1])/float64(took[2]))
			rate := func(d time.Duration) float64 {
				return float64(tries*x.count*x.bytes*x.times) / float64(d.Nanoseconds())
			}
			rates[x] = [2][]float64{append(rates[x][0], rate(took[0])), append(rates[x][1], rate(time.Duration(inC)))}
		}
		for _, p := range processes {
			p.close()
		}
	}
	for _, x := range patterns {
		got, gotError := mean(ratios[x])
		own, ownError := mean(control[x])
		fmt.Printf("%5d x %9d x %2d: Go %.2f GB/s, C %.2f GB/s (medians), Go / C %.3f +- %.3f, C / C %.3f +- %.3f\n",
			x.count, x.bytes, x.times, median(rates[x][0]), median(rates[x][1]), got, gotError, own, ownError)
		if got+gotError < least {
			t.Errorf("%d x %d x %d: ratio %.3f +- %.3f, want %.2f", x.count, x.bytes, x.times, got, gotError, least)
		}
	}
}

// mean is the geometric mean of ratios and its standard error.
func mean(ratios []float64) (mean, deviation float64) {
	n := float64(len(ratios))
	var sum, squares float64
	for _, r := range ratios {
		sum += math.Log(r)
	}
	for _, r := range ratios {
		squares += (math.Log(r) - sum/n) * (math.Log(r) - sum/n)
	}
	mean = math.Exp(sum / n)
	return mean, mean * math.Sqrt(squares/max(n-1, 1)/n)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// timed is a process that makes transfers as it is told and says how long each
// took.
type timed struct {
	t       *testing.T
	command *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Scanner
}

func startTimed(t *testing.T, c *exec.Cmd) *timed {
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	return &timed{t: t, command: c, in: in, answers: bufio.NewScanner(out)}
}

func (p *timed) run(x pattern) time.Duration {
	_, err := fmt.Fprintln(p.in, x.count, x.bytes, x.times)
	require.NoError(p.t, err)
	require.True(p.t, p.answers.Scan(), "%s ended", p.command.Path)
	nanos, err := strconv.ParseInt(p.answers.Text(), 10, 64)
	require.NoError(p.t, err)
	return time.Duration(nanos)
}

func (p *timed) close() {
	require.NoError(p.t, p.in.Close())
	for p.answers.Scan() {
		// The end of a test binary's output.
	}
	require.NoError(p.t, p.command.Wait())
}

// envBench names the library for a process of TestThroughputIsThatOfC.
const envBench = "MOONCAKE_TEST_BENCH"

// TestThroughputOfGo is Go's side of TestThroughputIsThatOfC.
func TestThroughputOfGo(t *testing.T) {
	library := os.Getenv(envBench)
	if library == "" {
		t.Skip("TestThroughputIsThatOfC runs this in processes of its own")
	}
	p, err := New(Options{Library: library})
	require.NoError(t, err)
	source, target := newSide(t, p, sideOptions{bytes: benchBytes}), newSide(t, p, sideOptions{rank: 1, bytes: benchBytes})
	source.noise(1)
	copy(target.memory.Bytes(), source.memory.Bytes()) // both are in memory, not only mapped
	session := source.connect(t, target.target())
	for {
		var x pattern
		if _, err := fmt.Fscan(os.Stdin, &x.count, &x.bytes, &x.times); err != nil {
			require.ErrorIs(t, err, io.EOF)
			return
		}
		fmt.Println(inGo(t, source, session, pieces(x.count*x.bytes, x.count), x.times).Nanoseconds())
	}
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
