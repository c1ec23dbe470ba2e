package pdrouter

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// Case B02: the failure of one leg ends the other at once. Case B24: a limit of the
// node, with its time, is the client's to see.
//
// Behaviours 136 and 137.
func TestPrefillFailureReachesTheClientAndEndsDecode(t *testing.T) {
	for name, c := range map[string]struct {
		post   edge.Handler
		status int
		code   string
		retry  string
	}{
		"bad request": {refuses(&pd.Error{Code: pd.CodeContextLength, Text: "too long", Param: "prompt"}), 400, "context_length_exceeded", ""},
		"no model":    {refuses(pd.Errorf(pd.CodeModelNotFound, "read", "no such model")), 404, "model_not_found", ""},
		"rate limit": {func(c *edge.Call) {
			c.SetHeader("Retry-After", "7")
			c.Reply(429, openai.TypeJSON, []byte(`{"error":{"code":"slow"}}`))
		}, 429, "slow", "7"},
		"busy":       {refuses(pd.Errorf(pd.CodeBusy, "admit", "full")), 503, "node_busy", "1"},
		"stale boot": {refuses(pd.Errorf(pd.CodeStaleBoot, "route", "other boot")), 503, "peer_unreachable", "1"},
		"no route":   {refuses(pd.Errorf(pd.CodeRouteMissing, "route", "no route")), 503, "peer_unreachable", "1"},
		"transfer":   {refuses(pd.Errorf(pd.CodeTransferFailed, "transfer", "link")), 503, "transfer_failed", ""},
		"internal":   {func(c *edge.Call) { c.Reply(500, "text/html", []byte("<html>")) }, 503, "peer_unreachable", "1"},
		"ends silently": {func(c *edge.Call) {
			c.Stream(200, openai.TypeJSON, func(w *edge.StreamWriter) error { return errors.New("cut") })
		}, 503, "peer_unreachable", "1"},
	} {
		for _, body := range []string{plain, streamed} {
			t.Run(name+" "+body[len(body)-7:], func(t *testing.T) {
				// Decode never answers by itself; ten seconds would pass.
				arrived := make(chan struct{})
				s := newStand(t, settings{before: func(s *stand) {
					s.prefills[0].post = func(call *edge.Call) { <-arrived; c.post(call) }
					s.decodes[0].post = func(call *edge.Call) { close(arrived); hangs(call) }
				}})
				r, got := s.ask("POST", "/v1/completions", body)
				require.Equal(t, c.status, r.StatusCode, got)
				require.Equal(t, c.code, codeOf(t, got))
				require.Equal(t, c.retry, r.Header.Get("Retry-After"))
				d := take(t, s.decodes[0].posts)
				take(t, d.gone)
				abort := take(t, s.decodes[0].aborts)
				require.Equal(t, "router", abort.From)
				require.Equal(t, d.header.Get("X-Pd-Handoff-Id"), string(abort.Fence.Handoff))
				require.Zero(t, abort.Fact)
				require.NotEmpty(t, abort.Reason)
				s.untilFree()
			})
		}
	}
}

// Case B02: a node that is not there fails the request at once.
func TestPrefillThatCannotBeReachedIs503AndLeftOut(t *testing.T) {
	s := newStand(t, settings{before: func(s *stand) { s.decodes[0].post = hangs }})
	require.NoError(t, s.prefills[0].edge.Shutdown(context.Background()))
	r, body := s.ask("POST", "/v1/completions", streamed)
	require.Equal(t, 503, r.StatusCode)
	require.Equal(t, "peer_unreachable", codeOf(t, body))
	// Whether decode had the request by then is a matter of luck.
	s.untilFree()
	require.Empty(t, s.prefills[0].aborts, "it has seen nothing")
}

// Case B02 the other way round.
func TestDecodeRefusalReachesTheClientAndEndsPrefill(t *testing.T) {
	for name, c := range map[string]struct {
		post   edge.Handler
		status int
		code   string
	}{
		"busy":      {refuses(pd.Errorf(pd.CodeCapacityExhausted, "reserve", "no pages")), 503, "capacity_exhausted"},
		"duplicate": {refuses(pd.Errorf(pd.CodeDuplicateHandoff, "accept", "known")), 503, "peer_unreachable"},
		"bad":       {refuses(pd.Errorf(pd.CodeInvalidRequest, "read", "bad")), 400, "invalid_request"},
		"cut answer": {func(c *edge.Call) {
			c.Stream(200, openai.TypeJSON, func(w *edge.StreamWriter) error { return errors.New("cut") })
		}, 502, "upstream_interrupted"},
	} {
		t.Run(name, func(t *testing.T) {
			arrived := make(chan struct{})
			s := newStand(t, settings{before: func(s *stand) {
				s.prefills[0].post = func(call *edge.Call) { close(arrived); hangs(call) }
				s.decodes[0].post = func(call *edge.Call) { <-arrived; c.post(call) }
			}})
			r, got := s.ask("POST", "/v1/completions", plain)
			require.Equal(t, c.status, r.StatusCode, got)
			require.Equal(t, c.code, codeOf(t, got))
			take(t, take(t, s.prefills[0].posts).gone)
			take(t, s.prefills[0].aborts)
			s.untilFree()
		})
	}
}

// Cases B03 and B14: both nodes learn of a hang-up whenever it happens.
//
// Behaviours 134 and 135.
func TestClientThatLeavesAbortsBothSides(t *testing.T) {
	silentStream := func(c *edge.Call) {
		c.Stream(200, openai.TypeEvents, func(w *edge.StreamWriter) error {
			w.WriteString(oneEvent)
			w.Flush()
			<-c.Context().Done()
			return context.Cause(c.Context())
		})
	}
	for name, c := range map[string]struct {
		body   string
		decode edge.Handler
		read   string
	}{
		"before an answer": {plain, hangs, ""},
		"before a stream":  {streamed, hangs, ""},
		"in the stream":    {streamed, silentStream, oneEvent},
	} {
		for _, how := range []string{"fin", "reset", "half"} {
			t.Run(name+" "+how, func(t *testing.T) {
				s := newStand(t, settings{before: func(s *stand) {
					s.prefills[0].post = hangs
					s.decodes[0].post = c.decode
				}})
				nc := s.send("POST", "/v1/completions", c.body)
				p, d := take(t, s.prefills[0].posts), take(t, s.decodes[0].posts)
				if c.read != "" {
					r, err := http.ReadResponse(bufio.NewReader(nc), nil)
					require.NoError(t, err)
					got := make([]byte, len(c.read))
					_, err = io.ReadFull(r.Body, got)
					require.NoError(t, err)
					require.Equal(t, c.read, string(got))
				}
				switch how {
				case "half":
					nc.CloseWrite()
				case "reset":
					nc.SetLinger(0)
					nc.Close()
				default:
					nc.Close()
				}
				take(t, p.gone)
				take(t, d.gone)
				for _, n := range s.nodes() {
					require.Equal(t, "the client is gone", take(t, n.aborts).Reason)
				}
				s.untilFree()
				require.EqualValues(t, 1, s.router.stats.states[stateCancelled])
			})
		}
	}
}

// Case B03: a client that leaves between prefill's end and decode's first token.
func TestClientThatLeavesAfterPrefillAbortsDecodeAlone(t *testing.T) {
	s := newStand(t, settings{before: func(s *stand) { s.decodes[0].post = hangs }})
	nc := s.send("POST", "/v1/completions", streamed)
	d := take(t, s.decodes[0].posts)
	s.until("prefill is over", func(v poolView) bool { return v.Nodes[0].Active == 0 && v.Nodes[1].Active == 1 })
	nc.Close()
	take(t, d.gone)
	require.Equal(t, reasonGone, take(t, s.decodes[0].aborts).Reason)
	s.untilFree()
	require.Empty(t, s.prefills[0].aborts)
}

func TestClientMayLeaveOnceItHasItsAnswer(t *testing.T) {
	finish := make(chan struct{})
	s := newStand(t, settings{before: func(s *stand) {
		s.prefills[0].post = func(c *edge.Call) {
			select {
			case <-finish:
				retires(c)
			case <-c.Context().Done():
			}
		}
	}})
	nc := s.send("POST", "/v1/completions", streamed)
	_, body := s.read(nc)
	require.Equal(t, oneEvent+doneEvent, body, "output does not wait for prefill's cleaning up")
	s.until("prefill holds its slot until its answer, decode does not", func(v poolView) bool {
		return v.Nodes[0].Active == 1 && v.Nodes[1].Active == 0
	})
	require.Eventually(t, func() bool { return s.router.stats.running() == 0 }, patience, time.Millisecond)
	nc.Close()
	close(finish)
	s.untilFree()
	require.Empty(t, s.prefills[0].aborts)
	require.Empty(t, s.decodes[0].aborts)
}

func TestPrefillThatFailsLateMattersOnlyWhileDecodeWaitsForIt(t *testing.T) {
	for _, admitted := range []bool{false, true} {
		t.Run(fmt.Sprintf("admitted=%t", admitted), func(t *testing.T) {
			begun, end := make(chan struct{}), make(chan struct{})
			s := newStand(t, settings{before: func(s *stand) {
				s.prefills[0].post = func(c *edge.Call) { <-begun; refuses(pd.Errorf(pd.CodeTransferFailed, "transfer", "link"))(c) }
				d := s.decodes[0]
				d.status = func() wire.Status {
					if admitted {
						defer close(end)
					}
					return wire.Status{Role: pd.Decode, State: "InUse", Admitted: admitted}
				}
				d.abort = func(wire.Abort) (wire.Status, error) {
					close(end)
					return wire.Status{Role: pd.Decode, State: "Aborted"}, nil
				}
				d.post = func(c *edge.Call) {
					c.Stream(200, openai.TypeEvents, func(w *edge.StreamWriter) error {
						w.WriteString(oneEvent)
						w.Flush()
						<-end
						w.WriteString(doneEvent)
						return w.Flush()
					})
				}
			}})
			nc := s.send("POST", "/v1/completions", streamed)
			br := bufio.NewReader(nc)
			r, err := http.ReadResponse(br, nil)
			require.NoError(t, err)
			close(begun)
			body, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Equal(t, oneEvent+doneEvent, string(body))
			s.untilFree()
			require.Equal(t, admitted, len(s.decodes[0].aborts) == 0)
		})
	}
}

// A stream whose prefill has failed is not waited for when decode cannot be
// asked, but one that flows is.
func TestStreamIsGivenUpWhenPrefillFailedAndDecodeIsSilent(t *testing.T) {
	for _, flows := range []bool{false, true} {
		t.Run(fmt.Sprint("flows ", flows), func(t *testing.T) {
			begun, asked, answer, end := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
			once := sync.OnceFunc(func() { close(asked) })
			s := newStand(t, settings{handoffTimeout: 0.3, before: func(s *stand) {
				s.prefills[0].post = func(c *edge.Call) { <-begun; refuses(pd.Errorf(pd.CodeTransferFailed, "transfer", "link"))(c) }
				d := s.decodes[0]
				d.status = func() wire.Status {
					once()
					<-answer
					return wire.Status{Role: pd.Decode, State: "InUse"}
				}
				d.post = func(c *edge.Call) {
					c.Stream(200, openai.TypeEvents, func(w *edge.StreamWriter) error {
						again := time.NewTicker(20 * time.Millisecond)
						defer again.Stop()
						for flowing := true; flowing; {
							if flows {
								w.WriteString(oneEvent)
								w.Flush()
							}
							select {
							case <-again.C:
							case <-end:
								flowing = false
							case <-c.Context().Done():
								flowing = false
							}
						}
						w.WriteString(doneEvent)
						return w.Flush()
					})
				}
			}})
			let := sync.OnceFunc(func() { close(answer) })
			defer let()
			nc := s.send("POST", "/v1/completions", streamed)
			br := bufio.NewReader(nc)
			r, err := http.ReadResponse(br, nil)
			require.NoError(t, err)
			events := bufio.NewReader(r.Body)
			if flows {
				_, err := events.Peek(len(oneEvent))
				require.NoError(t, err)
			}
			close(begun)
			take(t, asked)
			if flows {
				s.until("decode is lost", func(v poolView) bool { return v.Pairs == 0 })
				close(end)
			}
			body, err := io.ReadAll(events)
			require.NoError(t, err)
			if flows {
				require.Equal(t, doneEvent, strings.ReplaceAll(string(body), oneEvent, ""))
			} else {
				require.Contains(t, string(body), `"code":"transfer_failed"`)
				require.Contains(t, string(body), doneEvent)
			}
			let()
			s.untilFree()
		})
	}
}

// A decode node that stands still closes nothing. When neither its control port
// nor its stream has said anything for handoff_timeout, the stream is given up
// with an error, Case B29.
func TestStreamOfASilentNodeIsGivenUp(t *testing.T) {
	s := newStand(t, settings{handoffTimeout: 0.3, before: func(s *stand) {
		d := s.decodes[0]
		d.post = func(c *edge.Call) {
			c.Stream(200, openai.TypeEvents, func(w *edge.StreamWriter) error {
				w.WriteString(oneEvent)
				w.Flush()
				d.change(func() { d.silent = true })
				<-c.Context().Done()
				return nil
			})
		}
	}})
	r, err := http.ReadResponse(bufio.NewReader(s.send("POST", "/v1/completions", streamed)), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(body), oneEvent), "%s", body)
	require.Contains(t, string(body), `"code":"deadline"`)
	require.Contains(t, string(body), "has said nothing for 300ms")
	require.True(t, strings.HasSuffix(string(body), doneEvent), "%s", body)
	s.decodes[0].change(func() { s.decodes[0].silent = false })
	s.untilFree()
}

// A whole answer has no head before its text is complete, so only decode's status
// tells that a prefill node whose answer was lost had done its work.
func TestPrefillWhoseAnswerIsLostMattersOnlyUntilDecodeOwnsTheRequest(t *testing.T) {
	for _, admitted := range []bool{true, false} {
		t.Run(fmt.Sprint("admitted ", admitted), func(t *testing.T) {
			asked, finish := make(chan struct{}), make(chan struct{})
			once := sync.OnceFunc(func() { close(asked) })
			s := newStand(t, settings{before: func(s *stand) {
				s.prefills[0].post = func(c *edge.Call) {
					c.SetHeader("Content-Length", "5")
					c.Stream(200, openai.TypeJSON, func(*edge.StreamWriter) error { return errors.New("the node dies") })
				}
				s.decodes[0].status = func() wire.Status {
					once()
					return wire.Status{Role: pd.Decode, State: "InUse", Admitted: admitted}
				}
				s.decodes[0].post = func(c *edge.Call) {
					select {
					case <-finish:
						answers(c)
					case <-c.Context().Done():
					}
				}
			}})
			nc := s.send("POST", "/v1/completions", plain)
			take(t, asked)
			if admitted {
				require.Contains(t, take(t, s.prefills[0].aborts).Reason, "lost")
				close(finish)
			}
			r, body := s.read(nc)
			if admitted {
				require.Equal(t, 200, r.StatusCode, "%s", body)
				require.Equal(t, `{"id":"x"}`, body)
			} else {
				require.Equal(t, 503, r.StatusCode, "%s", body)
				take(t, s.decodes[0].aborts)
			}
			s.untilFree()
		})
	}
}

// A node tells the client of a failure at once and settles its writes after that,
// so its slot is taken until it has said that they are. What it then says is the
// receipt.
func TestFailureIsNoEndUntilItsNodeHasConfirmedIt(t *testing.T) {
	for name, post := range map[string]edge.Handler{
		"prefill": refuses(pd.Errorf(pd.CodeTransferFailed, "transfer", "link")), "decode": refuses(pd.Errorf(pd.CodeAborted, "abort", "prefill")),
	} {
		t.Run(name, func(t *testing.T) {
			settling := make(chan struct{})
			s := newStand(t, settings{before: func(s *stand) {
				s.prefills[0].post, s.decodes[0].post = hangs, hangs
				n := s.prefills[0]
				if name == "decode" {
					n = s.decodes[0]
				}
				n.post = post
				n.abort = func(m wire.Abort) (wire.Status, error) {
					<-settling
					return wire.Status{Role: n.role, State: "Aborted", Fact: pd.AllDone, Released: 7, Why: "router: " + m.Reason}, nil
				}
			}})
			done := sync.OnceFunc(func() { close(settling) })
			defer done()
			r, body := s.ask("POST", "/v1/completions", plain)
			require.Equal(t, 503, r.StatusCode, body)
			s.until("the other side is free, this one is not", func(v poolView) bool {
				i := map[string]int{"prefill": 0, "decode": 1}[name]
				return v.Nodes[i].Unconfirmed == 1 && v.Nodes[1-i].Active == 0
			})
			done()
			s.untilFree()
			_, body = s.ask("GET", "/metrics/json", "")
			var m snapshotBody
			require.NoError(t, json.Unmarshal([]byte(body), &m))
			i := slices.IndexFunc(m.Receipts, func(r receipt) bool { return r.Role.String() == name })
			require.GreaterOrEqual(t, i, 0, body)
			got := m.Receipts[i]
			require.Positive(t, got.Took)
			got.Took = 0
			require.NotEmpty(t, got.Request)
			require.Equal(t, receipt{
				Request: got.Request, Handoff: got.Handoff, Role: got.Role, Node: got.Node, Reason: got.Reason,
				State: "Aborted", Fact: pd.AllDone, Released: 7, Why: "router: " + got.Reason, Asked: 1,
			}, got)
			require.NotEmpty(t, got.Reason)
		})
	}
}

func TestReceiptsAreBounded(t *testing.T) {
	s := newStats()
	for i := range maxReceipts + 3 {
		s.confirmed(&receipt{Asked: i})
	}
	require.Len(t, s.receipts, maxReceipts)
	require.Equal(t, 3, s.receipts[0].Asked)
	require.Equal(t, maxReceipts+2, s.receipts[maxReceipts-1].Asked)
}

// Behaviour 138.
func TestUnconfirmedSlotsAreAskedForUntilAnAnswer(t *testing.T) {
	s := newStand(t, settings{capacity: 1, before: func(s *stand) {
		s.prefills[0].post = hangs
		s.decodes[0].post = hangs
		// Still settling: an answer, and not the end.
		s.decodes[0].abort = func(wire.Abort) (wire.Status, error) { return wire.Status{Role: pd.Decode, State: "Aborting"}, nil }
	}})
	nc := s.send("POST", "/v1/completions", plain)
	take(t, s.prefills[0].posts)
	take(t, s.decodes[0].posts)
	nc.Close()
	take(t, s.prefills[0].aborts)
	take(t, s.decodes[0].aborts)
	s.until("prefill is free, decode is not", func(v poolView) bool {
		return v.Nodes[0].Active == 0 && v.Nodes[1].Active == 1 && v.Nodes[1].Unconfirmed == 1
	})
	require.NoError(t, s.router.Settle(context.Background()))
	// A stop waits for requests, and no longer than it wants for a confirmation.
	now, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, s.router.Settle(now))
	require.ErrorIs(t, s.router.Confirm(now), context.Canceled)
	r, _ := s.ask("POST", "/v1/completions", plain)
	require.Equal(t, 503, r.StatusCode)
	_, h := s.healthOf()
	require.Equal(t, 1, h.Nodes[1].Unconfirmed)
	s.decodes[0].change(func() {
		s.decodes[0].abort = func(wire.Abort) (wire.Status, error) { return wire.Status{Role: pd.Decode, State: "Quarantined"}, nil }
	})
	take(t, s.decodes[0].aborts) // asked again by itself
	s.untilFree()
	require.NoError(t, s.router.Confirm(now))
}

func TestNewBootClearsTheSlotsOfTheOld(t *testing.T) {
	s := newStand(t, settings{before: func(s *stand) {
		s.decodes[0].post = hangs
		s.decodes[0].abort = func(wire.Abort) (wire.Status, error) { return wire.Status{}, pd.CodeBusy }
	}})
	nc := s.send("POST", "/v1/completions", plain)
	take(t, s.decodes[0].posts)
	nc.Close()
	take(t, s.decodes[0].aborts)
	s.until("decode is unconfirmed", func(v poolView) bool { return v.Nodes[1].Unconfirmed == 1 })
	s.decodes[0].change(func() { s.decodes[0].says.Boot = pd.NewBootID() })
	s.until("the new boot has none", func(v poolView) bool {
		return v.Nodes[1].Boot == s.decodes[0].says.Boot && v.Nodes[1].Active == 0
	})
	s.untilFree()
}

func TestStaleBootConfirmsAnAbort(t *testing.T) {
	require.True(t, settled(wire.Status{}, pd.CodeStaleBoot))
	require.True(t, settled(wire.Status{}, fmt.Errorf("abort: %w", &pd.Error{Code: pd.CodeUnknownKey})))
	require.False(t, settled(wire.Status{}, pd.CodePeerUnreachable))
	require.False(t, settled(wire.Status{State: "Aborting"}, nil))
	require.False(t, settled(wire.Status{State: "Stopping"}, nil))
	for _, state := range []string{"Retired", "Completed", "Aborted", "Quarantined"} {
		require.True(t, settled(wire.Status{State: state}, nil))
	}
}

// Behaviour 172: each class of wait has its own bound.
func TestStreamHeadersHaveAShorterBoundThanWholeAnswers(t *testing.T) {
	late := make(chan struct{})
	s := newStand(t, settings{handoffTimeout: 0.3, before: func(s *stand) {
		s.decodes[0].post = func(c *edge.Call) {
			select {
			case <-late:
				answers(c)
			case <-c.Context().Done():
			}
		}
	}})
	whole := s.send("POST", "/v1/completions", plain)
	r, body := s.ask("POST", "/v1/completions", streamed)
	require.Equal(t, 503, r.StatusCode)
	require.Equal(t, "deadline", codeOf(t, body))
	close(late)
	r, body = s.read(whole)
	require.Equal(t, 200, r.StatusCode, body)
	s.untilFree()
}

// Case B10: counters follow requests, not code paths.
func TestCountersAreZeroAfterAStorm(t *testing.T) {
	s := newStand(t, settings{prefills: 2, decodes: 2, capacity: 64, before: func(s *stand) {
		for i, n := range s.decodes {
			n.post = func(c *edge.Call) {
				switch rand.IntN(4) {
				case 0:
					refuses(pd.CodeBusy)(c)
				case 1:
					c.Stream(200, openai.TypeEvents, func(w *edge.StreamWriter) error {
						w.WriteString(oneEvent)
						w.Flush()
						return errors.New("reset")
					})
				default:
					answers(c)
				}
			}
			s.prefills[i].post = func(c *edge.Call) {
				if rand.IntN(5) == 0 {
					refuses(pd.CodeInternal)(c)
					return
				}
				retires(c)
			}
		}
	}})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				nc := s.send("POST", "/v1/completions", []string{plain, streamed}[rand.IntN(2)])
				if rand.IntN(3) > 0 {
					drain(nc)
				}
				nc.Close()
			}
		})
	}
	wg.Wait()
	s.untilFree()
	// The last request of a client that has left may still be on its way in.
	s.until("no slot is taken", func(v poolView) bool {
		return !slices.ContainsFunc(v.Nodes, func(n nodeView) bool { return n.Active+n.Unconfirmed > 0 })
	})
	m := s.router.stats
	m.mu.Lock()
	defer m.mu.Unlock()
	require.Equal(t, m.total, int64(m.active)+m.states[stateCompleted]+m.states[stateFailed]+m.states[stateCancelled])
	require.Positive(t, m.states[stateCompleted])
	require.Positive(t, m.states[stateFailed])
}

func drain(nc net.Conn) {
	r, err := http.ReadResponse(bufio.NewReader(nc), nil)
	if err == nil {
		io.Copy(io.Discard, r.Body)
	}
}

func TestStopCutsWhatStillRuns(t *testing.T) {
	s := newStand(t, settings{before: func(s *stand) {
		s.prefills[0].post = hangs
		s.decodes[0].post = hangs
	}})
	nc := s.send("POST", "/v1/completions", plain)
	take(t, s.prefills[0].posts)
	take(t, s.decodes[0].posts)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, s.server.Shutdown(ctx), context.Canceled)
	for _, n := range s.nodes() {
		require.Equal(t, "the router is stopping", take(t, n.aborts).Reason)
	}
	nc.Close()
	s.untilFree()
}
