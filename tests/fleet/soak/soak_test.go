package soak

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
	"github.com/hw-native-sys/pypto-pd/tests/fleet/sshhost"
	"github.com/hw-native-sys/pypto-pd/tests/fleet/stub"
)

var (
	soakTime = flag.Duration("fleet.soak", 10*time.Second, "how long TestSoak troubles the fleet")
	soakSeed = flag.Uint64("fleet.seed", 0, "seed of TestSoak's trouble; 0 chooses one and prints it")
)

// named finds the replica in what the router says of a failure.
var named = regexp.MustCompile(`replica (\S+) `)

// TestSoak troubles a fleet of launched replicas, here and behind ssh, while users
// talk. One replica that was not launched stays out of trouble, so that there is
// always one to go to.
func TestSoak(t *testing.T) {
	seed := *soakSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-fleet.seed=%d", seed)
	r := newRig(
		t, "--initial-replicas", "4", "--health-interval", "0.2", "--connect-timeout", "0.5", "--request-timeout", "5", "--replace-after", "0.8", "--replace-backoff", "0.2",
		"--stable-after", "3", "--launch-timeout", "10", "--drain-timeout", "2", "--stop-grace", "4", "--session-ttl", "5",
	)
	standing := httptest.NewServer(stub.New(stub.Config{Name: "standing", Model: "m", Tokens: 5, TokenDelay: 5 * time.Millisecond}))
	defer standing.Close()
	host, port, _ := strings.Cut(strings.TrimPrefix(standing.URL, "http://"), ":")
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	r.file["replicas"] = []fields{{"name": "standing", "host": host, "port": number}}
	env := func(load string, more ...string) map[string]string {
		out := map[string]string{stub.LoadVariable: load, stub.TokensVariable: "5", stub.TokenDelayVariable: "5ms"}
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	r.add(nil, nil, env("200ms"))
	// Its workers hold the card after the port is silent.
	r.add(nil, nil, env("200ms", stub.WorkersVariable, "group", stub.DeafWorkersVariable, "300ms"))
	r.add(nil, nil, env("1500ms", stub.DeafVariable, "yes"))
	if os.Geteuid() == 0 {
		lab := sshhost.Start(t, 1)
		r.add(lab, lab.Hosts[0], env("200ms"))
	} else {
		r.add(nil, nil, env("100ms"))
	}
	r.start()
	cluster.Eventually(t, r.full)

	l := &load{url: r.url, conversation: 25, think: 10 * time.Millisecond}
	b := &bringer{rig: r}
	talking, hush := context.WithCancel(t.Context())
	troubling, calm := context.WithTimeout(t.Context(), *soakTime)
	defer calm()
	var users, bringers sync.WaitGroup
	users.Go(func() { l.talk(talking, 6) })
	for i, s := range r.slots {
		bringers.Go(func() { b.run(troubling, s, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	bringers.Wait()
	cluster.Eventually(t, r.full)
	hush()
	users.Wait()

	picked, failed := chosen(r.p.Stderr()), map[string]int{}
	for _, turn := range l.turnsSeen() {
		if turn.err == nil {
			assert.Equal(t, picked[turn.request], turn.replica, "turn %d of user %d was answered by another replica than the chosen one", turn.number, turn.user)
			continue
		}
		replica := picked[turn.request]
		if m := named.FindStringSubmatch(turn.err.Error()); replica == "" && m != nil {
			replica = m[1]
		}
		p, ok := b.during(turn, replica)
		if !ok || !p.fails {
			t.Errorf("turn %d of user %d, request %s, failed on %q from %s to %s, and its trouble was %s: %v", turn.number, turn.user, turn.request,
				replica, clock(turn.begin), clock(turn.end), b.of(replica), turn.err)
		}
		failed[p.kind]++
	}
	v, err := r.view()
	require.NoError(t, err)
	for _, m := range v.Replicas {
		assert.Zero(t, m.Outstanding, m.Name)
	}
	fmt.Printf("soak of %v: %d turns, failed on replicas in trouble %v, trouble %v, %d starts\n", *soakTime, len(l.turnsSeen()), failed, b, len(stub.Starts(t, r.cards)))
	require.Zero(t, r.p.Stop(t), "%s", r.p.Tail())
	for _, s := range r.slots {
		assert.Zero(t, r.process(s), s.name)
		assert.False(t, stub.CardHeld(t, r.cards, s.device), s.name)
	}
}
