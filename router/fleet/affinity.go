package fleet

import (
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// Member is one replica in the table, one instance of it: a replica that is
// launched again under the same name is another member. Who holds one may
// outlive it; what he then says of it changes nothing else.
type Member struct {
	// constant
	Name string
	URL  string
	// Address and Trust are how it is dialled; Trust is nil for plain HTTP.
	Address string
	Trust   *edge.Trust
	// Owned: this router launched or adopted it. Instance is which life of the
	// slot it is; "" for replicas of the file.
	Owned    bool
	Instance string

	// owned by the table's owner
	ready, draining bool
	outstanding     int
	routed          int64
}

// NewMember makes a replica for a table. One of the file starts ready, and its
// first probe corrects that; a launched one does not.
func NewMember(name, url, instance string) *Member {
	_, address, _ := strings.Cut(url, "://")
	return &Member{Name: name, URL: url, Address: address, Owned: instance != "", Instance: instance, ready: instance == ""}
}

// Ready, Draining, Outstanding and Routed are the member's present facts.
func (m *Member) Ready() bool { return m.ready }

// Draining says that the member takes no new request.
func (m *Member) Draining() bool { return m.draining }

// Outstanding is how many requests the member runs.
func (m *Member) Outstanding() int { return m.outstanding }

// Routed is how many requests were sent there.
func (m *Member) Routed() int64 { return m.routed }

// Routable says that new requests may go there.
func (m *Member) Routable() bool { return m.ready && !m.draining }

// Miss is why a request did not go where its conversation was.
type Miss int

// The reasons of a miss.
const (
	// MissNew: there was no pin.
	MissNew Miss = iota + 1
	// MissExpired: the pin was older than the time to live.
	MissExpired
	// MissUnroutable: the pinned replica takes no requests.
	MissUnroutable
	// MissLoaded: the pinned replica had too many.
	MissLoaded
	missEnd
)

// String is the name as logs, metrics and tests have it.
func (m Miss) String() string {
	if m < MissNew || m >= missEnd {
		return "invalid"
	}
	return [...]string{"new", "expired", "unroutable", "loaded"}[m-1]
}

// Counts are the table's counters since its start.
type Counts struct {
	// Routed is every request that was sent somewhere, also to members that are
	// gone.
	Routed, Hits, Rejected int64
	// Misses is indexed by Miss.
	Misses [missEnd]int64
	// Evicted counts pins that were dropped because there were too many.
	Evicted int64
}

// AffinityOptions bound the pins and say how much a pin is worth.
type AffinityOptions struct {
	// TTL is how long a pin lives without use.
	TTL time.Duration
	// MaxSessions bounds the pins.
	MaxSessions int
	// Slack is how many more requests than the least loaded replica the pinned one
	// may have. At 0 a pin holds only at equal load.
	Slack int
}

// pin is where a conversation was last. Times are of the caller's one monotonic
// clock, counted from any point.
type pin struct {
	at   *Member
	seen time.Duration
}

// Table chooses replicas. It has no lock and no clock: its owner guards it and
// tells the time.
type Table struct {
	options  AffinityOptions
	members  []*Member
	rotation int
	// pins are in the order of their last use, which is the order in which they
	// expire.
	pins   *simplelru.LRU[string, pin]
	counts Counts
}

// NewTable makes an empty table. The error is a TTL or a bound that is not
// positive, or a negative slack.
func NewTable(o AffinityOptions) (*Table, error) {
	switch {
	case o.TTL <= 0:
		return nil, pd.Errorf(pd.CodeInvalidConfig, "make session table", "session_ttl_seconds must be positive")
	case o.MaxSessions <= 0:
		return nil, pd.Errorf(pd.CodeInvalidConfig, "make session table", "max_sessions must be positive")
	case o.Slack < 0:
		return nil, pd.Errorf(pd.CodeInvalidConfig, "make session table", "affinity_slack must be non-negative")
	}
	pins, err := simplelru.NewLRU[string, pin](o.MaxSessions, nil)
	if err != nil {
		return nil, pd.Errorf(pd.CodeInvalidConfig, "make session table", "%v", err)
	}
	return &Table{options: o, pins: pins}, nil
}

// Members are the replicas in table order, which the caller must not change.
func (t *Table) Members() []*Member { return t.members }

// Counts are the counters.
func (t *Table) Counts() Counts { return t.counts }

// Sessions is how many pins there are, expired ones that were not swept yet
// included.
func (t *Table) Sessions() int { return t.pins.Len() }

// Find gives the present member of a name, or nil.
func (t *Table) Find(name string) *Member {
	if i := slices.IndexFunc(t.members, func(m *Member) bool { return m.Name == name }); i >= 0 {
		return t.members[i]
	}
	return nil
}

// Add appends a member. The error is a name that is taken.
func (t *Table) Add(m *Member) error {
	if t.Find(m.Name) != nil {
		return pd.Errorf(pd.CodeInternal, "add replica", "the name %q is taken", m.Name)
	}
	t.members = append(t.members, m)
	return nil
}

// Remove takes a member out and drops its pins. Requests that still run there
// end on the member itself.
func (t *Table) Remove(m *Member) {
	i := slices.Index(t.members, m)
	if i < 0 {
		return
	}
	t.members = slices.Delete(t.members, i, i+1)
	t.rotation %= max(len(t.members), 1)
	m.ready = false
	t.dropPins(m)
}

// SetReady notes what a probe or a request has shown.
func (t *Table) SetReady(m *Member, ready bool) { m.ready = ready }

// Drain takes a member out of the choice and drops its pins at once, so that
// its conversations move with their next turn.
func (t *Table) Drain(m *Member) {
	m.draining = true
	t.dropPins(m)
}

func (t *Table) dropPins(m *Member) {
	for _, id := range t.pins.Keys() {
		if p, ok := t.pins.Peek(id); ok && p.at == m {
			t.pins.Remove(id)
		}
	}
}

// Choose gives a request of a conversation to a replica, pins the conversation
// there and counts the request as outstanding. The miss is 0 where it goes on where
// the conversation was. The caller calls Release exactly once, and Count once if the
// request does not go on to another replica. The error, when no replica is routable,
// has code pd.CodeNoPair.
func (t *Table) Choose(session string, now time.Duration) (*Member, Miss, error) {
	least, index := t.least()
	if least == nil {
		t.counts.Rejected++
		return nil, 0, pd.Errorf(pd.CodeNoPair, "choose replica", "no serving replica is currently routable")
	}
	chosen, miss := t.pinned(session, now)
	if miss == 0 && chosen.outstanding > least.outstanding+t.options.Slack {
		miss = MissLoaded
	}
	if miss != 0 {
		chosen = least
		t.rotation = (index + 1) % len(t.members)
	}
	t.setPin(session, pin{at: chosen, seen: now}, now)
	chosen.outstanding++
	return chosen, miss, nil
}

// Count counts a request as routed to the member that Choose gave for good.
func (t *Table) Count(m *Member, miss Miss) {
	m.routed++
	t.counts.Routed++
	if miss == 0 {
		t.counts.Hits++
	} else {
		t.counts.Misses[miss]++
	}
}

// least is the routable replica with the fewest requests, the next in turn
// among equals.
func (t *Table) least() (best *Member, at int) {
	count := len(t.members)
	for turn := range count {
		i := t.rotation + turn
		if i >= count {
			i -= count
		}
		if m := t.members[i]; m.Routable() && (best == nil || m.outstanding < best.outstanding) {
			best, at = m, i
		}
	}
	return best, at
}

// pinned is the routable replica that a conversation is pinned to; miss is 0
// then.
func (t *Table) pinned(session string, now time.Duration) (at *Member, miss Miss) {
	p, ok := t.pins.Peek(session)
	switch {
	case !ok:
		return nil, MissNew
	case now-p.seen > t.options.TTL:
		t.pins.Remove(session)
		return nil, MissExpired
	case !p.at.Routable():
		return nil, MissUnroutable
	}
	return p.at, 0
}

// setPin makes the pin the newest one.
func (t *Table) setPin(session string, p pin, now time.Duration) {
	if t.pins.Len() >= t.options.MaxSessions && !t.pins.Contains(session) {
		t.Sweep(now)
	}
	if t.pins.Add(session, p) {
		t.counts.Evicted++
	}
}

// Touch renews a pin at the end of an answer, which may have taken longer than a
// pin lives, if the conversation is still pinned to that very member.
func (t *Table) Touch(session string, m *Member, now time.Duration) {
	if p, ok := t.pins.Peek(session); ok && p.at == m {
		t.pins.Add(session, pin{at: m, seen: now})
	}
}

// Forget drops a pin.
func (t *Table) Forget(session string) { t.pins.Remove(session) }

// Sweep drops expired pins and says how many.
func (t *Table) Sweep(now time.Duration) int {
	for n := 0; ; n++ {
		_, p, ok := t.pins.GetOldest()
		if !ok || now-p.seen <= t.options.TTL {
			return n
		}
		t.pins.RemoveOldest()
	}
}

// Release ends a request on a member, which may be gone or nil.
func (t *Table) Release(m *Member) {
	if m != nil && m.outstanding > 0 {
		m.outstanding--
	}
}
