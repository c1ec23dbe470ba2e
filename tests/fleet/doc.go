// Package fleet tests what a fleet router launches and how, with real programs:
// pypto-serving, a stub replica that can misbehave (tests/fleet/stub), and hosts
// behind a real ssh server (tests/fleet/sshhost).
//
// It starts processes and no goroutine that outlives its test.
package fleet
