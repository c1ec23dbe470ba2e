package cluster

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// EndLaunched ends, with the test, what a fleet router has launched and left: its
// replicas outlive it by design. They are found by the pid files below a folder.
func EndLaunched(t testing.TB, folder string) {
	t.Helper()
	t.Cleanup(func() {
		for _, pid := range Launched(folder) {
			_ = syscall.Kill(-pid, syscall.SIGKILL) // it may be gone
		}
	})
}

// Launched are the process groups that the pid files below a folder name and that
// are still those that were launched, in ascending order.
func Launched(folder string) (pids []int) {
	_ = filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".pid") {
			return nil
		}
		text, err := os.ReadFile(path)
		fields := strings.Fields(string(text))
		if err != nil || len(fields) < 2 {
			return nil
		}
		pid, err := strconv.Atoi(fields[0])
		if err == nil && pid > 1 && startTime(pid) == fields[1] {
			pids = append(pids, pid)
		}
		return nil
	})
	slices.Sort(pids)
	return slices.Compact(pids)
}

// startTime is when a process started, as the kernel counts; "" if it is gone.
func startTime(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// What stands behind the name, which may hold anything.
	rest := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	// A first thread that has ended shows while others of its process still live.
	if len(rest) < 20 || rest[0] == "Z" && (rest[17] == "0" || rest[17] == "1") {
		return ""
	}
	return rest[19]
}

// Do sends a request and reads the answer.
func Do(q *http.Request) (status int, body []byte, err error) {
	r, err := client.Do(q)
	if err != nil {
		return 0, nil, err
	}
	defer r.Body.Close()
	body, err = io.ReadAll(r.Body)
	return r.StatusCode, body, err
}
