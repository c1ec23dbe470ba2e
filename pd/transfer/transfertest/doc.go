// Package transfertest is the conformance suite that every transfer.Provider
// runs: what a node may rely on, whatever moves the bytes.
//
// It owns host memory for its engines and drives them as an owner does, from
// one goroutine each. It refuses to know any provider by name. Goroutines that
// it starts end with the test that started them.
package transfertest
