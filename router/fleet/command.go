package fleet

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// sshConnect bounds ssh's own dialling.
	sshConnect = 10 * time.Second
	// pythonModule is the upstream server's entry point.
	pythonModule = "pypto_serving.cli"
)

// Command is one process that the router starts for a slot.
type Command struct {
	// Args begins with the program; no local shell sees them.
	Args []string
	// Env are further variables as K=V, sorted; over ssh they are part of Args.
	// They may be secret and are not logged.
	Env []string
	// Dir is the working directory, "" for the router's own.
	Dir string
	// Log takes the command's output; "" where the command writes it itself.
	Log string
}

// Environ is what the process inherits with its own variables: everything but
// the admin token.
func (c Command) Environ(inherited []string) []string {
	var out []string
	for _, kv := range inherited {
		if name, _, _ := strings.Cut(kv, "="); name != TokenVariable {
			out = append(out, kv)
		}
	}
	return append(out, c.Env...)
}

func (s Slot) logPath(h *Host) string { return path.Join(h.LogDir, s.Name+".log") }
func (s Slot) pidPath(h *Host) string { return path.Join(h.LogDir, s.Name+".pid") }

// serve is the server's command line.
func (s Slot) serve(h *Host) []string {
	args := slices.Clone(h.Program)
	if h.Python != "" {
		args = []string{h.Python, "-m", pythonModule}
	}
	// 0.0.0.0, because the router may be elsewhere; the start-up log always,
	// because a failed load is diagnosed from nothing else.
	args = append(args, "--model", h.Model, "--devices", joinDevices(s.Devices), "--host", "0.0.0.0", "--port", strconv.Itoa(s.Port), "--show-startup-logs")
	if h.ServedModelName != "" {
		args = append(args, "--served-model-name", h.ServedModelName)
	}
	return append(args, h.ServeArgs...)
}

// launched is the server's command line behind the host's wrapper, which takes
// it as one argument.
func (s Slot) launched(h *Host) []string {
	if len(h.LaunchWrapper) == 0 {
		return s.serve(h)
	}
	return append(s.expandAll(h.LaunchWrapper), quoteAll(s.serve(h)))
}

func (s Slot) environment(h *Host) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(h.Env)) {
		out = append(out, name+"="+s.expand(h.Env[name]))
	}
	return out
}

// LaunchCommand starts the slot's replica. instance names this life of the slot
// in its log and pid file.
func (c *Config) LaunchCommand(s Slot, instance string) Command {
	h := &c.Hosts[s.Host]
	if h.Local() {
		return Command{Args: s.launched(h), Env: s.environment(h), Dir: h.Workdir, Log: s.logPath(h)}
	}
	return Command{Args: h.ssh(s.remoteLaunch(h, instance))}
}

// remoteLaunch is one line for the remote shell. Each step stops the ones behind
// it, so that ssh's exit status tells: nohup before cd, for one, would skip the
// server and still succeed.
func (s Slot) remoteLaunch(h *Host, instance string) string {
	args := s.launched(h)
	log, pid := quote(s.logPath(h)), quote(s.pidPath(h))
	header := fmt.Sprintf("=== launch %s: %s", instance, quoteAll(args))
	run := append([]string{"nohup", "setsid"}, args...)
	if env := s.environment(h); len(env) > 0 {
		run = slices.Concat([]string{"nohup", "setsid", "env"}, env, args)
	}
	steps := []string{"mkdir -p " + quote(h.LogDir), "printf '%s\\n' " + quote(header) + " >>" + log}
	if h.Workdir != "" {
		steps = append(steps, "cd "+quote(h.Workdir))
	}
	// The start time tells this process from a later one with its number.
	steps = append(steps, fmt.Sprintf("{ %s >>%s 2>&1 </dev/null & echo \"$! $(sed 's/.*) //' /proc/$!/stat | cut -d' ' -f20) %s\" >%s; }", quoteAll(run), log, instance, pid))
	return strings.Join(steps, " && ")
}

// StopCommand ends the slot's replica. It exits 0 only when nothing of it is
// left, and also when there was nothing. The default one kills at half the grace
// and gives up at its end.
func (c *Config) StopCommand(s Slot, grace time.Duration) Command {
	h := &c.Hosts[s.Host]
	args := s.expandAll(h.StopCommand)
	if len(args) == 0 {
		args = []string{"sh", "-c", s.stopScript(h, grace)}
	}
	if h.Local() {
		return Command{Args: args}
	}
	return Command{Args: h.ssh(quoteAll(args))}
}

// pattern matches the command line of the slot's server, and of a wrapper that
// carries it as text, by port and not by model. It does not match itself.
func (s Slot) pattern(h *Host) string {
	name := pythonModule
	if h.Python == "" {
		name = path.Base(h.Program[len(h.Program)-1])
	}
	return fmt.Sprintf("[%s]%s'?( .*)? --port %d( |$)", name[:1], regexp.QuoteMeta(name[1:]), s.Port)
}

// stopScript signals the process group of the pid file, if that process is still
// the one that was launched, and everything that matches the pattern; waits for
// their end, and kills at half the grace.
func (s Slot) stopScript(h *Host, grace time.Duration) string {
	seconds := int(max(grace, 2*time.Second).Round(time.Second) / time.Second)
	return strings.NewReplacer("PIDFILE", quote(s.pidPath(h)), "PATTERN", quote(s.pattern(h)), "HALF", strconv.Itoa(seconds/2), "GRACE", strconv.Itoa(seconds)).Replace(
		`group=; if read -r pid start rest 2>/dev/null <PIDFILE; then
now=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d' ' -f20)
if [ -z "$now" ] || [ "$now" = "$start" ]; then group=$pid; fi; fi
left() {
found=$(pgrep -f -- PATTERN); [ $? -le 1 ] || exit 2
if [ -n "$group" ]; then more=$(pgrep -g "$group"); [ $? -le 1 ] || exit 2; found="$found $more"; fi
set -- $found; found=$*; }
i=0; while :; do left; [ -n "$found" ] || exit 0
[ $i -lt GRACE ] || exit 1
if [ $i -eq 0 ]; then kill -TERM $found 2>/dev/null; elif [ $i -eq HALF ]; then kill -KILL $found 2>/dev/null; fi
i=$((i+1)); sleep 1; done`)
}

// ssh wraps one line for the remote shell.
func (h *Host) ssh(payload string) []string {
	args := []string{"ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", fmt.Sprintf("ConnectTimeout=%d", int(sshConnect/time.Second))}
	if h.IdentityFile != "" {
		args = append(args, "-i", h.IdentityFile, "-o", "IdentitiesOnly=yes")
	}
	return append(args, "--", h.SSH, payload)
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// quote makes one word for a POSIX shell.
func quote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func quoteAll(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = quote(w)
	}
	return strings.Join(out, " ")
}
