package simulator

import (
	"math/rand/v2"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// pacer is the outgoing link of one engine as a calendar: it says when a batch
// that is submitted now will have crossed the link. Waiting for that moment is
// the writer's business, so a slow link costs a timer and no CPU. It belongs
// to the goroutine that calls Submit.
type pacer struct {
	link Link
	rng  *rand.Rand
	// free is when the link has sent everything that was submitted before.
	free time.Time
}

func newPacer(link Link, seed uint64, rank pd.Rank) *pacer {
	return &pacer{link: link, rng: rand.New(rand.NewPCG(seed, uint64(rank)))}
}

// due is when the bytes of a batch submitted at now arrive; the zero time on
// an ideal link.
func (p *pacer) due(now time.Time, bytes int64) time.Time {
	if p.link == (Link{}) {
		return time.Time{}
	}
	start := p.free
	if start.Before(now) {
		start = now
	}
	if rate := p.link.BytesPerSecond; rate > 0 {
		start = start.Add(time.Duration(float64(bytes) / float64(rate) * float64(time.Second)))
	}
	p.free = start
	if half := p.link.Latency / 2; half > 0 {
		start = start.Add(half + time.Duration(p.rng.Int64N(int64(p.link.Latency))))
	}
	return start
}
