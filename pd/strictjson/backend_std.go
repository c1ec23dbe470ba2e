//go:build stdjson

package strictjson

import (
	"bytes"
	"encoding/json"
)

// encoding/json compares names without regard to case; the walk has already
// refused a name that is not spelled exactly, unless unknown names are allowed.
func unmarshal(data []byte, v any, allowUnknown bool) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if !allowUnknown {
		d.DisallowUnknownFields()
	}
	return d.Decode(v)
}
