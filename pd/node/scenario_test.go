package node_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata")

// Each file in testdata tells one protocol story: commands, and the exact
// transcript of both nodes until they are at rest. The commands:
//
//	options name=value …       before the first command; capacity, pool, slots, tp_p, tp_d
//	post p|d H [prompt=N] [max=N] [stream=0|1]
//	close p|d H                whoever posted H leaves
//	abort p|d H                the router aborts
//	hold writes|compute|fence|sessions|acks
//	                           settle, compute and so on by hand from here on
//	free writes|compute|sessions|acks
//	compute H                  one chunk
//	settle H CHUNK done|failed|uncertain|lost
//	                           lost: uncertain, and its source may still be read
//	unread H CHUNK             the source of a lost chunk is read no more
//	finish H                   the engine ends the decode
//	late session               the answer to the next hello waits for free sessions
//	lose OP                    the next call of this kind never arrives
//	cut | heal                 no call arrives
//	advance DURATION
//	drain p|d
//	hello                      prefill's old hello arrives once more
//	goodbye                    prefill, idle, says what its writes came to
//	fence d                    an operator orders the destination fence
//	dead p|d BOOT              an operator says that p's or d's boot is dead
//	cancel p|d H               an operator cancels
//	fence-ends ok|failed       after hold fence
//	owner-lost p|d RANK        the process of a rank's owner is killed
//	restart p|d                a new boot; writes of the old one stay in flight
//	state                      capacity, health and pages of both
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			got := replay(t, string(text))
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
				return
			}
			require.Equal(t, string(text), got)
		})
	}
}

// replay runs a story and writes it anew with the transcript that happened.
func replay(t *testing.T, text string) string {
	var out strings.Builder
	var c *pair
	options := map[string]int{}
	for _, block := range strings.Split(strings.TrimSpace(text), "\n\n") {
		for _, line := range strings.Split(block, "\n") {
			if line == "----" {
				break
			}
			out.WriteString(line + "\n")
			words := strings.Fields(line)
			if len(words) == 0 || strings.HasPrefix(line, "#") {
				continue
			}
			if words[0] == "options" {
				options = values(t, words[1:])
				continue
			}
			if c == nil {
				c = newPair(t, options)
			}
			c.do(words)
			c.run()
		}
		if c != nil && c.out.Len() > 0 {
			out.WriteString("----\n" + c.out.String())
			c.out.Reset()
		}
		out.WriteString("\n")
	}
	return strings.TrimRight(out.String(), "\n") + "\n"
}

func values(t *testing.T, words []string) map[string]int {
	out := map[string]int{}
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		require.True(t, ok, w)
		n, err := strconv.Atoi(v)
		require.NoError(t, err)
		out[k] = n
	}
	return out
}

func (c *pair) do(words []string) {
	t := c.t
	switch words[0] {
	case "post":
		s, f := c.side(words[1]), c.fence(words[2])
		v := map[string]int{"prompt": 33, "max": 4, "stream": 1}
		for k, n := range values(t, words[3:]) {
			v[k] = n
		}
		c.post++
		s.posts[words[2]] = c.post
		if s.role == pd.Decode {
			c.step(s, node.DecodePosted{Post: c.post, Fence: f, Stream: v["stream"] == 1})
			return
		}
		cont := &pd.Continuation{PromptTokens: make([]pd.Token, v["prompt"]), MaxNewTokens: v["max"], Temperature: "0", TopP: "1", Stop: []string{}, Stream: v["stream"] == 1}
		hash, err := wire.MetadataHash(cont)
		require.NoError(t, err)
		digest, err := wire.PreparedDigest(hash)
		require.NoError(t, err)
		c.step(s, node.PrefillPosted{Post: c.post, Fence: f, Continuation: cont, MetadataHash: hash, PreparedDigest: digest})
	case "close":
		s := c.side(words[1])
		c.step(s, node.PostClosed{Post: s.posts[words[2]]})
	case "abort":
		f := c.fence(words[2])
		c.deliver(c.side(words[1]), wire.Abort{Fence: f, From: "router", Reason: "client gone"}, func(any, error) {})
	case "hold", "free":
		hold := words[0] == "hold"
		switch words[1] {
		case "writes":
			c.holdWrites = hold
		case "compute":
			c.holdCompute = hold
		case "fence":
			c.holdFence = hold
		case "acks":
			c.holdAcks = hold
			if !hold {
				c.queue, c.heldAcks = append(c.queue, c.heldAcks...), nil
			}
		case "grants":
			c.holdGrants = hold
			if !hold {
				c.queue, c.heldGrants = append(c.queue, c.heldGrants...), nil
			}
		case "sessions":
			c.holdSessions = hold
			if !hold {
				c.queue, c.heldSessions = append(c.queue, c.heldSessions...), nil
			}
		default:
			t.Fatalf("hold %s", words[1])
		}
	case "compute":
		c.holdCompute = false
		c.compute(c.p, handoffID(words[1]))
		c.holdCompute = true
	case "settle":
		chunk, err := strconv.Atoi(words[2])
		require.NoError(t, err)
		s := pd.Uncertain
		if c.sourceHeld = words[3] == "lost"; !c.sourceHeld {
			require.NoError(t, s.UnmarshalText([]byte(words[3])))
		}
		c.settle(c.p, handoffID(words[1]), pd.ChunkID(chunk), s)
	case "unread":
		chunk, err := strconv.Atoi(words[2])
		require.NoError(t, err)
		c.step(c.p, node.SourceFreed{Handoff: handoffID(words[1]), Chunk: pd.ChunkID(chunk)})
	case "finish":
		c.step(c.d, node.DecodeStopped{Handoff: handoffID(words[1])})
	case "late":
		require.Equal(t, "session", words[1])
		c.lateSession = true
	case "lose":
		c.lost[words[1]] = true
	case "cut":
		c.cut = true
	case "heal":
		c.cut = false
	case "advance":
		by, err := time.ParseDuration(words[1])
		require.NoError(t, err)
		c.advance(by)
	case "fence":
		c.order(c.side(words[1]), node.FenceOrder{})
	case "dead":
		c.order(c.side(words[1]), node.DeathOrder{Boot: c.boot(words[2])})
	case "cancel":
		c.order(c.side(words[1]), node.CancelOrder{Request: c.fence(words[2]).Request})
	case "fence-ends":
		var err error
		if words[1] == "failed" {
			err = pd.Errorf(pd.CodeDeadline, "fence", "rank 2 hangs")
		}
		c.fenceEnds(c.d, err)
	case "owner-lost":
		rank, err := strconv.Atoi(words[2])
		require.NoError(t, err)
		c.step(c.side(words[1]), node.OwnerLost{Rank: pd.Rank(rank), Why: "process 77 was ended by signal 9 (killed)"})
	case "restart":
		c.restart(words[1])
	case "hello":
		c.deliver(c.d, c.p.hello, func(any, error) {})
	case "goodbye":
		c.deliver(c.d, wire.SourceStopped{Peer: c.p.self, Fact: c.p.node.Snapshot().Stopped}, func(any, error) {})
	case "drain":
		c.step(c.side(words[1]), node.DrainOrdered{})
	case "state":
		for _, s := range []*side{c.p, c.d} {
			v := s.node.Snapshot()
			held, total := 0, 0
			for _, u := range v.Pages {
				held += u.Held
				total += u.Total
			}
			c.printf("%s %v active=%d reservations=%d quarantined=%d pins=%d pages=%t idle=%t",
				s.name, v.Health, v.Capacity.Active, v.Capacity.Reservations, v.Capacity.Quarantined, v.Pins, held > 0, s.node.Idle())
		}
	default:
		t.Fatalf("unknown command %q", words[0])
	}
}

// order gives an operator's order to a node.
func (c *pair) order(s *side, order any) { c.deliver(s, order, func(any, error) {}) }

// boot is the first boot of a node.
func (c *pair) boot(name string) pd.BootID {
	return pd.BootID(fmt.Sprintf("%s%030d", map[string]string{"p": "aa", "d": "dd"}[name], 0))
}

// advance lets time pass, from deadline to deadline.
func (c *pair) advance(by time.Duration) {
	end := c.now + by
	for range 10000 {
		next := end
		for _, s := range []*side{c.p, c.d} {
			if at, ok := s.node.NextDeadline(); ok && at < next {
				next = at
			}
		}
		c.now = max(c.now, next)
		for _, s := range []*side{c.p, c.d} {
			if at, ok := s.node.NextDeadline(); ok && at <= c.now {
				c.step(s, node.TimeAdvanced{})
			}
		}
		c.run()
		if c.now >= end {
			return
		}
	}
	c.t.Fatal("time does not advance")
}
