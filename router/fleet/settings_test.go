package fleet

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

func mustParse(t testing.TB, text string) *Config {
	t.Helper()
	c, err := Parse([]byte(text))
	require.NoError(t, err)
	return c
}

func TestDefaultsOfSettings(t *testing.T) {
	o, err := DefaultSettings().Resolve(mustParse(t, `{"replicas":[{"host":"a","port":1}]}`))
	require.NoError(t, err)
	assert.Equal(t, Options{
		Host: "0.0.0.0", Port: 8000, SessionTTL: 600 * time.Second, AffinitySlack: 8, MaxSessions: 100_000, HealthInterval: 5 * time.Second,
		RequestTimeout: time.Hour, ConnectTimeout: 5 * time.Second, ConnectRetries: 1, LaunchTimeout: 600 * time.Second, DrainTimeout: 300 * time.Second, ReplaceAfter: 30 * time.Second, ReplaceBackoff: 10 * time.Second, ReplaceStrikes: 3, StableAfter: 600 * time.Second, StopGrace: 30 * time.Second,
	}, o)
	o, err = DefaultSettings().Resolve(mustParse(t, `{"hosts":[{"devices":[0,1],"model":"m"}]}`))
	require.NoError(t, err)
	assert.Equal(t, 1, o.Initial)
	assert.Equal(t, 2, o.Ceiling)
	assert.Len(t, o.Warnings, 1, "no token")
}

func TestDefectsOfSettings(t *testing.T) {
	one, three := 1, 3
	minus, zero := -1, 0
	for _, c := range []struct {
		name string
		edit func(s *Settings)
		want string
	}{
		// Fleet behaviour 19
		{"zero ttl", func(s *Settings) { s.SessionTTL = 0 }, "session_ttl_seconds must be positive"},
		// Fleet behaviour 18
		{"negative slack", func(s *Settings) { s.AffinitySlack = -1 }, "affinity_slack must be non-negative"},
		// Fleet behaviour 27
		{"no sessions", func(s *Settings) { s.MaxSessions = 0 }, "max_sessions must be positive"},
		{"health", func(s *Settings) { s.HealthInterval = -1 }, "health_interval_seconds must be positive"},
		{"launch", func(s *Settings) { s.LaunchTimeout = 0 }, "launch_timeout_seconds must be positive"},
		{"drain", func(s *Settings) { s.DrainTimeout = 0 }, "drain_timeout_seconds must be positive"},
		{"request", func(s *Settings) { s.RequestTimeout = 0 }, "request_timeout_seconds must be positive"},
		{"connect", func(s *Settings) { s.ConnectTimeout = 0 }, "connect_timeout_seconds must be positive"},
		{"replace", func(s *Settings) { s.ReplaceAfter = -1 }, "replace_after_seconds must be positive"},
		{"nan", func(s *Settings) { s.ReplaceAfter = Seconds(math.NaN()) }, "replace_after_seconds must be positive"},
		{"infinity", func(s *Settings) { s.DrainTimeout = Seconds(math.Inf(1)) }, "drain_timeout_seconds must be at most"},
		{"below a nanosecond", func(s *Settings) { s.SessionTTL = 1e-12 }, "session_ttl_seconds must be positive"},
		{"port", func(s *Settings) { s.Port = 65536 }, "port must be in 0..65535"},
		{"retries", func(s *Settings) { s.ConnectRetries = -1 }, "connect_retries must be in 0..16"},
		{"negative initial", func(s *Settings) { s.InitialReplicas = &minus }, "initial_replicas must be non-negative"},
		{"zero max", func(s *Settings) { s.MaxReplicas = &zero }, "max_replicas must be positive"},
		{"initial above pool", func(s *Settings) { s.InitialReplicas = &three }, "initial_replicas=3 exceeds the pool ceiling 2 (declared devices)"},
		{"initial above cap", func(s *Settings) { s.InitialReplicas, s.MaxReplicas = &three, &one }, "initial_replicas=3 exceeds the pool ceiling 1 (declared devices, capped by max_replicas=1)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := DefaultSettings()
			c.edit(&s)
			_, err := s.Resolve(mustParse(t, `{"hosts":[{"devices":[0,1],"model":"m"}]}`))
			require.ErrorContains(t, err, c.want)
			require.ErrorIs(t, err, pd.CodeInvalidConfig)
		})
	}
	// Fleet behaviour 16
	_, err := DefaultSettings().Resolve(&Config{})
	require.ErrorContains(t, err, "at least one replica or one host")
	s := DefaultSettings()
	s.Port, s.AffinitySlack = -1, -1
	_, err = s.Resolve(&Config{})
	for _, want := range []string{"port must", "affinity_slack must", "at least one"} {
		require.ErrorContains(t, err, want)
	}
}

func TestMaxReplicasLowersTheCeiling(t *testing.T) {
	// Fleet behaviour 65
	c := mustParse(t, `{"hosts":[{"devices":[0,1,2],"model":"m"}]}`)
	for limit, want := range map[int]int{1: 1, 3: 3, 9: 3} {
		s := DefaultSettings()
		s.MaxReplicas = &limit
		o, err := s.Resolve(c)
		require.NoError(t, err)
		assert.Equal(t, want, o.Ceiling)
	}
}

func TestReplaceAfterHasAFloor(t *testing.T) {
	c := mustParse(t, `{"hosts":[{"devices":[0],"model":"m"}]}`)
	for _, r := range []struct {
		interval, after Seconds
		want            time.Duration
	}{{5, 30, 30 * time.Second}, {20, 30, 40 * time.Second}, {20, 0, 0}, {0.2, 0.1, 400 * time.Millisecond}} {
		s := DefaultSettings()
		s.HealthInterval, s.ReplaceAfter = r.interval, r.after
		o, err := s.Resolve(c)
		require.NoError(t, err)
		assert.Equal(t, r.want, o.ReplaceAfter)
	}
}

func TestSecondsAreRead(t *testing.T) {
	var s Seconds
	require.NoError(t, s.UnmarshalText([]byte("0.25")))
	assert.Equal(t, 250*time.Millisecond, s.duration())
	require.NoError(t, s.UnmarshalText([]byte("off")))
	assert.Zero(t, s)
	require.NoError(t, s.UnmarshalText([]byte("1e999")))
	assert.True(t, math.IsInf(float64(s), 1))
	require.EqualError(t, s.UnmarshalText([]byte("5s")), `"5s" is not a number of seconds`)
}

func TestAdminToken(t *testing.T) {
	a, b, empty := "secret-a", "secret-b", ""
	for _, c := range []struct {
		name       string
		from       TokenSources
		token, bad string
		warnings   int
	}{
		{"none", TokenSources{}, "", "", 0},
		{"environment", TokenSources{Environment: &a}, "secret-a", "", 0},
		{"flag", TokenSources{Flag: &a}, "secret-a", "", 1},
		{"file", TokenSources{File: &b}, "secret-b", "", 0},
		{"equal", TokenSources{Flag: &a, Environment: &a}, "secret-a", "", 1},
		{"differ", TokenSources{Flag: &a, Environment: &b}, "", "--admin-token and PYPTO_ROUTER_ADMIN_TOKEN hold different admin tokens", 0},
		{"file differs", TokenSources{Environment: &b, File: &a}, "", "hold different admin tokens", 0},
		{"empty", TokenSources{Environment: &empty}, "", "the admin token of PYPTO_ROUTER_ADMIN_TOKEN is empty", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			token, warnings, err := c.from.resolve()
			assert.Equal(t, c.token, token)
			assert.Len(t, warnings, c.warnings)
			if c.bad == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.bad)
			assert.NotContains(t, err.Error(), "secret")
		})
	}
}
