package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/cgo/acl"
	"github.com/hw-native-sys/pypto-pd/mooncake"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// visibleDevices is the runtime's variable that names the cards of a process; an
// owner sees one, as its logical device 0.
const visibleDevices = "ASCEND_RT_VISIBLE_DEVICES"

// npu says that the cache lives in device memory.
func (s settings) npu() bool { return s.Backend == "npu" }

// protocol is how mooncake moves bytes for this backend.
func (s settings) protocol() mooncake.Protocol {
	if s.npu() {
		return mooncake.Ascend
	}
	return mooncake.TCP
}

// checkNPU adds what --backend npu needs beside its own flags.
func (s *settings) checkNPU(all *[]error) {
	if !s.npu() {
		return
	}
	bad := func(format string, args ...any) { *all = append(*all, fmt.Errorf("--backend npu: "+format, args...)) }
	if s.role == 0 {
		bad("it is for one side of a pair; give --pd-role, or use --backend sim")
	}
	if s.Owners == ownersHere {
		bad("each card needs a process of its own; --owners in-process cannot be")
	}
	s.devices = make([]int, s.topology.Ranks)
	for i := range s.devices {
		s.devices[i] = i
	}
	if s.Devices == "" {
		return
	}
	parts := strings.Split(s.Devices, ",")
	if len(parts) != s.topology.Ranks {
		bad("--devices names %d cards for %d ranks", len(parts), s.topology.Ranks)
		return
	}
	seen := map[int]bool{}
	for i, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil {
			return // reported where the flag is read
		}
		if seen[n] {
			bad("--devices names card %d twice", n)
		}
		seen[n], s.devices[i] = true, n
	}
}

// deviceEnv is what the owner of a rank is told of its card.
func (s settings) deviceEnv(rank pd.Rank) []string {
	if !s.npu() {
		return nil
	}
	return []string{fmt.Sprintf("%s=%d", visibleDevices, s.devices[rank])}
}

// sizeOnDevices asks every card for its free memory and sizes the cache by the
// tightest.
func sizeOnDevices(ctx context.Context, s settings, c *pd.Contract, size adapter.Sizing, stderr io.Writer) (adapter.Sizing, error) {
	budget := adapter.Budget{Utilization: s.MemoryUtilization, MaxTokens: s.MaxModelLen}
	for rank := range pd.Rank(s.topology.Ranks) {
		free, err := askDevice(ctx, s, rank, stderr)
		if err != nil {
			return size, err
		}
		budget.RankBytes = append(budget.RankBytes, free)
	}
	return adapter.SizeWithin(c, size, budget)
}

// askDevice runs this program once more: the runtime is not for the process that
// serves HTTP, and its context of the card goes with the process.
func askDevice(ctx context.Context, s settings, rank pd.Rank, stderr io.Writer) (free int64, err error) {
	command := exec.CommandContext(ctx, "/proc/self/exe", ownerCommand, "--free-memory", "--ascend-library", s.AscendLibrary)
	command.Env, command.Stderr = append(os.Environ(), s.deviceEnv(rank)...), stderr
	out, err := command.Output()
	failed := func(err error) (int64, error) {
		return 0, &pd.Error{Op: "size the cache", Code: pd.CodeInvalidConfig, Text: fmt.Sprintf("card %d of rank %d cannot be asked for its memory", s.devices[rank], rank), Err: err}
	}
	if err != nil {
		return failed(err)
	}
	if free, err = strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64); err != nil {
		return failed(err)
	}
	return free, nil
}

// printFreeMemory answers askDevice: the free bytes of logical device 0.
func printFreeMemory(library string, stdout io.Writer) error {
	runtime.LockOSThread() // a device context belongs to a thread; both end with the process
	api, err := acl.Load(acl.Options{Path: library})
	if err != nil {
		return err
	}
	err = errors.Join(api.Init(), api.SetDevice(0))
	if err != nil {
		return err
	}
	free, _, err := api.MemoryInfo()
	if err == nil {
		fmt.Fprintln(stdout, free)
	}
	return err
}
