package mooncake

// childMain runs what a test asked this binary to be, and says whether it did.
func childMain() bool { return false }
