// Package mooncake is the data plane over Mooncake's Transfer Engine: one-sided
// writes between the memories of two processes, over TCP or between Ascend
// devices.
//
// It owns the native engines and their lives (a fence ends one and begins the
// next over the same memory), the sessions to peers, the identity row, the
// arenas in host and device memory, and the one table that says what a native
// status proves (settle.go). It refuses to know leases, pages, models and HTTP.
// Nothing is loaded before Open or Check.
//
// # Trust
//
// The library listens on every interface, whatever the hostname, and asks
// nobody who he is: whoever reaches a port may read and write every registered
// byte. Run it on a network of its own.
//
// # What holds
//
//   - A native batch is polled until every task of it was seen to end, and is
//     freed once; if it never ends it is kept, and lost at the next fence or at
//     Close, and counted (Stats).
//   - An attempt ends for its caller at AttemptTimeout, as Uncertain, with its
//     source still in use. The batch behind it goes on being polled.
//   - Done needs every task completed with all its bytes. Anything else after
//     posting is Uncertain; Failed does not occur, because the library retracts
//     nothing.
//   - Every region is registered before the first connection, and the identity
//     row with Freeze, so that nobody can pass the check of a peer before.
//   - At most pd.MaxSegmentTasks tasks are in a batch and pd.MaxOutstandingTasks
//     are open per session. More can wedge the library for good.
//
// # Goroutines
//
// Open starts one that is locked to an OS thread and makes all calls that need
// the device's context: create, register, unregister, destroy, device memory.
// Open and Fence start one, on a locked thread too, that polls until the
// engine's life ends. Connect starts one per call that may block in the library;
// it outlives a caller that gave up, and Fence and Close wait for it. Close ends
// them all, or says which call does not return.
package mooncake
