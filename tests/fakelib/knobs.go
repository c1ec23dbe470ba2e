package fakelib

import (
	"sync/atomic"
)

// Knob is a fault that can be switched on; 0 is off. Those whose name ends in
// Nth, and those that say so, hit the n-th call from now on, once.
type Knob int

// The knobs, in the order of c/knobs.h.
const (
	// CreateFails: the n-th createTransferEngine has no engine.
	CreateFails Knob = iota
	// CreateThrows: the n-th createTransferEngine throws a C++ exception, which
	// nothing catches.
	CreateThrows
	// CreateMillis delays createTransferEngine.
	CreateMillis
	// CreateHandlers: createTransferEngine takes SIGINT, SIGPIPE and SIGSEGV, with
	// handlers that run on any stack.
	CreateHandlers
	// CreatePrints: createTransferEngine writes to standard output.
	CreatePrints
	// WrongPort is added to the port that an engine announces.
	WrongPort
	// SamePort: the next n engines take the port of the one before.
	SamePort
	// Stall: engines created while it is on send writes that their target takes in
	// and neither applies nor answers.
	Stall
	// RegisterNth: the n-th registerLocalMemory answers RegisterCode.
	RegisterNth
	// RegisterCode is what RegisterNth answers.
	RegisterCode
	// Pins: registerLocalMemory fails above RLIMIT_MEMLOCK.
	Pins
	// OpenFails: the n-th openSegmentNoCache fails.
	OpenFails
	// OpenMillis delays openSegmentNoCache.
	OpenMillis
	// AllocateFails: the n-th allocateBatchID has no batch.
	AllocateFails
	// SubmitCode is what submitTransfer answers, having begun nothing.
	SubmitCode
	// SubmitBegins: with SubmitCode above 2, half of the batch has begun.
	SubmitBegins
	// SubmitMillis delays submitTransfer.
	SubmitMillis
	// SubmitSegv: the n-th submitTransfer writes to an address that is not there.
	SubmitSegv
	// Status plus 1 is what getTransferStatus says of every write.
	Status
	// StatusCode is what getTransferStatus answers for every write.
	StatusCode
	// Short is missing from the bytes of every completed write.
	Short
	// FreeCode is what freeBatchID answers.
	FreeCode
	// FailNthTask: the n-th task fails and is not sent.
	FailNthTask
	// HalfThenFail: targets write half of a task and close the connection.
	HalfThenFail
	// HiddenRetry: after it completed, a write lands once more, as soon as
	// HoldRetries is off.
	HiddenRetry
	HoldRetries
	// HoldOpen and HoldDestroy: openSegmentNoCache and destroyTransferEngine do not
	// return while it is on.
	HoldOpen
	HoldDestroy
	// DestroyMillis delays destroyTransferEngine.
	DestroyMillis
	// AnswerMillis delays every answer of a target to a write.
	AnswerMillis
	// UnregisterCode is what unregisterLocalMemory answers.
	UnregisterCode
	// AclInitCode, AclMallocCode and AclCopyCode are what aclInit, aclrtMalloc and
	// aclrtMemcpy answer.
	AclInitCode
	AclMallocCode
	AclCopyCode
	// AclDevices is the number of devices (1), AclMemory the bytes of each (1 GiB).
	AclDevices
	AclMemory
	// AclMisaligns is added to every address of aclrtMalloc.
	AclMisaligns
	knobs
)

// Counter is something that the libraries count.
type Counter int

// The counters, in the order of c/knobs.h.
const (
	// Engines, Batches, Regions, Segments, Tasks, Threads and Allocations are what
	// is alive.
	Engines Counter = iota + 64
	Batches
	Regions
	Segments
	Tasks
	Threads
	Allocations
	// Created, Submitted, Requests, Freed and StatusCalls count calls and tasks.
	Created
	Submitted
	Requests
	Freed
	StatusCalls
	// HiddenRetries counts writes that landed once more.
	HiddenRetries
	// RetryCount is what the library saw in MC_RETRY_CNT.
	RetryCount
	// Applied counts writes that a target has in its memory.
	Applied
)

const slots = 128

// Set turns a knob.
func (l *Libraries) Set(k Knob, value int64) { atomic.StoreInt64(&l.shared[k], value) }

// Reset turns every knob off.
func (l *Libraries) Reset() {
	for k := range knobs {
		l.Set(k, 0)
	}
}

// Get reads a counter.
func (l *Libraries) Get(c Counter) int64 { return atomic.LoadInt64(&l.shared[c]) }
