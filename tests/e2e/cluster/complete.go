package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
)

// Completion is one request. Its output has exactly Max tokens unless Fields
// say otherwise.
type Completion struct {
	// Prompt is the text; each of its bytes is one token. With Chat it is what
	// the user says.
	Prompt string
	Max    int
	Stream bool
	Chat   bool
	// Fields are set in the body over what stands there; a nil removes one.
	Fields map[string]any
}

// Path is where the request goes.
func (q Completion) Path() string {
	if q.Chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// Body is the request as it is sent.
func (q Completion) Body() []byte {
	fields := map[string]any{"model": Model, "max_tokens": q.Max, "temperature": 0, "ignore_eos": true, "stream": q.Stream}
	if q.Stream {
		fields["stream_options"] = map[string]any{"include_usage": true}
	}
	if q.Chat {
		fields["messages"] = []map[string]string{{"role": "user", "content": q.Prompt}}
	} else {
		fields["prompt"] = q.Prompt
	}
	maps.Copy(fields, q.Fields)
	maps.DeleteFunc(fields, func(_ string, v any) bool { return v == nil })
	b, err := json.Marshal(fields)
	if err != nil {
		panic(err) // a test's own fields
	}
	return b
}

// Answer is what came back.
type Answer struct {
	Status int
	Header http.Header
	Raw    []byte
	// ID, Text, Finish and the counts are those of a generation.
	ID               string
	Text             string
	Finish           string
	PromptTokens     int
	CompletionTokens int
	CachedTokens     int
	// Failure is the error of the body, or of the stream's error event.
	Failure *Failure
}

// Failure is the error object of the API.
type Failure struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Param   string `json:"param"`
	Code    any    `json:"code"`
}

// Error implements error.
func (f *Failure) Error() string { return fmt.Sprintf("%v: %s", f.Code, f.Message) }

// Complete sends a request and reads the whole answer. The error says that no
// answer came or that its form is not the API's; a refusal is an answer.
func Complete(ctx context.Context, url string, q Completion) (Answer, error) {
	r, err := Send(ctx, url, q)
	if err != nil {
		return Answer{}, err
	}
	return Read(r)
}

// Read reads an answer whose head is there, and closes its body. The error is
// Complete's.
func Read(r *http.Response) (Answer, error) {
	defer r.Body.Close()
	a := Answer{Status: r.StatusCode, Header: r.Header}
	var err error
	if a.Raw, err = io.ReadAll(r.Body); err != nil {
		return a, err
	}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
		return a, a.readEvents()
	}
	return a, a.readWhole()
}

// Send sends a request; the caller closes the body.
func Send(ctx context.Context, url string, q Completion) (*http.Response, error) {
	m, err := http.NewRequestWithContext(ctx, http.MethodPost, url+q.Path(), bytes.NewReader(q.Body()))
	if err != nil {
		return nil, err
	}
	m.Header.Set("Content-Type", "application/json")
	return client.Do(m)
}

// answerBody is every shape of an answer, whole and chunk.
type answerBody struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Failure *Failure `json:"error"`
	Choices []struct {
		Text    string `json:"text"`
		Delta   part   `json:"delta"`
		Message part   `json:"message"`
		Finish  string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

type part struct {
	Content string `json:"content"`
}

func (a *Answer) take(b *answerBody) error {
	if a.ID != "" && b.ID != a.ID && b.Failure == nil {
		return fmt.Errorf("two ids in one answer: %q and %q", a.ID, b.ID)
	}
	a.ID, a.Failure = b.ID, b.Failure
	for _, c := range b.Choices {
		a.Text += c.Text + c.Delta.Content + c.Message.Content
		if c.Finish != "" && a.Finish != "" {
			return errors.New("two finish reasons in one answer")
		}
		a.Finish += c.Finish
	}
	if u := b.Usage; u != nil {
		if a.CompletionTokens > 0 {
			return errors.New("two usages in one answer")
		}
		a.PromptTokens, a.CompletionTokens, a.CachedTokens = u.Prompt, u.Completion, u.Details.Cached
	}
	return nil
}

func (a *Answer) readWhole() error {
	var b answerBody
	if err := json.Unmarshal(a.Raw, &b); err != nil {
		return fmt.Errorf("answer %d %.200q: %w", a.Status, a.Raw, err)
	}
	return a.take(&b)
}

// done ends a stream.
const done = "[DONE]"

func (a *Answer) readEvents() error {
	lines := bufio.NewScanner(bytes.NewReader(a.Raw))
	lines.Buffer(nil, 1<<20)
	over := false
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case lines.Text() == "":
			continue
		case over || !ok || a.Failure != nil && data != done:
			return fmt.Errorf("line %q after the end, or no event:\n%s", lines.Text(), a.Raw)
		case data == done:
			over = true
			continue
		}
		var b answerBody
		if err := json.Unmarshal([]byte(data), &b); err != nil {
			return fmt.Errorf("event %q: %w", data, err)
		}
		if err := a.take(&b); err != nil {
			return fmt.Errorf("%w:\n%s", err, a.Raw)
		}
	}
	if !over {
		return fmt.Errorf("the stream ended without %s:\n%s", done, a.Raw)
	}
	return nil
}

// MustComplete is Complete for a request that has to succeed with exactly the
// tokens that were asked for.
func MustComplete(t testing.TB, url string, q Completion) Answer {
	t.Helper()
	a, err := Complete(t.Context(), url, q)
	if err == nil {
		err = a.Check(q)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Check reports in what an answer differs from a full success.
func (a Answer) Check(q Completion) error {
	switch {
	case a.Status != 200 || a.Failure != nil:
		return fmt.Errorf("answer %d: %s", a.Status, a.Raw)
	case a.Finish != "length" || a.CompletionTokens != q.Max:
		return fmt.Errorf("the generation ended with %q after %d tokens, want %d: %s", a.Finish, a.CompletionTokens, q.Max, a.Raw)
	case !q.Chat && q.Fields["prompt"] == nil && a.PromptTokens != len(q.Prompt):
		return fmt.Errorf("the prompt counts as %d tokens, want %d", a.PromptTokens, len(q.Prompt))
	}
	return nil
}

// Prompt is a text of n tokens that begins with seed, so that prompts of
// different seeds share no prefix.
func Prompt(seed string, n int) string {
	const letters = "the quick brown fox jumps over the lazy dog; "
	return (seed + strings.Repeat(letters, n/len(letters)+1))[:n]
}
