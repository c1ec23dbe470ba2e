package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hw-native-sys/pypto-pd/router/fleet"
)

// outputDelay is how long a command that has ended may leave its output open: an
// ssh with a shared connection leaves a process that holds it.
const outputDelay = time.Second

// failure is a command that did not succeed.
type failure struct {
	program string
	// begun says that the command ran; status is its exit status, -1 if it was
	// killed.
	begun  bool
	status int
	// why is set where the status does not tell.
	why    error
	output string
}

// Error implements error.
func (f *failure) Error() string {
	text := fmt.Sprintf("%s: exit status %d", f.program, f.status)
	if f.why != nil {
		text = fmt.Sprintf("%s: %v", f.program, f.why)
	}
	if f.output != "" {
		text += ": " + f.output
	}
	return text
}

// Unwrap implements errors.Unwrap.
func (f *failure) Unwrap() error { return f.why }

// run runs a command to its end, or kills it with all of its process group when
// the context ends. Standard output goes to out; nil keeps its end for the error.
// No command is shown in an error: it may hold values of variables.
func (l *Launcher) run(ctx context.Context, c fleet.Command, out io.Writer) *failure {
	env := c.Environ(l.o.Env)
	program, err := find(c.Args[0], env)
	if err != nil {
		return &failure{program: c.Args[0], why: err}
	}
	said := &tail{limit: tailMax}
	if out == nil {
		out = said
	}
	// Without a standard input nothing can wait for an answer.
	cmd := exec.CommandContext(ctx, program)
	cmd.Args, cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = c.Args, env, c.Dir, out, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = outputDelay
	err = cmd.Run()
	switch {
	case cmd.Process == nil:
		return &failure{program: c.Args[0], why: err}
	case cmd.ProcessState == nil:
		return &failure{program: c.Args[0], begun: true, status: -1, why: err}
	case cmd.ProcessState.Success():
		return nil // even if its output is still open, or its time ended meanwhile
	}
	f := &failure{program: c.Args[0], begun: true, status: cmd.ProcessState.ExitCode(), output: said.text()}
	if f.status < 0 {
		f.why = errors.New(cmd.ProcessState.String())
		if ctx.Err() != nil {
			f.why = fmt.Errorf("killed: %w", context.Cause(ctx))
		}
	}
	return f
}

// find looks a program up as env(1) does: in the PATH that it will run with.
func find(name string, env []string) (string, error) {
	if strings.ContainsRune(name, '/') {
		return name, nil
	}
	var path string
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v // of two the last holds, as in the process
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue // it would depend on where the router was started
		}
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", errors.New("command not found")
}

// tail keeps the last bytes that are written to it.
type tail struct {
	limit int
	kept  []byte
}

// Write implements io.Writer and never fails.
func (t *tail) Write(p []byte) (int, error) {
	if len(t.kept)+len(p) > 2*t.limit {
		// Rarely, so that a chatty command is not copied byte by byte.
		t.kept = append(t.kept[:0], t.kept[max(0, len(t.kept)-t.limit):]...)
	}
	t.kept = append(t.kept, p[max(0, len(p)-t.limit):]...)
	return len(p), nil
}

func (t *tail) bytes() []byte { return t.kept[max(0, len(t.kept)-t.limit):] }

// text is the end as people read it.
func (t *tail) text() string {
	return strings.TrimSpace(strings.ToValidUTF8(string(t.bytes()), ""))
}
