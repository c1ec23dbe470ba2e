package pdrouter

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

var (
	soakRequests = flag.Int("soak.requests", 2000, "requests of the soak; from 20000 on its memory bound is tight")
	soakSeed     = flag.Uint64("soak.seed", 0, "seed of the soak; 0 draws one")
)

// fateHeader tells both nodes of a request what is to become of it.
const fateHeader = "X-Fate"

// The fates of a request, apart from its client's.
const (
	fateFine          = ""
	fatePrefillReset  = "prefill resets before its answer"
	fateDecodeReset   = "decode resets before its answer"
	fateDecodeHalf    = "decode resets in the middle of its answer"
	fateDecodeNoEvent = "decode resets behind its head"
)

// answerByFate ends a request as its fate has it: by a reset, which edge's own
// server never sends.
func answerByFate(role pd.Role) func(nc *net.TCPConn, r *http.Request, body string) {
	return func(nc *net.TCPConn, r *http.Request, body string) {
		fate := r.Header.Get(fateHeader)
		reset := func() { nc.SetLinger(0) }
		switch {
		case role == pd.Prefill && fate == fatePrefillReset, role == pd.Decode && fate == fateDecodeReset:
			reset()
		case role == pd.Prefill:
			rawRetires(nc, r, body)
		case !strings.Contains(body, `"stream":true`):
			answer := rawJSON(`{"id":"x"}`)
			if fate == fateDecodeHalf || fate == fateDecodeNoEvent {
				answer = answer[:len(answer)-5]
				reset()
			}
			io.WriteString(nc, answer)
		case fate == fateDecodeNoEvent:
			reset()
			io.WriteString(nc, rawStreamHead)
		default:
			io.WriteString(nc, rawStreamHead)
			for range 4 {
				if _, err := io.WriteString(nc, rawChunk(oneEvent)); err != nil {
					return
				}
				<-time.After(time.Millisecond) // so that clients leave in its middle, too
			}
			if fate == fateDecodeHalf {
				reset()
				io.WriteString(nc, rawChunk(oneEvent[:9]))
				return
			}
			io.WriteString(nc, rawChunk(doneEvent)+rawStreamEnd)
		}
	}
}

// soakClient sends requests on a connection that it keeps while nothing happens
// to it.
type soakClient struct {
	address string
	random  *rand.Rand
	nc      *net.TCPConn
	br      *bufio.Reader
	tally   *soakTally
}

// soakTally counts how requests ended for their clients.
type soakTally struct{ whole, broken, refused, left atomic.Int64 }

func (s *soakTally) sum() int64 {
	return s.whole.Load() + s.broken.Load() + s.refused.Load() + s.left.Load()
}

func (k *soakClient) hangUp(abruptly bool) {
	if k.nc == nil {
		return
	}
	if abruptly {
		k.nc.SetLinger(0)
	}
	k.nc.Close()
	k.nc, k.br = nil, nil
}

// one sends one request: three of ten are left at some point by their client, one
// of ten meets a reset.
func (k *soakClient) one() error {
	body := []string{plain, streamed, streamed}[k.random.IntN(3)]
	fate, leaves := fateFine, false
	switch draw := k.random.IntN(10); {
	case draw < 3:
		leaves = true
	case draw == 3:
		fate = []string{fatePrefillReset, fateDecodeReset, fateDecodeHalf, fateDecodeNoEvent}[k.random.IntN(4)]
	}
	if k.nc == nil {
		nc, err := net.Dial("tcp", k.address)
		if err != nil {
			return err
		}
		k.nc = nc.(*net.TCPConn)
		k.br = bufio.NewReaderSize(nc, 1<<10)
	}
	k.nc.SetDeadline(time.Now().Add(patience))
	request := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: h\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s", fateHeader, fate, len(body), body)
	if leaves {
		defer k.tally.left.Add(1)
		defer k.hangUp(k.random.IntN(2) == 0)
		switch k.random.IntN(3) {
		case 0: // in the middle of its request
			io.WriteString(k.nc, request[:k.random.IntN(len(request))])
		case 1: // in the middle of the answer
			io.WriteString(k.nc, request)
			k.nc.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // an answer may be shorter
			io.CopyN(io.Discard, k.br, k.random.Int64N(600))
		case 2: // some time after it was sent
			io.WriteString(k.nc, request)
			<-time.After(time.Duration(k.random.IntN(6000)) * time.Microsecond)
		}
		return nil
	}
	if _, err := io.WriteString(k.nc, request); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	r, err := http.ReadResponse(k.br, nil)
	if err != nil {
		return fmt.Errorf("fate %q: %w", fate, err)
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return fmt.Errorf("fate %q: %w", fate, err)
	}
	if r.Close {
		k.hangUp(false)
	}
	failed := strings.Contains(string(text), `"error"`)
	switch {
	case r.StatusCode == 200 && !failed && fate == fateFine:
		k.tally.whole.Add(1)
	case r.StatusCode == 503 && strings.Contains(string(text), "node_busy"):
		k.tally.refused.Add(1) // slots that wait for a confirmation
	case fate == fateFine:
		return fmt.Errorf("status %d, %s", r.StatusCode, text)
	case failed, fate == fatePrefillReset && r.StatusCode == 200:
		k.tally.broken.Add(1)
	default:
		return fmt.Errorf("fate %q: status %d, %s", fate, r.StatusCode, text)
	}
	return nil
}

// residentBytes is the resident memory of this process.
func residentBytes(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	require.NoError(t, err)
	return pages * os.Getpagesize()
}

// Case B10: a hundred thousand requests, a third of which is left or broken, leave
// no count, no goroutine, no descriptor and no memory behind. -soak.requests
// 100000 -v prints the figures of docs/performance.md.
func TestSoakLeavesNothingBehind(t *testing.T) {
	const clients, points = 24, 10
	s, nodes := rawStand(t, settings{prefills: 2, decodes: 2, capacity: 64}, nil)
	for _, n := range nodes {
		n.answer = answerByFate(n.role)
	}
	seed := *soakSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("again with -soak.requests %d -soak.seed %d", *soakRequests, seed)
	var tally soakTally
	var resident, heap []int
	began := time.Now()
	for point := range points {
		var all sync.WaitGroup
		errs := make([]error, clients)
		for i := range clients {
			all.Go(func() {
				k := &soakClient{address: s.address, random: rand.New(rand.NewPCG(seed, uint64(point*clients+i))), tally: &tally}
				defer k.hangUp(false)
				for n := i; n < *soakRequests/points; n += clients {
					if err := k.one(); err != nil {
						errs[i] = err
						return
					}
				}
			})
		}
		all.Wait()
		require.NoError(t, errors.Join(errs...))
		s.untilFree()
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		resident, heap = append(resident, residentBytes(t)), append(heap, int(m.HeapAlloc))
		t.Logf("%3d %%: %.1f MiB resident, %.2f MiB live heap, %d goroutines", 100*(point+1)/points,
			float64(resident[point])/(1<<20), float64(m.HeapAlloc)/(1<<20), runtime.NumGoroutine())
	}
	t.Logf("%d requests in %v: %d whole, %d broken by a node, %d refused, %d left by their client",
		tally.sum(), time.Since(began).Round(time.Millisecond), tally.whole.Load(), tally.broken.Load(), tally.refused.Load(), tally.left.Load())
	require.Positive(t, tally.whole.Load())
	require.Positive(t, tally.broken.Load())
	require.Positive(t, tally.left.Load())

	for _, n := range s.router.pool.view().Nodes {
		require.Zero(t, n.Active, n.Node)
		require.Zero(t, n.Unconfirmed, n.Node)
	}
	s.router.stats.mu.Lock()
	require.Zero(t, s.router.stats.active)
	s.router.stats.mu.Unlock()
	// What is kept of requests is bounded and soon full; after that nothing grows.
	growth := func(v []int) float64 {
		middle, last := slices.Max(v[points/3:2*points/3]), slices.Max(v[2*points/3:])
		return float64(last) / float64(middle)
	}
	most := 1.25
	if *soakRequests >= 20_000 {
		most = 1.05
	}
	require.LessOrEqual(t, growth(resident), most, "resident memory")
	require.LessOrEqual(t, growth(heap), most, "live heap")
}
