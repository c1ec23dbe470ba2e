package fleet

import (
	"encoding/json"
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

const typeJSON = "application/json"

// errorBody is what the router says when it refuses, in both shapes that clients
// of such servers read.
type errorBody struct {
	Message string
	// Capacity is of the answers about launches and stops.
	Capacity *capacityBody
	status   int // set by reply
}

// codes are the error codes of what the router refuses by itself, which HTTP's
// layer does not.
var codes = map[int]pd.Code{
	401: pd.CodeUnauthorized, 409: pd.CodeConflict, 500: pd.CodeUncertain, 502: pd.CodePeerUnreachable, 503: pd.CodeNoPair, 504: pd.CodeDeadline,
}

// MarshalJSON implements json.Marshaler.
func (e errorBody) MarshalJSON() ([]byte, error) {
	code, ok := codes[e.status]
	if !ok {
		code = openai.CodeOfStatus(e.status)
	}
	b := openai.AppendError(nil, pd.Errorf(code, "", "%s", e.Message))
	if e.Capacity == nil {
		return b, nil
	}
	capacity, err := json.Marshal(e.Capacity)
	b = append(b[:len(b)-1], `,"capacity":`...)
	return append(append(b, capacity...), '}'), err
}

// reply answers with a value as JSON. The client's time to try again is told with
// every 503.
func reply(c *edge.Call, status int, v any) {
	if e, ok := v.(errorBody); ok {
		e.status = status
		v = e
	}
	body, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("fleet: answer: %v", err)) // its types have only strings, numbers and lists of them
	}
	if status == 503 {
		c.SetHeader("Retry-After", "1")
	}
	c.Reply(status, typeJSON, body)
}

// Refuse words what the edge refuses by itself, for edge.ServerConfig.Refuse.
func Refuse(status int, message string) (contentType string, body []byte) {
	body, _ = json.Marshal(errorBody{Message: message, status: status}) // a string is never an error
	return typeJSON, body
}
