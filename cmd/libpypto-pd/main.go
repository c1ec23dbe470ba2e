//go:build cgo

// Libpypto-pd is the PD runtime as a C library, built with -buildmode=c-shared.
// Its interface is include/pypto/pd.h.
//
// shim.c holds the functions that C sees: each refuses a forked process before
// it would enter Go, whose threads a fork does not copy. exports.go translates
// and recovers; what is done is in host.
package main

func main() {}
