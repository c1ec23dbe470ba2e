// Package pd is the vocabulary of prefill/decode disaggregation: identities,
// fences, roles, the data contract of a model's cache, pages, plans,
// continuations, settlements, errors and limits.
//
// It owns no state and starts no goroutine. It imports only the standard
// library and does nothing beyond comparing, parsing and printing, so that
// every other package can speak these words without learning anything else.
//
// The words are defined once, in docs/glossary.md. "Prefill" and "decode" are
// roles, "source" is where bytes are read (always a prefill node) and "target"
// is where they are written (always a decode node).
package pd
