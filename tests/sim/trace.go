package sim

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// trace is the event log: one line of columns per event. Every line goes into
// the digest; it is written only where somebody reads it.
type trace struct {
	out    io.Writer // nil: nobody reads
	digest uint64
	lines  int
	buf    []byte
}

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func newTrace(out io.Writer) *trace { return &trace{out: out, digest: fnvOffset} }

// line notes one event: when, who, what, of which handoff, and details.
func (t *trace) line(now time.Duration, who, what string, h pd.HandoffID, format string, args ...any) {
	b := fmt.Appendf(t.buf[:0], "%12.6f  %-4s %-22s %-8s ", now.Seconds(), who, what, short(h))
	b = fmt.Appendf(b, format, args...)
	b = append(b, '\n')
	t.buf = b
	t.lines++
	d := t.digest
	for _, c := range b {
		d = (d ^ uint64(c)) * fnvPrime
	}
	t.digest = d
	if t.out != nil {
		t.out.Write(b) // a log that cannot be written changes nothing
	}
}

// short is how a handoff is called in the log.
func short(h pd.HandoffID) string {
	if h == "" {
		return "-"
	}
	return string(h[:min(8, len(h))])
}

// lastLines keeps the end of a log.
type lastLines struct {
	lines []string
	limit int
}

func (l *lastLines) Write(b []byte) (int, error) {
	l.lines = append(l.lines, string(b))
	if n := len(l.lines); n > 2*l.limit {
		l.lines = append([]string(nil), l.lines[n-l.limit:]...)
	}
	return len(b), nil
}

func (l *lastLines) String() string {
	return strings.Join(l.lines[max(0, len(l.lines)-l.limit):], "")
}
