package fleet

import (
	"encoding/json"
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

const typeJSON = "application/json"

// errorBody is what the router says when it refuses.
type errorBody struct {
	Message string `json:"message"`
	// Capacity is of the answers about launches and stops.
	Capacity *capacityBody `json:"capacity,omitempty"`
}

// MarshalJSON puts in what every error of the API begins with.
func (e errorBody) MarshalJSON() ([]byte, error) {
	type fields errorBody
	return json.Marshal(struct {
		Object string `json:"object"`
		fields
	}{"error", fields(e)})
}

// reply answers with a value as JSON. The client's time to try again is told with
// every 503.
func reply(c *edge.Call, status int, v any) {
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
func Refuse(_ int, message string) (contentType string, body []byte) {
	body, _ = json.Marshal(errorBody{Message: message}) // a string is never an error
	return typeJSON, body
}
