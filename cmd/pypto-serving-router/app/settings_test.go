package app

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/router/fleet"
)

func parse(t *testing.T, args ...string) *flags {
	t.Helper()
	var f flags
	_, ok := program.Parse(name, "", &f, append([]string{"--replicas", "x"}, args...), io.Discard, io.Discard)
	require.True(t, ok)
	return &f
}

// The help shows the defaults that the router has.
func TestDefaultsOfFlagsAreThoseOfTheFleet(t *testing.T) {
	s, err := parse(t).settings(nil)
	require.NoError(t, err)
	require.Equal(t, fleet.DefaultSettings(), s)
}

func TestEveryFlagReachesItsSetting(t *testing.T) {
	two, three, token := 2, 3, "t"
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("of the file\r\nsecond line\n"), 0o600))
	s, err := parse(t,
		"--host", "h", "--port", "1", "--session-ttl", "0.5", "--affinity-slack", "2", "--max-sessions", "3", "--session-field", "user", "--session-field", "a,b",
		"--session-cookie", "c", "--health-interval", "4", "--request-timeout", "5", "--connect-timeout", "6", "--connect-retries", "7",
		"--initial-replicas", "2", "--max-replicas", "3", "--launch-timeout", "8", "--drain-timeout", "9", "--stop-grace", "10", "--replace-after", "off",
		"--replace-backoff", "11", "--replace-strikes", "12", "--stable-after", "13", "--state-file", "s", "--discard-state", "--admin-token", "t", "--admin-token-file", file,
	).settings([]string{"A=b", fleet.TokenVariable + "=first", fleet.TokenVariable + "=last"})
	require.NoError(t, err)
	last, line := "last", "of the file"
	require.Equal(t, fleet.Settings{
		Host: "h", Port: 1, SessionTTL: 0.5, AffinitySlack: 2, MaxSessions: 3, Keys: fleet.KeyOptions{Fields: []string{"user", "a,b"}, Cookie: "c"},
		HealthInterval: 4, RequestTimeout: 5, ConnectTimeout: 6, ConnectRetries: 7, InitialReplicas: &two, MaxReplicas: &three,
		LaunchTimeout: 8, DrainTimeout: 9, StopGrace: 10, ReplaceAfter: 0, ReplaceBackoff: 11, ReplaceStrikes: 12, StableAfter: 13,
		StateFile: "s", DiscardState: true, AdminToken: fleet.TokenSources{Flag: &token, Environment: &last, File: &line},
	}, s)
}
