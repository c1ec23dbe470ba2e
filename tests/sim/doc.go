// Package sim simulates whole deployments: production nodes, ledgers, page
// pools, handoff machines, adapters and engines on one event heap, with virtual
// time and one seed, amid owners, a data plane, a network, routers, clients and
// operators that are models and do what they should not.
//
// A world is one goroutine; the same options replay it event by event. Checkers
// watch it from outside: they know every write in flight, every lease, every
// stop fact, and compare each answer with what one process says alone. After the
// faults have ended, everything must come to rest.
//
// docs/simulation.md tells how to run, replay and shrink.
package sim
