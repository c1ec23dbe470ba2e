//go:build stdjson

package strictjson

import "encoding/json"

// encoding/json compares names without regard to case; the walk has already
// refused a name that is not spelled exactly, unless unknown names are allowed.
func unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }
