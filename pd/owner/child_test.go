package owner_test

// ownerProcess makes the test binary an owner process.
const ownerProcess = "OWNER_TEST_OWNER_PROCESS"

func runOwnerProcess() int { return 0 }
