package transfertest

import "testing"

// Run runs the whole suite. open is called once per test, so that tests do not
// share counters of faults.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, h Harness)
	}{
		{"facts are declared", testFacts},
		{"options are checked", testOptions},
		{"registration ends with freeze", testRegistration},
		{"connect compares the identity row", testIdentity},
		{"connect gives up on who does not answer", testUnreachable},
		{"connect is idempotent", testSameSession},
		{"writes are exact", testExact},
		{"many small segments", testManySmall},
		{"a batch may be as large as a region", testLarge},
		{"bad batches write nothing", testRefused},
		{"poll never blocks and wake tells", testPoll},
		{"every ticket gets one verdict", testVerdicts},
		{"sessions are independent", testConcurrent},
		{"the window is bounded", testWindow},
		{"time-out is uncertain", testTimeout},
		{"fence then silence", testFence},
		{"fence under load", testFenceUnderLoad},
		{"fence of a source is uncertain", testFenceSource},
		{"close is uncertain", testClose},
		{"death of the peer is uncertain", testDeath},
		{"a closed engine refuses", testClosed},
		{"nothing leaks", testLeaks},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}
