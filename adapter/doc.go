// Package adapter says what the bytes of a model's cache are, where they sit
// and where they must go: the data contract, the layout of a node's arenas,
// the rank map, the prefix rules and the plan of a chunk.
//
// Everything here is a pure function of its arguments; both nodes of a pair
// call the same functions on their own tables and must get the same answer. It
// knows no HTTP, no lease and no native code, and starts no goroutine.
//
// # What a chunk moves
//
//	full history   the pages that close in the chunk, from decode's hit on
//	rolling        what the contract's rolling policy says (policy.go)
//	final-only     in the final chunk, the pages of the window before the end
//	bootstrap      in the final chunk, the whole slot
//
// A page that straddles two chunks moves in the one in which it closes; the
// last page of the prompt closes with the prompt. Every page moves once in a
// handoff and only if decode can hold it when the handoff ends, so no target
// page is written twice.
package adapter
