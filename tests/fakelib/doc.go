// Package fakelib builds C libraries that stand in for the Transfer Engine and
// the Ascend runtime in tests. They export the real names, move bytes between
// processes over TCP, and have knobs for every fault that the real ones have
// been seen to make.
//
// It owns the compiled libraries, in the user's cache folder of the go command's
// temporary kind, and the file through which a test and the libraries of its
// process share knobs and counters. It refuses to know the code under test.
// It starts no goroutine.
package fakelib
