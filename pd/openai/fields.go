package openai

import (
	"maps"
	"math"

	"github.com/hw-native-sys/pypto-pd/pd"
)

type fieldReader func(r *reader, name string) error

// The fields that are understood; all others are passed over.
var (
	completionFields = merge(commonFields, map[string]fieldReader{
		"prompt":   (*reader).prompt,
		"echo":     flag(func(f *Facts) *bool { return &f.Echo }),
		"best_of":  integer(1, 128, func(f *Facts) *int { return &f.BestOf }),
		"logprobs": (*reader).logprobsCount,
		"suffix":   (*reader).suffix,
	})
	chatFields = merge(commonFields, map[string]fieldReader{
		"messages":              (*reader).messages,
		"logprobs":              flag(func(f *Facts) *bool { return &f.Logprobs }),
		"max_completion_tokens": integer(1, pd.MaxModelTokens, func(f *Facts) *int { return &f.completionLimit }),
		"tools":                 (*reader).tools,
		"tool_choice":           (*reader).toolChoice,
		"parallel_tool_calls":   (*reader).parallelToolCalls,
		"top_logprobs":          (*reader).topLogprobs,
		"reasoning_effort":      (*reader).reasoningEffort,
		"chat_template_kwargs":  (*reader).templateKwargs,
		"include_reasoning":     (*reader).includeReasoning,
		"functions":             (*reader).unserved,
		"function_call":         (*reader).unserved,
		"audio":                 (*reader).unserved,
	})
)

var commonFields = map[string]fieldReader{
	"model":             text(func(f *Facts) *string { return &f.Model }),
	"max_tokens":        integer(1, pd.MaxModelTokens, func(f *Facts) *int { return &f.MaxTokens }),
	"min_tokens":        integer(0, pd.MaxModelTokens, func(f *Facts) *int { return &f.MinTokens }),
	"temperature":       optional(0, 2, func(f *Facts) **float64 { return &f.Temperature }),
	"top_p":             optional(0, 1, func(f *Facts) **float64 { return &f.TopP }),
	"presence_penalty":  decimal(-2, 2, func(f *Facts) *float64 { return &f.PresencePenalty }),
	"frequency_penalty": decimal(-2, 2, func(f *Facts) *float64 { return &f.FrequencyPenalty }),
	"seed":              (*reader).seed,
	"stop":              (*reader).stop,
	"stream":            flag(func(f *Facts) *bool { return &f.Stream }),
	"stream_options":    (*reader).streamOptions,
	"n":                 integer(1, 128, func(f *Facts) *int { return &f.N }),
	"ignore_eos":        flag(func(f *Facts) *bool { return &f.IgnoreEOS }),
	"user":              text(func(f *Facts) *string { return &f.User }),
	"logit_bias":        (*reader).logitBias,
	"response_format":   (*reader).responseFormat,
	// What bounds or multiplies an answer in other engines: to pass over it would
	// be a wrong answer.
	"use_beam_search":    (*reader).unserved,
	"prompt_logprobs":    (*reader).unserved,
	"structured_outputs": (*reader).unserved,
	"guided_json":        (*reader).unserved,
	"guided_regex":       (*reader).unserved,
	"guided_choice":      (*reader).unserved,
	"guided_grammar":     (*reader).unserved,
}

func merge(a, b map[string]fieldReader) map[string]fieldReader {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

func text(field func(*Facts) *string) fieldReader {
	return func(r *reader, name string) (err error) {
		*field(r.f), err = r.string(name)
		return err
	}
}

func flag(field func(*Facts) *bool) fieldReader {
	return func(r *reader, name string) (err error) {
		*field(r.f), err = r.bool(name)
		return err
	}
}

func integer(low, high int64, field func(*Facts) *int) fieldReader {
	return func(r *reader, name string) error {
		n, err := r.int(name, low, high)
		*field(r.f) = int(n)
		return err
	}
}

func decimal(low, high float64, field func(*Facts) *float64) fieldReader {
	return func(r *reader, name string) (err error) {
		*field(r.f), err = r.float(name, low, high)
		return err
	}
}

func optional(low, high float64, field func(*Facts) **float64) fieldReader {
	return func(r *reader, name string) error {
		x, err := r.float(name, low, high)
		*field(r.f) = &x
		return err
	}
}

func (r *reader) seed(name string) error {
	n, err := r.int(name, math.MinInt64, math.MaxInt64)
	r.f.Seed = &n
	return err
}

func (r *reader) stop(name string) (err error) {
	r.f.Stop, err = r.stops(name)
	return err
}

// logprobsCount: 0 asks for the log probability of the chosen token, too.
func (r *reader) logprobsCount(name string) error {
	r.f.Logprobs = true
	_, err := r.int(name, 0, 1000)
	return err
}

func (r *reader) suffix(name string) error {
	s, err := r.string(name)
	r.f.Suffix = s != ""
	return err
}

func (r *reader) streamOptions(name string) error {
	return r.object(name, func(option string) (err error) {
		if option != "include_usage" || r.d.PeekKind() == 'n' {
			return r.skip()
		}
		r.f.IncludeUsage, err = r.bool(name + ".include_usage")
		return err
	})
}

func (r *reader) logitBias(name string) error {
	return r.object(name, func(string) error {
		r.f.LogitBias = true
		return r.skip()
	})
}
