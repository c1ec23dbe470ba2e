//go:build !race

package cluster

// withRace says that the tests run under the race detector.
const withRace = false
