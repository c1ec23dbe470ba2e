package pdrouter

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

var overloadTime = flag.Duration("overload.time", time.Second, "how long the open-loop load of twice the capacity lasts")

// discard takes what the stand's nodes report, so that they never wait for a test.
func (s *stand) discard() {
	stop := make(chan struct{})
	var all sync.WaitGroup
	for _, n := range s.nodes() {
		all.Go(func() {
			for {
				select {
				case <-n.posts:
				case <-n.aborts:
				case <-stop:
					return
				}
			}
		})
	}
	s.t.Cleanup(func() { close(stop); all.Wait() })
}

// spread sorts durations and names the middle, the ends and what few exceed.
func spread(took []time.Duration) string {
	slices.Sort(took)
	at := func(share float64) time.Duration {
		return took[int(share*float64(len(took)-1))].Round(time.Microsecond)
	}
	return fmt.Sprintf("p50 %v, p99 %v, at most %v", at(0.5), at(0.99), at(1))
}

// A refusal waits for nobody: with every slot held and no request ending, each
// further one is answered at once, reaches no node, and asks to come again.
func TestRefusalWaitsForNoRequest(t *testing.T) {
	release := make(chan struct{})
	const size = 3
	s := newStand(t, settings{decodes: 2, capacity: 4, queue: QueueOptions{Size: size, Timeout: time.Hour}, before: func(s *stand) {
		for _, n := range s.decodes {
			n.post = func(c *edge.Call) { <-release; answers(c) }
		}
		s.prefills[0].post = func(c *edge.Call) { <-release; retires(c) }
	}})
	s.discard()
	var held []net.Conn
	for range 4 + size {
		held = append(held, s.send("POST", "/v1/completions", plain))
	}
	s.until("the queue is full", func(v poolView) bool { return v.Waiting == size })
	var took []time.Duration
	for range 200 {
		began := time.Now()
		r, body := s.ask("POST", "/v1/completions", plain)
		took = append(took, time.Since(began))
		require.Equal(t, 503, r.StatusCode)
		require.Equal(t, "1", r.Header.Get("Retry-After"))
		require.Equal(t, "node_busy", codeOf(t, body))
	}
	t.Logf("200 refusals one after another, each on a connection of its own: %s", spread(took))
	require.Equal(t, size, s.router.pool.view().Waiting)
	close(release)
	for _, nc := range held {
		r, _ := s.read(nc)
		require.Equal(t, 200, r.StatusCode)
	}
	s.untilFree()
}

// Twice the load that fits, open-loop, from clients that lose patience and try
// again: what is bounded stays bounded, and ten seconds after the load fell
// everything is as before.
func TestOverloadIsRefusedAndLeavesNothingBehind(t *testing.T) {
	const (
		capacity = 4 // of each node; decode's slots are what is short
		decodes  = 2
		waiting  = 8
		work     = 40 * time.Millisecond
		tries    = 3
	)
	s := newStand(t, settings{
		prefills: 2, decodes: decodes, capacity: capacity, queue: QueueOptions{Size: waiting, Timeout: work / 2},
		before: func(s *stand) {
			for _, n := range s.decodes {
				n.post = func(c *edge.Call) {
					timer := time.NewTimer(work)
					defer timer.Stop()
					select {
					case <-timer.C:
						answers(c)
					case <-c.Context().Done():
					}
				}
			}
		},
	})
	s.discard()
	descriptors := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(list)
	}
	s.ask("POST", "/v1/completions", plain) // so that everything that always runs is there
	s.untilFree()
	fds, goroutines := descriptors(), runtime.NumGoroutine()

	var served, refused, gone atomic.Int64
	var timed sync.Mutex
	var took []time.Duration // of refusals, from the request's sending to the answer's end
	client := func() {
		for try := range tries {
			nc, err := net.Dial("tcp", s.address)
			if err != nil {
				t.Error(err)
				return
			}
			body := []string{plain, streamed}[rand.IntN(2)]
			nc.SetDeadline(time.Now().Add(patience))
			if rand.IntN(4) == 0 {
				nc.SetDeadline(time.Now().Add(rand.N(work)))
			}
			began := time.Now()
			fmt.Fprintf(nc, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			r, err := http.ReadResponse(bufio.NewReader(nc), nil)
			if err == nil {
				_, err = io.Copy(io.Discard, r.Body)
			}
			nc.Close()
			switch {
			case err != nil:
				gone.Add(1)
			case r.StatusCode == 503:
				refused.Add(1)
				timed.Lock()
				took = append(took, time.Since(began))
				timed.Unlock()
			case r.StatusCode == 200:
				served.Add(1)
				return
			default:
				t.Errorf("try %d: status %d", try, r.StatusCode)
			}
		}
	}
	var clients sync.WaitGroup
	arrivals := time.NewTicker(work / (2 * capacity * decodes))
	end := time.NewTimer(*overloadTime)
	most, mostWaiting := 0, 0
load:
	for {
		select {
		case <-arrivals.C:
			clients.Go(client)
			v := s.router.pool.view()
			mostWaiting = max(mostWaiting, v.Waiting)
			for _, n := range v.Nodes {
				most = max(most, n.Active)
			}
		case <-end.C:
			break load
		}
	}
	arrivals.Stop()
	clients.Wait()
	t.Logf("%d served, %d refused, %d lost patience; at most %d slots of a node and %d waiting", served.Load(), refused.Load(), gone.Load(), most, mostWaiting)
	t.Logf("a refusal took %s, the wait for a place in the queue of at most %v included", spread(took), work/2)
	require.LessOrEqual(t, most, capacity)
	require.LessOrEqual(t, mostWaiting, waiting)
	require.Positive(t, served.Load())
	require.Positive(t, refused.Load())
	require.Positive(t, gone.Load())

	const recovery = 10 * time.Second
	require.Eventually(t, func() bool {
		running, unconfirmed := s.router.pool.taken()
		return running+unconfirmed == 0 && s.router.stats.running() == 0
	}, recovery, 5*time.Millisecond, "every slot comes back")
	for range 10 {
		r, body := s.ask("POST", "/v1/completions", plain)
		require.Equal(t, 200, r.StatusCode, body)
	}
	s.untilFree()
	// What the aborts left idle is meant to be kept; all else is a leak. A poll may
	// just be on its way, with a connection more at both ends.
	s.router.control.Close()
	slack := 2 * len(s.nodes())
	require.Eventually(t, func() bool {
		return descriptors() <= fds+slack && runtime.NumGoroutine() <= goroutines+slack
	}, recovery, 10*time.Millisecond)
	m := s.router.stats
	m.mu.Lock()
	defer m.mu.Unlock()
	// The last request of a client that has left may still be on its way in.
	require.Equal(t, m.total, int64(m.active)+m.states[stateCompleted]+m.states[stateFailed]+m.states[stateCancelled])
}
