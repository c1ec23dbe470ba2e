package openai

import "slices"

// effortNone is the effort of a model that is not to think.
const effortNone = "none"

var efforts = []string{effortNone, "minimal", "low", "medium", "high", "xhigh", "max"}

func (r *reader) reasoningEffort(name string) error {
	effort, err := r.string(name)
	if err == nil && !slices.Contains(efforts, effort) {
		return invalid(name, "%s must be none, minimal, low, medium, high, xhigh or max, got %q", name, shown([]byte(effort)))
	}
	r.f.ReasoningEffort = effort
	return err
}

// templateKwargs reads the two spellings of the one switch that changes the form of
// an answer; what else a template takes is for the model that has it.
func (r *reader) templateKwargs(name string) error {
	return r.object(name, func(key string) error {
		if key != "enable_thinking" && key != "thinking" || r.d.PeekKind() == 'n' {
			return r.skip()
		}
		on, err := r.bool(name + "." + key)
		r.f.Thinking = &on
		return err
	})
}

func (r *reader) includeReasoning(name string) error {
	include, err := r.bool(name)
	r.f.HideReasoning = !include
	return err
}
