// Package config is pd.json, the one file that every process of a PD
// deployment reads: which nodes there are, how they are bounded, where they
// log. It also derives what all of them must agree on without talking: the run
// id, each node's identity and each node's addresses.
//
// Reading is strict and complete: all defects are reported at once, each with
// its field path and its place in the file, and a file with a defect starts
// nothing. The package reads one file; it knows no flag, opens no connection
// and starts no goroutine.
package config
