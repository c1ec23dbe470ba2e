//go:build !stdjson

package strictjson

import "github.com/bytedance/sonic"

// CopyString: without it, strings would alias the body, which the edge reuses.
var (
	closed = sonic.Config{DisallowUnknownFields: true, CaseSensitive: true, CopyString: true, ValidateString: true}.Froze()
	open   = sonic.Config{CaseSensitive: true, CopyString: true, ValidateString: true}.Froze()
)

func unmarshal(data []byte, v any, allowUnknown bool) error {
	if allowUnknown {
		return open.Unmarshal(data, v)
	}
	return closed.Unmarshal(data, v)
}
