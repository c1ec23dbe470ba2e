//go:build !stdjson

package strictjson

import "github.com/bytedance/sonic"

// CopyString: without it, strings would alias the body, which the edge reuses.
//
// DisallowUnknownFields stays off. The walk has already refused unknown names,
// and sonic 1.15 looks for them with a wrong length where a struct has no
// fields: it reads past the end of the text.
var backend = sonic.Config{CaseSensitive: true, CopyString: true, ValidateString: true}.Froze()

func unmarshal(data []byte, v any) error { return backend.Unmarshal(data, v) }
