package control

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

const (
	// headerProof goes with each request: sender boot, receiver boot, counter and
	// MAC, joined by semicolons. headerAnswer goes with its answer.
	headerProof  = "X-PD-Proof"
	headerAnswer = "X-PD-Proof-Answer"
	// anyBoot stands for the receiver of a question for its descriptor, from which
	// its boot is learnt. Nothing else may be asked like that.
	anyBoot = "-"

	minSecretBytes = 32
	maxSecretBytes = 4096
	// windowCounters is how far calls may overtake each other.
	windowCounters = 1024
	// maxSenders bounds the boots that one life of a server hears. None is ever
	// forgotten, because what was forgotten could be said again; who has the
	// secret alone makes an entry.
	maxSenders = 16384
)

// Secret is what all routers and nodes of a deployment share. It keeps strangers
// from being heard or believed; it hides nothing.
type Secret struct{ key []byte }

// LoadSecret reads a file: 32 to 4,096 bytes, white space around them is dropped.
func LoadSecret(path string) (*Secret, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the control secret: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 2*maxSecretBytes))
	if err != nil {
		return nil, fmt.Errorf("read the control secret: %w", err)
	}
	key := bytes.TrimSpace(text)
	if len(key) < minSecretBytes || len(key) > maxSecretBytes {
		return nil, fmt.Errorf("read the control secret %s: it has %d bytes, want %d..%d", path, len(key), minSecretBytes, maxSecretBytes)
	}
	return &Secret{key: key}, nil
}

// mac authenticates parts, each with its length.
func (s *Secret) mac(parts ...string) string {
	h := hmac.New(sha256.New, s.key)
	for _, p := range parts {
		fmt.Fprintf(h, "%d:", len(p))
		io.WriteString(h, p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func digest(body []byte) string {
	d := sha256.Sum256(body)
	return string(d[:])
}

// proof is headerProof in parts.
type proof struct {
	sender, receiver string
	counter          uint64
	mac              string
}

func (p *proof) String() string {
	return p.sender + ";" + p.receiver + ";" + strconv.FormatUint(p.counter, 10) + ";" + p.mac
}

func parseProof(header string) (p proof, ok bool) {
	parts := strings.Split(header, ";")
	if len(parts) != 4 || len(header) > 3*pd.MaxIDBytes {
		return p, false
	}
	n, err := strconv.ParseUint(parts[2], 10, 64)
	p = proof{parts[0], parts[1], n, parts[3]}
	return p, err == nil && n > 0 && pd.CheckHexID("boot", p.sender) == nil
}

func (s *Secret) request(p *proof, method, path string, body []byte) string {
	return s.mac("request", p.sender, p.receiver, strconv.FormatUint(p.counter, 10), method, path, digest(body))
}

// answer binds an answer to the one request that it is for.
func (s *Secret) answer(request string, status int, body []byte) string {
	return s.mac("answer", request, strconv.Itoa(status), digest(body))
}

func equal(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }

// window is which counters of one sender were heard: a strictly increasing one
// of windowCounters below and with the highest. A counter is heard once.
type window struct {
	highest uint64
	seen    [windowCounters / 64]uint64
}

func (w *window) hear(n uint64) bool {
	bit := func(n uint64) (*uint64, uint64) {
		n %= windowCounters
		return &w.seen[n/64], 1 << (n % 64)
	}
	if n > w.highest {
		if n-w.highest >= windowCounters {
			w.seen = [windowCounters / 64]uint64{}
		} else {
			for i := w.highest + 1; i < n; i++ {
				word, mask := bit(i)
				*word &^= mask
			}
		}
		w.highest = n
		word, mask := bit(n)
		*word |= mask
		return true
	}
	if w.highest-n >= windowCounters {
		return false
	}
	word, mask := bit(n)
	if *word&mask != 0 {
		return false
	}
	*word |= mask
	return true
}

// guard checks the requests of a server.
type guard struct {
	// constant
	secret *Secret
	self   pd.BootID

	mu sync.Mutex
	// guarded by mu
	senders map[string]*window
}

func newGuard(secret *Secret, self pd.BootID) *guard {
	if secret == nil {
		return nil
	}
	return &guard{secret: secret, self: self, senders: map[string]*window{}}
}

// admit checks a request and gives its MAC, which the answer is bound to. A nil
// guard admits everything.
func (g *guard) admit(c *edge.Call, free bool) (mac string, err error) {
	if g == nil {
		return "", nil
	}
	refuse := func(text string) error { return pd.Errorf(pd.CodeUnauthorized, "check proof", "%s", text) }
	p, ok := parseProof(c.Header(headerProof))
	if !ok {
		return "", refuse("this node has a control secret, and the call carries no proof of it")
	}
	if !equal(p.mac, g.secret.request(&p, c.Method(), c.Target(), c.Body())) {
		return "", refuse("the caller has another control secret")
	}
	switch {
	case p.receiver == anyBoot && free:
		// Nothing changes however often it is said.
		return p.mac, nil
	case p.receiver != string(g.self):
		return p.mac, refuse("the call is for another life of this node")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.senders[p.sender]
	switch {
	case w == nil && len(g.senders) == maxSenders:
		return p.mac, refuse(fmt.Sprintf("this node has heard %d callers in one life; restart it", maxSenders))
	case w == nil:
		w = &window{}
		g.senders[p.sender] = w
	}
	if !w.hear(p.counter) {
		return p.mac, refuse("the call was heard before, or is too old")
	}
	return p.mac, nil
}

// sign adds the proof of an answer.
func (g *guard) sign(c *edge.Call, mac string, status int, body []byte) {
	if g != nil {
		c.SetHeader(headerAnswer, g.secret.answer(mac, status, body))
	}
}

// Signer makes the proofs of one process. All its clients share one, so that no
// counter is used twice.
type Signer struct {
	// constant
	secret *Secret
	self   string

	mu sync.Mutex
	// guarded by mu; an entry per address that was ever called.
	peers map[string]*receiver
	asked uint64 // questions for descriptors
}

// receiver is the life of a peer and how many calls it was sent.
type receiver struct {
	boot    pd.BootID
	counter uint64
}

// NewSigner makes a signer for this life of a process; nil without a secret.
func NewSigner(secret *Secret, self pd.BootID) *Signer {
	if secret == nil {
		return nil
	}
	return &Signer{secret: secret, self: string(self), peers: map[string]*receiver{}}
}

// hello signs a question for a descriptor.
func (s *Signer) hello(r edge.Request) (edge.Request, string) {
	s.mu.Lock()
	s.asked++
	p := proof{sender: s.self, receiver: anyBoot, counter: s.asked}
	s.mu.Unlock()
	return s.sign(r, p)
}

// knows says that a life was learnt at an address; none is forgotten.
func (s *Signer) knows(address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peers[address] != nil
}

// call signs a call to the life that is known at its address.
func (s *Signer) call(r edge.Request) (edge.Request, string) {
	s.mu.Lock()
	to := s.peers[r.Address]
	to.counter++
	p := proof{sender: s.self, receiver: string(to.boot), counter: to.counter}
	s.mu.Unlock()
	return s.sign(r, p)
}

func (s *Signer) sign(r edge.Request, p proof) (edge.Request, string) {
	p.mac = s.secret.request(&p, r.Method, r.Target, r.Body)
	r.Header = append(r.Header[:len(r.Header):len(r.Header)], edge.Field{Name: headerProof, Value: p.String()})
	return r, p.mac
}

// learn notes the life that answers at an address. A known one goes on counting.
func (s *Signer) learn(address string, boot pd.BootID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to := s.peers[address]; to == nil || to.boot != boot {
		s.peers[address] = &receiver{boot: boot}
	}
}

// verify refuses an answer without the right proof.
func (s *Signer) verify(t Target, mac string, a *edge.Response) error {
	bad := &pd.Error{Op: "check proof", Code: pd.CodeUnauthorized, Node: t.Node}
	switch given := a.Get(headerAnswer); {
	case given == "":
		bad.Text = "the answer carries no proof; has the node the control secret, too?"
	case !equal(given, s.secret.answer(mac, a.Status, a.Body)):
		bad.Text = "the answer has a wrong proof; has the node another control secret?"
	default:
		return nil
	}
	return bad
}
