package openai

import (
	"fmt"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Paths of the API.
const (
	PathCompletions = "/v1/completions"
	PathChat        = "/v1/chat/completions"
	PathModels      = "/v1/models"
)

// Content types of answers.
const (
	TypeJSON   = "application/json"
	TypeEvents = "text/event-stream; charset=utf-8"
)

// Kind is which of the two generation endpoints a request is for. The zero
// value is invalid.
type Kind int

// The kinds.
const (
	Completion Kind = 1
	Chat       Kind = 2
)

// KindOf finds the kind of a path.
func KindOf(path string) (Kind, bool) {
	switch path {
	case PathCompletions:
		return Completion, true
	case PathChat:
		return Chat, true
	}
	return 0, false
}

// String names the kind for logs.
func (k Kind) String() string {
	switch k {
	case Completion:
		return "completion"
	case Chat:
		return "chat"
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// Path is the endpoint of a kind.
func (k Kind) Path() string {
	if k == Chat {
		return PathChat
	}
	return PathCompletions
}

func (k Kind) idPrefix() string {
	if k == Chat {
		return "chatcmpl-"
	}
	return "cmpl-"
}

// NewRequestID draws a request id: cmpl- or chatcmpl- and 32 hex digits.
func (k Kind) NewRequestID() pd.RequestID {
	// A handoff id is 128 random bits as hex; a request id needs no more.
	return pd.RequestID(k.idPrefix() + string(pd.NewHandoffID()))
}

// CheckRequestID reports what is wrong with a request id that came from outside.
func (k Kind) CheckRequestID(id pd.RequestID) error {
	hex, ok := strings.CutPrefix(string(id), k.idPrefix())
	if !ok {
		return fmt.Errorf("request id must begin with %s", k.idPrefix())
	}
	return pd.CheckHexID("request id", hex)
}
