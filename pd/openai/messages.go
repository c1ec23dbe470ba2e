package openai

import (
	"strconv"
	"strings"
)

func (r *reader) messages(param string) error {
	count := 0
	err := r.array(param, func(i int) error {
		if count = i + 1; count > maxMessages {
			return invalid(param, "%s holds more than %d messages", param, maxMessages)
		}
		if !r.full {
			if r.d.PeekKind() != '{' {
				return r.want(indexed(param, i), "an object")
			}
			return r.skip()
		}
		return r.message(indexed(param, i))
	})
	if err == nil && count == 0 {
		return invalid(param, "%s is empty", param)
	}
	r.f.Prompts = 1
	return err
}

func (r *reader) message(param string) error {
	// The turn stands in the list while it is read, for its calls.
	r.f.Messages = append(r.f.Messages, Message{})
	m := &r.f.Messages[len(r.f.Messages)-1]
	hasContent := false
	err := r.object(param, func(name string) (err error) {
		switch name {
		case "role":
			m.Role, err = r.string(param + ".role")
			return err
		case "content":
			hasContent = true
			m.Content, err = r.content(param + ".content")
			return err
		case "reasoning", "reasoning_content":
			// Two spellings of one thing; what is no text is none.
			if r.d.PeekKind() == '"' {
				m.Reasoning, err = r.string(param + "." + name)
				return err
			}
		case "tool_calls":
			if r.d.PeekKind() == '[' {
				m.ToolCalls = nil // of two lists the last counts
				return r.array(param+".tool_calls", func(i int) error { return r.toolCall(indexed(param+".tool_calls", i)) })
			}
		case "tool_call_id":
			if r.d.PeekKind() == '"' {
				m.ToolCallID, err = r.string(param + ".tool_call_id")
				return err
			}
		}
		return r.skip()
	})
	switch {
	case err != nil:
		return err
	case m.Role == "":
		return invalid(param+".role", "%s.role is missing", param)
	case !hasContent && len(m.ToolCalls) == 0:
		return invalid(param+".content", "%s.content is missing", param)
	}
	return nil
}

// content reads a string, null, or an array of parts of type text.
func (r *reader) content(param string) (string, error) {
	switch r.d.PeekKind() {
	case '"':
		return r.string(param)
	case 'n':
		_, err := r.d.ReadToken()
		return "", err
	case '[':
	default:
		return "", r.want(param, "a string or an array of parts")
	}
	var texts []string
	err := r.array(param, func(i int) error {
		kind, text := "", ""
		at := indexed(param, i)
		err := r.object(at, func(name string) (err error) {
			switch name {
			case "type":
				kind, err = r.string(at + ".type")
			case "text":
				text, err = r.string(at + ".text")
			default:
				err = r.skip()
			}
			return err
		})
		if err == nil && kind != "text" {
			return unsupported(at+".type", "%s.type must be text, got %s", at, strconv.Quote(shown([]byte(kind))))
		}
		texts = append(texts, text)
		return err
	})
	return strings.Join(texts, "\n"), err
}
