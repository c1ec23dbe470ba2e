// Package strictjson is the one strict JSON reader of the project, and the one
// canonical form that digests are computed over.
//
// Reading is two passes. The first walks the text with jsontext beside the Go
// type it is meant for and refuses, with field path, line and column: an empty
// body, bad syntax, invalid UTF-8 and surrogates, duplicate names (also when
// they are escaped differently), data after the value, nesting deeper than
// pd.MaxJSONDepth, null anywhere, unknown names, missing names, values of the
// wrong kind and integers out of range. The second pass lets a fast decoder
// fill the value; its own error text quotes the input and never leaves this
// package.
//
// Rules for types: every exported field whose json tag has no omitempty or
// omitzero is required, at every depth. Names are compared exactly. Embedded
// fields, the ",string" option and maps with keys other than strings are not
// supported and panic on first use, because they are mistakes in the program.
//
// Writing is Canonical: sorted keys, no spaces, integers only, nil slices and
// maps as [] and {}.
//
// sonic is imported here only; the build tag stdjson swaps it for
// encoding/json. The package knows no message and no file. It keeps a cache of
// compiled types and starts no goroutine.
package strictjson
