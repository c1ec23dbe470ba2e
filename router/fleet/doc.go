// Package fleet is the session-affinity router: it spreads OpenAI-compatible
// requests over independent replicas, keeps each conversation on the replica
// that holds its KV cache, and can launch and replace replicas itself.
//
// What is here is pure: the configuration, the commands that a launch runs, the
// choice of a replica, the machine of the launch slots, and what a restart makes
// of the state file. None of it reads a clock or starts a process. The one
// exception is the state file's own reading and writing.
//
// The router knows no memory, no page and no model: it never reads a checkpoint
// and never tokenizes. Devices are declared, not discovered.
//
// The package starts no goroutine.
package fleet
