// Package reference is the deterministic reference engine: it runs without an
// accelerator and without weights, and tells the truth about memory.
//
// Each row of the cache holds bytes that are a keyed function of the model
// revision, the token prefix up to that row, the component, the layer and the
// row. Each output token is a digest of the bytes that decode reads back from
// its own pages, states and bootstrap rows, on every replica rank. One wrong,
// missing or stale byte of a row that decode reads changes the text; replicas
// that disagree fail the request. So equal text proves the whole chain.
//
// It is one engine for all roles: combined, prefill and decode share the batch
// scheduler, the page pool and the arithmetic.
//
// It starts one goroutine, the step loop (Run), which owns all requests. The
// page pool is shared with the node's loop and guarded by a mutex.
package reference
