// Package demo runs the main job on one machine: a router, prefill nodes and
// decode nodes as processes on loopback, one streaming chat through them, and a
// report of what moved.
//
// It starts one goroutine per child's output and one that owns the children;
// all have ended when Run returns.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Flags are those of the demo.
type Flags struct {
	Once      bool    `help:"Leave after one chat instead of staying up."`
	Nodes     string  `default:"1P1D" help:"How many prefill and decode nodes, such as 2P3D."`
	PLayout   string  `name:"p-layout" default:"dp4tp4" help:"Layout of prefill nodes: dpNtpM; both products are the ranks."`
	DLayout   string  `name:"d-layout" default:"dp4tp4" help:"Layout of decode nodes."`
	Prompt    string  `default:"Tell me about the Forbidden City." help:"What to ask."`
	Context   int     `default:"900" help:"Tokens of context put before the question, so that there is something to move."`
	MaxTokens int     `name:"max-tokens" default:"64" help:"Most tokens of the answer."`
	Prefill   float64 `name:"prefill-rate" default:"3000" help:"Imitated prompt tokens per second of a prefill node; 0 is as fast as possible."`
	Decode    float64 `name:"decode-rate" default:"12" help:"Imitated decode steps per second; 0 is as fast as possible."`
	Link      int64   `name:"link-rate" default:"2000000" help:"Imitated bytes per second of one rank's link; 0 is unlimited."`
	Dir       string  `help:"Folder for pd.json and logs (default: a new temporary folder, removed at the end)."`

	prefills, decodes int
	source, target    pd.Topology
}

var (
	nodesForm  = regexp.MustCompile(`^([1-9][0-9]?)[pP]([1-9][0-9]?)[dD]$`)
	layoutForm = regexp.MustCompile(`^dp([1-9][0-9]*)tp([1-9][0-9]*)$`)
)

// Check reports every defect of the flags and must precede Run.
func (f *Flags) Check() error {
	var all []error
	if m := nodesForm.FindStringSubmatch(f.Nodes); m != nil {
		f.prefills, _ = strconv.Atoi(m[1])
		f.decodes, _ = strconv.Atoi(m[2])
	} else {
		all = append(all, fmt.Errorf("--nodes %q: want a form such as 1P1D or 2P3D", f.Nodes))
	}
	layout := func(flag, text string, t *pd.Topology) {
		m := layoutForm.FindStringSubmatch(text)
		if m == nil {
			all = append(all, fmt.Errorf("%s %q: want a form such as dp4tp4 or dp16tp1", flag, text))
			return
		}
		dp, _ := strconv.Atoi(m[1])
		tp, _ := strconv.Atoi(m[2])
		*t = pd.Topology{Ranks: dp * tp, TP: tp}
		if err := t.Check(); err != nil {
			all = append(all, fmt.Errorf("%s %q: %w", flag, text, err))
		}
	}
	layout("--p-layout", f.PLayout, &f.source)
	layout("--d-layout", f.DLayout, &f.target)
	if f.Context < 0 || f.Context > 8000 {
		all = append(all, fmt.Errorf("--context %d: want 0..8000", f.Context))
	}
	if f.MaxTokens < 1 || f.MaxTokens > 4000 {
		all = append(all, fmt.Errorf("--max-tokens %d: want 1..4000", f.MaxTokens))
	}
	return errors.Join(all...)
}

// Run plays the demo until the context ends, or once.
func Run(ctx context.Context, f Flags, env []string, stdout, stderr io.Writer) (err error) {
	dir := f.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "pypto-pd-demo-"); err != nil {
			return fmt.Errorf("make a folder for logs: %w", err)
		}
		defer os.RemoveAll(dir)
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make --dir: %w", err)
	}
	plan, err := newPlan(f, dir)
	if err != nil {
		return err
	}
	children := newChildren(env)
	defer func() {
		fmt.Fprintln(stdout, "\nstopping: router, then prefill, then decode")
		err = errors.Join(err, children.stop())
	}()
	fmt.Fprintf(stdout, "starting %d prefill (%s), %d decode (%s) and the router on loopback\n", f.prefills, f.PLayout, f.decodes, f.DLayout)
	for _, p := range plan.processes {
		began := time.Now()
		fmt.Fprintf(stdout, "  %-16s ", p.label)
		if err := children.start(ctx, p); err != nil {
			fmt.Fprintln(stdout)
			return err
		}
		fmt.Fprintf(stdout, "ready after %4d ms  %s\n", time.Since(began).Milliseconds(), p.where)
	}
	fmt.Fprintf(stdout, "  %-16s ", "a pair")
	began := time.Now()
	if err := waitHealthy(ctx, plan.url); err != nil {
		fmt.Fprintln(stdout)
		return err
	}
	fmt.Fprintf(stdout, "ready after %4d ms  %s/health says ok\n\n", time.Since(began).Milliseconds(), plan.url)
	id, err := chat(ctx, f, plan.url, stdout)
	if err != nil {
		return err
	}
	if err := report(ctx, plan, id, stdout); err != nil {
		return err
	}
	if f.Once {
		return nil
	}
	fmt.Fprintf(stdout, "\nIt stays up; Ctrl-C ends it. Try:\n\n  curl -N %s/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"temperature\":0,\"max_tokens\":%d,\"stream\":true}'\n\n  curl %s/health\n  logs: %s\n",
		plan.url, modelName, f.Prompt, f.MaxTokens, plan.url, plan.logs)
	select {
	case <-ctx.Done():
		return nil
	case err := <-children.failed:
		return err
	}
}

// waitHealthy waits until the router has a pair.
func waitHealthy(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("the router found no healthy pair within 30 s"))
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		r, err := get(ctx, url+"/health")
		if err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func get(ctx context.Context, url string) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(q)
}

const modelName = "dsv4"

// contextText is what stands before the question.
func contextText(tokens int) string {
	const sentence = "The palace has many halls, gates and courtyards; each has a name and a story. "
	return strings.Repeat(sentence, tokens/len(sentence)+1)[:tokens]
}

// chat sends one streaming chat and prints it as it comes.
func chat(ctx context.Context, f Flags, url string, stdout io.Writer) (id string, err error) {
	messages := []map[string]string{{"role": "user", "content": f.Prompt}}
	if f.Context > 0 {
		messages = append([]map[string]string{{"role": "system", "content": contextText(f.Context)}}, messages...)
	}
	body, err := json.Marshal(map[string]any{
		"model": modelName, "messages": messages, "max_tokens": f.MaxTokens, "temperature": 0, "stream": true, "ignore_eos": true,
		"stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return "", err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(string(body)))
	if err != nil {
		return "", err
	}
	q.Header.Set("Content-Type", "application/json")
	began := time.Now()
	fmt.Fprintf(stdout, "user: (%d tokens of context) %s\n", f.Context, f.Prompt)
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return "", fmt.Errorf("send the chat: %w", err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(r.Body, 4096))
		return "", fmt.Errorf("the router answered %d: %s", r.StatusCode, b)
	}
	fmt.Fprint(stdout, "assistant: ")
	end, err := printEvents(r.Body, stdout, began)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(stdout, "\n\nfirst token after %d ms, done after %d ms, %d prompt and %d completion tokens, finish %q\n\n",
		end.first.Milliseconds(), time.Since(began).Milliseconds(), end.prompt, end.completion, end.finish)
	return r.Header.Get("X-Request-Id"), nil
}

// pathOf is a program of this project, which stands beside this one.
func pathOf(program string) (string, error) {
	if self, err := os.Executable(); err == nil {
		if path := filepath.Join(filepath.Dir(self), program); isFile(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not beside %s; run make build", program, filepath.Base(os.Args[0]))
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
