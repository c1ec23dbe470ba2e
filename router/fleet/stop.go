package fleet

import (
	_ "embed"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// stopText is the default stop.
//
//go:embed stop.sh
var stopText string

// stopScript signals the processes of the slot, waits for their end and kills at
// half the grace. They are, in this order:
//
//   - what has the slot's mark in its environment, and the session and process
//     group of the pid file, unless its process is another one by now. A leader
//     that has ended counts as long as one of its threads has not: it may hang in
//     a driver and hold its cards;
//   - where that is not the server itself, because a broker has started it: what
//     looks like the server by program and port. Such a process may be a
//     stranger's, so one of another slot, of another network (a container's), or
//     of an ssh to elsewhere is left alone.
//
// No process looks like the server by the text of this script: the pattern's
// first letter is written as a class.
func (l Launch) stopScript() string {
	name := pythonModule
	if l.Host.Python == "" {
		name = path.Base(l.Host.Program[len(l.Host.Program)-1])
	}
	if name = regexp.QuoteMeta(name); name[0] < utf8.RuneSelf && name[0] != '\\' {
		name = "[" + name[:1] + "]" + name[1:]
	}
	server, wrapped := "(.*/)?"+name, ""
	if len(l.Host.LaunchWrapper) > 0 {
		// A wrapper and its shells carry the command as one text.
		wrapped = fmt.Sprintf("(^|[/ '])%s'?( .*)? --port %d( |$)", name, l.Slot.Port)
	}
	seconds := int(max(l.Grace, 2*time.Second).Round(time.Second) / time.Second)
	return strings.NewReplacer(
		"PIDFILE", quote(l.PidPath()), "MARK", quote(l.mark()), "VARIABLE", markVariable, "SERVER", quote(server), "WRAPPED", quote(wrapped), "PORT", strconv.Itoa(l.Slot.Port),
		"HALF", strconv.Itoa(seconds/2), "GRACE", strconv.Itoa(seconds),
	).Replace(strings.TrimSpace(stopText))
}
