package reference

import (
	"encoding/binary"
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
)

// grammar is the start of a compiled constraint. It is immutable: any number of
// matchers walk it.
type grammar struct{ start *node }

// kind is what a node of a grammar takes in.
type kind int

const (
	literal  kind = iota + 1 // the bytes of text
	spoken                   // words of the vocabulary
	letters                  // small letters
	choice                   // nothing: goes on with any of branches
	finished                 // the end token
)

// node is one step of a grammar, a finite automaton whose steps know what comes
// after them.
type node struct {
	kind     kind
	text     string
	min, max int // spoken and letters; max < 0 is without bound
	branches []*node
	next     *node
}

// place is how far one way through a grammar has come.
type place struct {
	node *node
	at   int
}

// matcher follows a generation through a grammar, on every way that fits.
type matcher struct {
	places []place
	over   bool
}

func (g *grammar) matcher() *matcher {
	m := &matcher{}
	m.reach(g.start, 0)
	return m
}

// reach adds a place and all that can be reached from it without a token.
func (m *matcher) reach(n *node, at int) {
	switch {
	case n.kind == choice:
		for _, b := range n.branches {
			m.reach(b, 0)
		}
		return
	case n.kind == literal && at == len(n.text):
		m.reach(n.next, 0)
		return
	}
	if slices.Contains(m.places, place{n, at}) {
		return
	}
	if n.kind == finished || n.kind == literal || n.max < 0 || at < n.max {
		m.places = append(m.places, place{n, at})
	}
	if (n.kind == spoken || n.kind == letters) && at >= n.min {
		m.reach(n.next, 0)
	}
}

// accept takes one token in; false says that the grammar has no such way, and
// the matcher is where it was.
func (m *matcher) accept(t pd.Token) bool {
	if m.over {
		return false
	}
	before := m.places
	m.places = nil
	for _, p := range before {
		if !p.node.takes(p.at, t) {
			continue
		}
		if p.node.kind == finished {
			m.over = true
			return true
		}
		at := p.at + 1
		if p.node.max < 0 {
			at = min(at, p.node.min) // beyond its least there is nothing to count
		}
		m.reach(p.node, at)
	}
	if len(m.places) == 0 {
		m.places = before
		return false
	}
	return true
}

func (n *node) takes(at int, t pd.Token) bool {
	switch n.kind {
	case literal:
		return t == pd.Token(n.text[at])
	case spoken:
		return t >= firstWord && int(t-firstWord) < len(words)
	case letters:
		return t >= 'a' && t <= 'z'
	case finished:
		return t == tokenEnd
	}
	return false
}

// pick chooses among the tokens that the grammar allows. Every kind of step has
// the same weight, so that answers come to their end; free text is as long as
// without a grammar.
func (m *matcher) pick(v uint64) pd.Token {
	var steps []pd.Token
	speech, free := false, false
	for _, p := range m.places {
		switch p.node.kind {
		case literal:
			steps = append(steps, pd.Token(p.node.text[p.at]))
		case letters:
			steps = append(steps, 'a'+pd.Token(v/17%26))
		case finished:
			steps = append(steps, tokenEnd)
		case spoken:
			speech = true
			free = free || p.node.max < 0 && p.at > 0
		}
	}
	if free {
		return choose(v)
	}
	if speech {
		steps = append(steps, firstWord+pd.Token(v/endOneIn%uint64(len(words))))
	}
	if len(steps) == 0 {
		return tokenEnd
	}
	slices.Sort(steps)
	steps = slices.Compact(steps)
	return steps[v%uint64(len(steps))]
}

// value is the number behind the i-th token of this state of the chain.
func (c chain) value(i int) uint64 {
	n := c.next([]byte{byte(i)})
	return binary.LittleEndian.Uint64(n[:8])
}

// sampled is the i-th token of a chain, under the request's grammar if it has
// one.
func (r *request) sampled(c chain, i int) (pd.Token, error) {
	if r.matcher == nil {
		return c.token(i), nil
	}
	t := r.matcher.pick(c.value(i))
	if !r.matcher.accept(t) {
		return 0, pd.Errorf(pd.CodeInternal, "sample", "token %d is none that the grammar allows", t)
	}
	return t, nil
}

// firstToken is what prefill samples from its own pages, under the grammar if
// the request has one.
func (r *request) firstToken(digest [32]byte) (pd.Token, error) {
	if err := r.constrain(); err != nil {
		return 0, err
	}
	if r.matcher == nil {
		return firstToken(digest), nil
	}
	return r.sampled(chain{}.next(digest[:]), 0)
}

// constrain prepares a request's grammar; it is harmless to call it again.
func (r *request) constrain() error {
	if r.cont.Constraint == "" || r.matcher != nil {
		return nil
	}
	g, err := compile(r.cont.Constraint)
	if err != nil {
		return err
	}
	r.matcher = g.matcher()
	return nil
}

// takeSeed lets a request's grammar accept what prefill sampled. A parser that
// this engine does not write for would read the answer wrongly.
func (r *request) takeSeed(first pd.Token) error {
	if p := r.cont.OutputParser; p != "" && p != engine.ParserTagged {
		return pd.Errorf(pd.CodeUnsupported, "adopt", "the output parser %q is not this engine's", p)
	}
	if err := r.constrain(); err != nil {
		return err
	}
	if r.matcher != nil && !r.matcher.accept(first) {
		return pd.Errorf(pd.CodeIntegrity, "adopt", "the grammar refuses the first token %d", first)
	}
	return nil
}
