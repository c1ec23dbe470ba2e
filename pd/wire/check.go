package wire

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// check collects the first thing that is wrong with a message.
type check struct {
	message Message
	handoff pd.HandoffID
	// list and index name the element that is being checked, if any; they are
	// put into words only when something is wrong.
	list  string
	index int
	err   *pd.Error
}

// each runs f for every index of a list until something is wrong.
func (c *check) each(list string, n int, f func(i int)) {
	c.list = list
	for c.index = 0; c.index < n && c.err == nil; c.index++ {
		f(c.index)
	}
	c.list = ""
}

func (c *check) result() error {
	if c.err == nil {
		return nil
	}
	return c.err
}

func (c *check) refuse(code pd.Code, format string, args ...any) {
	if c.err == nil {
		text := fmt.Sprintf(format, args...)
		if c.list != "" {
			text = fmt.Sprintf("%s[%d].%s", c.list, c.index, text)
		}
		c.err = &pd.Error{Op: "check " + Name(c.message), Code: code, Text: text}
		c.err.Handoff = c.handoff
	}
}

// fail refuses what err complains of, and does nothing without one.
func (c *check) fail(err error) {
	if err != nil {
		c.refuse(pd.CodeInvalidRequest, "%v", err)
	}
}

func (c *check) fence(f *pd.Fence) {
	if err := f.Check(); err != nil {
		c.refuse(pd.CodeInvalidRequest, "fence: %v", err)
		return
	}
	c.handoff = f.Handoff
}

func (c *check) peer(what string, p pd.Peer) {
	c.fail(pd.CheckID(what+".node", string(p.Node)))
	c.fail(pd.CheckHexID(what+".boot", string(p.Boot)))
}

func (c *check) id(what, id string) { c.fail(pd.CheckID(what, id)) }

func (c *check) between(what string, v, low, high int64) {
	if v < low || v > high {
		c.refuse(pd.CodeInvalidRequest, "%s is %d, want %d..%d", what, v, low, high)
	}
}

// length bounds a list.
func (c *check) length(what string, n, low, high int) {
	if n < low || n > high {
		c.refuse(pd.CodeInvalidRequest, "%s has %d elements, want %d..%d", what, n, low, high)
	}
}

// text bounds a string for people.
func (c *check) text(what, s string, low, high int) {
	if len(s) < low || len(s) > high {
		c.refuse(pd.CodeInvalidRequest, "%s has %d bytes, want %d..%d", what, len(s), low, high)
	}
}

func (c *check) digest(what, s string) {
	if len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" {
		return
	}
	c.refuse(pd.CodeInvalidRequest, "%s must be 64 lower-case hex digits", what)
}

func (c *check) address(what, s string) {
	_, port, err := net.SplitHostPort(s)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || n == 0 || len(s) > pd.MaxIDBytes+8 {
		c.refuse(pd.CodeInvalidRequest, "%s must be host:port", what)
	}
}

// decimal checks a number that travels as a string.
func (c *check) decimal(what, s string) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 0) || v > 1e9 || len(s) > 32 || strings.Trim(s, "0123456789.eE+-") != "" {
		c.refuse(pd.CodeInvalidRequest, "%s must be a decimal number that is not negative", what)
	}
}

func (c *check) results(results []pd.UnitResult) {
	c.length("results", len(results), 0, pd.MaxResults)
	c.each("results", len(results), func(i int) {
		r := &results[i]
		c.between("chunk", int64(r.Chunk), 0, pd.MaxPromptTokens)
		c.between("source", int64(r.Source), 0, pd.MaxRanks-1)
		c.between("target", int64(r.Target), 0, pd.MaxRanks-1)
		c.id("component", string(r.Component))
		c.text("detail", r.Detail, 0, maxText)
	})
}
