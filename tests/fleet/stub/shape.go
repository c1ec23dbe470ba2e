package stub

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
)

// shape is how the answers of one generation look.
type shape struct {
	config         Config
	id             string
	chat           bool
	object, stream string
}

func newShape(path string, c Config) shape {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	if strings.Contains(path, "chat") {
		return shape{config: c, id: "chatcmpl-" + hex.EncodeToString(b[:]), chat: true, object: "chat.completion", stream: "chat.completion.chunk"}
	}
	return shape{config: c, id: "cmpl-" + hex.EncodeToString(b[:]), object: "text_completion", stream: "text_completion"}
}

func (s shape) envelope(kind string, choices []object) object {
	return object{"id": s.id, "object": kind, "model": s.config.Model, "served_by": s.config.Name, "choices": choices}
}

func (s shape) word(i int) string { return fmt.Sprintf(" w%d", i) }

// finish is null until the last piece.
func (s shape) finish(i int) any {
	if i == s.config.Tokens-1 {
		return "length"
	}
	return nil
}

func (s shape) piece(i int) object {
	choice := object{"index": 0, "finish_reason": s.finish(i)}
	if s.chat {
		choice["delta"] = object{"role": "assistant", "content": s.word(i)}
	} else {
		choice["text"] = s.word(i)
	}
	return s.envelope(s.stream, []object{choice})
}

func (s shape) counts() object {
	return object{"prompt_tokens": 1, "completion_tokens": s.config.Tokens, "total_tokens": 1 + s.config.Tokens}
}

// usage is the last event before [DONE].
func (s shape) usage() object {
	out := s.envelope(s.stream, []object{})
	out["usage"] = s.counts()
	return out
}

func (s shape) whole() object {
	var text strings.Builder
	for i := range s.config.Tokens {
		text.WriteString(s.word(i))
	}
	choice := object{"index": 0, "finish_reason": "length"}
	if s.chat {
		choice["message"] = object{"role": "assistant", "content": text.String()}
	} else {
		choice["text"] = text.String()
	}
	out := s.envelope(s.object, []object{choice})
	out["usage"] = s.counts()
	return out
}
