package abi

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/cgo/te"
	"github.com/hw-native-sys/pypto-pd/tests/fakelib"
)

const include = "../../../include"

func needCompiler(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the libraries are of Linux")
	}
	for _, name := range []string{os.Getenv("CC"), "cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	t.Skip(fakelib.ErrNoCompiler)
	return ""
}

func compile(t *testing.T, args ...string) {
	t.Helper()
	compiler := needCompiler(t)
	out, err := exec.Command(compiler, append([]string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-I", include}, args...)...).CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestHeadersSayTheFacts(t *testing.T) {
	compile(t, "-fsyntax-only", "c/facts.c")
}

// TestFactsCanFail: a header with another layout does not pass.
func TestFactsCanFail(t *testing.T) {
	compiler := needCompiler(t)
	dir := t.TempDir()
	for _, name := range []string{"te_abi.h", "acl_abi.h"} {
		text, err := os.ReadFile(filepath.Join(include, "pypto", name))
		require.NoError(t, err)
		spoilt := strings.Replace(string(text), "int32_t target_id;", "int64_t padding; int32_t target_id;", 1)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "pypto"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "pypto", name), []byte(spoilt), 0o600))
	}
	out, err := exec.Command(compiler, "-std=c11", "-fsyntax-only", "-I", dir, "c/facts.c").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "sizeof(pypto_te_request) is not 40")
}

// TestHeadersAreCPlusPlus: a host in C++ can include them.
func TestHeadersAreCPlusPlus(t *testing.T) {
	compiler, err := exec.LookPath("c++")
	if err != nil {
		t.Skip("no C++ compiler")
	}
	source := filepath.Join(t.TempDir(), "x.cc")
	require.NoError(t, os.WriteFile(source, []byte("#include <pypto/te_abi.h>\n#include <pypto/acl_abi.h>\npypto_te_request r;\n"), 0o600))
	out, err := exec.Command(compiler, "-fsyntax-only", "-Wall", "-Werror", "-I", include, source).CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestHeaderIsTheUpstreamOne(t *testing.T) {
	upstream := os.Getenv("PYPTO_MOONCAKE_INCLUDE")
	if upstream == "" {
		t.Skip("PYPTO_MOONCAKE_INCLUDE is not set: it names the folder of transfer_engine_c.h")
	}
	compile(t, "-fsyntax-only", "-I", upstream, "c/upstream.c")
}

func TestHeaderIsTheVendorsOne(t *testing.T) {
	vendor := os.Getenv("PYPTO_ASCEND_INCLUDE")
	if vendor == "" {
		t.Skip("PYPTO_ASCEND_INCLUDE is not set: it names the folder of acl/acl.h")
	}
	program := filepath.Join(t.TempDir(), "codes")
	compile(t, "-isystem", vendor, "-o", program, "c/upstream_acl.c")
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

// eachLibrary runs a test on the fake library and on the real one.
func eachLibrary(t *testing.T, run func(t *testing.T, library string)) {
	t.Run("fake", func(t *testing.T) {
		needCompiler(t)
		l, err := fakelib.Build(t.TempDir())
		require.NoError(t, err)
		run(t, l.TransferEngine)
	})
	t.Run("real", func(t *testing.T) {
		path := os.Getenv(te.EnvLibrary)
		if path == "" {
			t.Skip(te.EnvLibrary + " is not set")
		}
		run(t, path)
	})
}

func TestSymbolsAreExported(t *testing.T) {
	eachLibrary(t, func(t *testing.T, library string) {
		x, err := elf.Open(library)
		require.NoError(t, err)
		defer x.Close()
		list, err := x.DynamicSymbols()
		require.NoError(t, err)
		exported := map[string]bool{}
		for _, s := range list {
			if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
				exported[s.Name] = true
			}
		}
		for _, name := range te.Symbols() {
			require.True(t, exported[name], name)
		}
	})
}

// answers are what every library must say; the data plane was written for
// these.
const answers = `create 1
name 0
name_is_host_port 1
register 0
register_twice -7
register_overlap -7
register_nothing -1
unregister_inside -3
open_nobody -1
open 1
open_again_is_same 1
status_of_empty_batch 1
submit_unknown_segment 1
submit_too_many 2
status_after_refusals 1
submit 0
landed 1
free_before_poll 4
status 4
bytes_are_all 1
status_past_end 1
free_after_poll 0
free_empty_batch 0
submit_past_region 0
straddling_task 6
its_neighbour 4
free 0
dead_segment_still_opens 1
submit_to_the_dead 0
status_of_the_dead 6
free_of_the_dead 0
create_over_same_memory 0
opens_by_new_name 1
end 1
`

func TestLibraryBehaves(t *testing.T) {
	program := filepath.Join(t.TempDir(), "probe")
	compile(t, "-o", program, "c/probe.c", "-ldl")
	eachLibrary(t, func(t *testing.T, library string) {
		c := exec.Command(program, library)
		c.Env = append(os.Environ(), "MC_FORCE_TCP=1", "MC_TCP_ENABLE_CONNECTION_POOL=1", "MC_RETRY_CNT=1", "MC_LOG_LEVEL=ERROR")
		var diagnostics strings.Builder
		c.Stderr = &diagnostics
		out, err := c.Output()
		require.NoError(t, err, diagnostics.String())
		require.Equal(t, answers, string(out))
	})
}
