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
	// markVariable names a process's slot. What a server starts inherits it, and
	// a stop finds by it what has left the server's process group.
	markVariable = "PYPTO_FLEET_SLOT"
)

// Exit statuses of a remote launch. Any status but uncertainStatus says that
// nothing was started.
const (
	// uncertainStatus is ssh's own for a connection that failed, and the launch's
	// for a server that runs and could not be written down.
	uncertainStatus = 255
	missingStatus   = 127
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
	// Log is the file to which the command's output is appended, below Header and
	// the time; Pid is the file that names its process. Both are "" where the
	// command writes them itself, or needs none.
	Log, Header, Pid string
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

// LogPath is where the slot's start-up output goes, on the slot's machine.
func (l Launch) LogPath() string { return path.Join(l.Host.LogDir, l.Slot.Name+".log") }

// PidPath is the file that names the process that was launched: its number, its
// start time as in /proc, and the instance.
func (l Launch) PidPath() string { return path.Join(l.Host.LogDir, l.Slot.Name+".pid") }

// stoppedPath is the file with the instances that were stopped over ssh.
func (l Launch) stoppedPath() string { return path.Join(l.Host.LogDir, l.Slot.Name+".stopped") }

// mark is the variable that every process of the slot has. It holds a path,
// because two routers may use one slot's name on one machine.
func (l Launch) mark() string { return markVariable + "=" + l.PidPath() }

// serve is the server's command line.
func (l Launch) serve() []string {
	h := l.Host
	args := slices.Clone(h.Program)
	if h.Python != "" {
		args = []string{h.Python, "-m", pythonModule}
	}
	// 0.0.0.0, because the router may be elsewhere; the start-up log always,
	// because a failed load is diagnosed from nothing else.
	args = append(args, "--model", h.Model, "--devices", joinDevices(l.Slot.Devices), "--host", "0.0.0.0", "--port", strconv.Itoa(l.Slot.Port), "--show-startup-logs")
	if h.ServedModelName != "" {
		args = append(args, "--served-model-name", h.ServedModelName)
	}
	return append(args, h.ServeArgs...)
}

// launched is the server's command line behind the host's wrapper, which takes
// it as one argument.
func (l Launch) launched() []string {
	if len(l.Host.LaunchWrapper) == 0 {
		return l.serve()
	}
	return append(l.Slot.expandAll(l.Host.LaunchWrapper), quoteAll(l.serve()))
}

func (l Launch) environment() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(l.Host.Env)) {
		out = append(out, name+"="+l.Slot.expand(l.Host.Env[name]))
	}
	return out
}

// header is what a launch writes into the log behind the time. It leaves out the
// environment, which may be secret.
func (l Launch) header() string {
	return "launch " + l.Instance + ": " + quoteAll(l.launched())
}

// LaunchCommand starts the slot's replica and does not wait for it.
func (l Launch) LaunchCommand() Command {
	if l.Host.Local() {
		return Command{Args: l.launched(), Env: append(l.environment(), l.mark()), Dir: l.Host.Workdir, Log: l.LogPath(), Header: l.header(), Pid: l.PidPath()}
	}
	// The shell that starts the server has the mark, too: a stop ends a launch
	// that is under way.
	return Command{Args: l.Host.ssh(quoteAll([]string{"env", l.mark(), "sh", "-c", l.remoteLaunch()}))}
}

// remoteLaunch is one line for a remote shell. Each step stops the ones behind
// it, so that ssh's exit status tells: nohup before cd, for one, would skip the
// server and still succeed.
//
// A connection that has hung may deliver its line long after the router has
// given the launch up and stopped it, and even after the slot's next launch. So
// a stop writes down its instance before it looks for processes, and a launch
// looks there after it became visible: one of them sees the other.
func (l Launch) remoteLaunch() string {
	h, args, log := l.Host, l.launched(), quote(l.LogPath())
	run := append([]string{"nohup", "setsid"}, args...)
	if env := l.environment(); len(env) > 0 {
		run = slices.Concat([]string{"nohup", "setsid", "env"}, env, args)
	}
	steps := []string{
		"mkdir -p " + quote(h.LogDir),
		ours(h.LogDir),
		fmt.Sprintf("{ ! grep -qxF -e %s %s 2>/dev/null || { echo stopped meanwhile >&2; exit 1; }; }", quote(l.Instance), quote(l.stoppedPath())),
		fmt.Sprintf("printf '=== %%s %%s\\n' \"$(date -u +%%Y-%%m-%%dT%%H:%%M:%%SZ)\" %s >>%s", quote(l.header()), log),
	}
	if h.Workdir != "" {
		steps = append(steps, "cd "+quote(h.Workdir))
	}
	// What is not there would only be told by the log. A PATH of the file's own
	// may find what this shell's does not.
	needed := []string{"setsid", args[0]}
	if _, own := h.Env["PATH"]; own {
		needed = needed[:1]
	}
	for _, program := range needed {
		steps = append(steps, fmt.Sprintf("{ command -v %s >/dev/null || { printf '%%s: command not found\\n' %s >&2; exit %d; }; }", quote(program), quote(program), missingStatus))
	}
	// The start time tells this process from a later one with its number.
	steps = append(steps, fmt.Sprintf("{ %s >>%s 2>&1 </dev/null & start=$(sed 's/.*) //' /proc/$!/stat 2>/dev/null | cut -d' ' -f20); echo \"$! ${start:-0} %s\" >%s || exit %d; }",
		quoteAll(run), log, l.Instance, quote(l.PidPath()), uncertainStatus))
	return strings.Join(steps, " && ")
}

// ours is a step that goes on if a folder is the user's own and nobody else may
// write there: the pid file in it says what a stop ends.
func ours(folder string) string {
	return fmt.Sprintf("{ { [ -O %[1]s ] && [ -z \"$(find %[1]s/. -maxdepth 0 -perm -2)\" ]; } || { echo log_dir is not this user\\'s alone >&2; exit 1; }; }", quote(folder))
}

// ReachCommand does nothing on the host, over ssh.
func (l Launch) ReachCommand() Command { return Command{Args: l.Host.ssh("true")} }

// Uncertain says that a launch command that ended with this status may have
// started something.
func (l Launch) Uncertain(status int) bool { return !l.Host.Local() && status == uncertainStatus }

// StopCommand ends the slot's replica. It exits 0 only when nothing of it is
// left, and also when there was nothing. The default one kills at half the grace
// and gives up at its end; a stop_command of the file is believed.
func (l Launch) StopCommand() Command {
	args := l.Slot.expandAll(l.Host.StopCommand)
	if len(args) == 0 {
		args = []string{"sh", "-c", l.stopScript()}
	}
	if l.Host.Local() {
		return Command{Args: args}
	}
	return Command{Args: l.Host.ssh(l.writeStopped() + " && " + quoteAll(args))}
}

// stoppedKept is how many instances of a slot are remembered as stopped: far
// more than can be launched while one connection hangs.
const stoppedKept = 100

// writeStopped writes the instance down before anything is looked for; see
// remoteLaunch.
func (l Launch) writeStopped() string {
	file, next := quote(l.stoppedPath()), quote(l.stoppedPath()+".new")
	return fmt.Sprintf("mkdir -p %s && { tail -n %d %s 2>/dev/null; echo %s; } >%s && mv %s %s", quote(l.Host.LogDir), stoppedKept, file, quote(l.Instance), next, next, file)
}

// LogCommand prints the end of the log of a host that is reached over ssh.
func (l Launch) LogCommand(limit int) Command {
	return Command{Args: l.Host.ssh(fmt.Sprintf("tail -c %d %s", limit, quote(l.LogPath())))}
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
