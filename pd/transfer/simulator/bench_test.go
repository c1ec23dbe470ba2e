package simulator_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

// benchmarkWrites keeps the window full of batches of one shape; one iteration
// is one batch.
func benchmarkWrites(b *testing.B, size, segments int) {
	p := provider(b, simulator.Config{})
	source, target := newSide(b, p, sideOptions{size: size * segments}), newSide(b, p, sideOptions{rank: 1, size: size * segments})
	session := source.connect(b, target)
	batch := make([]pd.Segment, segments)
	for i := range batch {
		// Targets in reverse, so that nothing could be joined on the way.
		batch[i] = pd.Segment{
			Component: "kv", SourceOffset: int64(i * size),
			TargetOffset: int64((segments - 1 - i) * size), Bytes: int64(size),
		}
	}
	window := pd.MaxOutstandingTasks / pd.MaxSegmentTasks
	b.SetBytes(int64(size * segments))
	b.ReportAllocs()
	open := 0
	verdicts := source.Poll(nil)
	collect := func() {
		<-source.Wake()
		verdicts = source.Poll(verdicts[:0])
		for _, v := range verdicts {
			require.Equal(b, pd.Done, v.Settlement)
		}
		open -= len(verdicts)
	}
	for b.Loop() {
		for open == window {
			collect()
		}
		_, err := session.Submit(batch)
		require.NoError(b, err)
		open++
	}
	for open > 0 {
		collect()
	}
	b.ReportMetric(float64(b.N)*float64(segments)/b.Elapsed().Seconds(), "segments/s")
}

func BenchmarkWrite1MiB(b *testing.B)  { benchmarkWrites(b, 1<<20, 16) }
func BenchmarkWrite64KiB(b *testing.B) { benchmarkWrites(b, 64<<10, 256) }
func BenchmarkWrite4KiB(b *testing.B)  { benchmarkWrites(b, 4<<10, 256) }
func BenchmarkWrite64B(b *testing.B)   { benchmarkWrites(b, 64, 256) }

// BenchmarkLatency is one segment at a time, from Submit to its verdict.
func BenchmarkLatency(b *testing.B) {
	p := provider(b, simulator.Config{})
	source, target := newSide(b, p, sideOptions{}), newSide(b, p, sideOptions{rank: 1})
	session := source.connect(b, target)
	batch := []pd.Segment{{Component: "kv", Bytes: 4096}}
	verdicts := source.Poll(nil)
	b.ReportAllocs()
	for b.Loop() {
		_, err := session.Submit(batch)
		require.NoError(b, err)
		for verdicts = verdicts[:0]; len(verdicts) == 0; verdicts = source.Poll(verdicts) {
			<-source.Wake()
		}
	}
}

// cpuTime is what this process has used so far.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPacedLink moves 64 KiB at a time over a link of 16 MiB/s: the time
// is the link's, the CPU should stay idle.
func BenchmarkPacedLink(b *testing.B) {
	p := provider(b, simulator.Config{Link: simulator.Link{BytesPerSecond: 16 << 20, Latency: time.Millisecond}})
	source, target := newSide(b, p, sideOptions{}), newSide(b, p, sideOptions{rank: 1})
	session := source.connect(b, target)
	b.SetBytes(source.memory.Len())
	before := cpuTime(b)
	for b.Loop() {
		require.Equal(b, pd.Done, source.write(b, session).Settlement)
	}
	b.ReportMetric(100*float64(cpuTime(b)-before)/float64(b.Elapsed()), "%cpu")
}
