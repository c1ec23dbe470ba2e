package fleet

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// TokenVariable is the environment variable that may hold the admin token. It
// is taken away from every launched process.
const TokenVariable = "PYPTO_ROUTER_ADMIN_TOKEN"

// Seconds is a flag in seconds; fractions are allowed.
type Seconds float64

// UnmarshalText reads a number of seconds, or "off" as 0.
func (s *Seconds) UnmarshalText(text []byte) error {
	if string(text) == "off" {
		*s = 0
		return nil
	}
	v, err := strconv.ParseFloat(string(text), 64)
	// A number that is too large is an infinity, which Resolve refuses by name.
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return fmt.Errorf("%.32q is not a number of seconds", text)
	}
	*s = Seconds(v)
	return nil
}

// maxSeconds is ten years: more is a mistake, and no sum of such times
// overflows.
const maxSeconds = 10 * 365 * 24 * 3600

func (s Seconds) duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

// TokenSources are the places that may hold the admin token; nil is a source
// that was not given.
type TokenSources struct {
	// Flag is --admin-token, Environment TokenVariable, File the first line of
	// the file that --admin-token-file names.
	Flag, Environment, File *string
}

// Settings are the command line and the environment as they were given.
type Settings struct {
	Host string
	Port int

	SessionTTL    Seconds
	AffinitySlack int
	MaxSessions   int
	// Keys are off by default.
	Keys           KeyOptions
	HealthInterval Seconds
	RequestTimeout Seconds
	ConnectTimeout Seconds
	ConnectRetries int

	// InitialReplicas and MaxReplicas are nil for their defaults: one with hosts,
	// none without; the declared pool.
	InitialReplicas *int
	MaxReplicas     *int
	LaunchTimeout   Seconds
	DrainTimeout    Seconds
	// ReplaceAfter is 0 where dead replicas are not replaced.
	ReplaceAfter Seconds
	// ReplaceBackoff is the wait after a slot's first loss, doubled after each;
	// ReplaceStrikes losses in a row give it up; StableAfter of service forgets them.
	ReplaceBackoff Seconds
	ReplaceStrikes int
	StableAfter    Seconds
	// StopGrace is how long a stopped replica may take to be gone.
	StopGrace    Seconds
	StateFile    string
	DiscardState bool
	AdminToken   TokenSources
}

// DefaultSettings are the settings without a flag.
func DefaultSettings() Settings {
	return Settings{
		Host: "0.0.0.0", Port: 8000, SessionTTL: 600, AffinitySlack: 8, MaxSessions: DefaultMaxSessions, HealthInterval: 5,
		RequestTimeout: 3600, ConnectTimeout: 5, ConnectRetries: 1, LaunchTimeout: 600, DrainTimeout: 300, ReplaceAfter: 30,
		ReplaceBackoff: 10, ReplaceStrikes: 3, StableAfter: 600, StopGrace: 30,
	}
}

// DefaultMaxSessions is how many pins are kept.
const DefaultMaxSessions = 100_000

const (
	// maxSessions bounds --max-sessions: a pin costs about 160 bytes.
	maxSessions = 10_000_000
	// maxRetries bounds --connect-retries.
	maxRetries = 16
	// maxStrikes bounds --replace-strikes: the wait doubles with each.
	maxStrikes = 10
	// maxGrace bounds --stop-grace: a stop is waited for.
	maxGrace = 60
)

// Options are settings that fit a configuration.
type Options struct {
	Host           string
	Port           int
	SessionTTL     time.Duration
	AffinitySlack  int
	MaxSessions    int
	Keys           KeyOptions
	HealthInterval time.Duration
	RequestTimeout time.Duration
	ConnectTimeout time.Duration
	ConnectRetries int
	// Initial replicas are launched at start, at most Ceiling hold slots.
	Initial       int
	Ceiling       int
	LaunchTimeout time.Duration
	DrainTimeout  time.Duration
	// ReplaceAfter is how long a replica that served may be unroutable before it
	// is replaced, not below two health intervals; 0 never replaces.
	ReplaceAfter time.Duration
	// ReplaceBackoff, ReplaceStrikes, StableAfter and StopGrace are as in Settings.
	ReplaceBackoff time.Duration
	ReplaceStrikes int
	StableAfter    time.Duration
	StopGrace      time.Duration
	StateFile      string
	DiscardState   bool
	// AdminToken is "" where /replicas is open to everyone.
	AdminToken string
	// Warnings are things that are allowed and probably not meant.
	Warnings []string
}

// Resolve checks the settings against a configuration. The error holds every
// defect; its code is pd.CodeInvalidConfig.
func (s Settings) Resolve(c *Config) (Options, error) {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if s.Port < 0 || s.Port > 65535 {
		bad("port must be in 0..65535, not %d", s.Port)
	}
	for _, d := range []struct {
		field string
		value Seconds
		zero  bool
	}{
		{"session_ttl", s.SessionTTL, false},
		{"health_interval", s.HealthInterval, false},
		{"request_timeout", s.RequestTimeout, false},
		{"connect_timeout", s.ConnectTimeout, false},
		{"launch_timeout", s.LaunchTimeout, false},
		{"drain_timeout", s.DrainTimeout, false},
		{"replace_after", s.ReplaceAfter, true},
		{"replace_backoff", s.ReplaceBackoff, false},
		{"stable_after", s.StableAfter, false},
		{"stop_grace", s.StopGrace, false},
	} {
		switch v := float64(d.value); {
		case d.zero && v == 0:
		case math.IsNaN(v), d.value.duration() <= 0 && v <= maxSeconds:
			bad("%s_seconds must be positive, not %v", d.field, v)
		case v > maxSeconds:
			bad("%s_seconds must be at most %d, not %v", d.field, maxSeconds, v)
		}
	}
	if s.AffinitySlack < 0 {
		bad("affinity_slack must be non-negative, not %d", s.AffinitySlack)
	}
	if s.MaxSessions < 1 || s.MaxSessions > maxSessions {
		bad("max_sessions must be positive and at most %d, not %d", maxSessions, s.MaxSessions)
	}
	if s.ConnectRetries < 0 || s.ConnectRetries > maxRetries {
		bad("connect_retries must be in 0..%d, not %d", maxRetries, s.ConnectRetries)
	}
	if s.ReplaceStrikes < 1 || s.ReplaceStrikes > maxStrikes {
		bad("replace_strikes must be in 1..%d, not %d", maxStrikes, s.ReplaceStrikes)
	}
	if s.StopGrace > maxGrace {
		bad("stop_grace_seconds must be at most %d, not %v", maxGrace, s.StopGrace)
	}
	if len(c.Replicas) == 0 && len(c.Hosts) == 0 {
		bad("the fleet needs at least one replica or one host")
	}
	o := Options{
		Host: s.Host, Port: s.Port, SessionTTL: s.SessionTTL.duration(), AffinitySlack: s.AffinitySlack, MaxSessions: s.MaxSessions, Keys: s.Keys,
		HealthInterval: s.HealthInterval.duration(), RequestTimeout: s.RequestTimeout.duration(), ConnectTimeout: s.ConnectTimeout.duration(),
		ConnectRetries: s.ConnectRetries, LaunchTimeout: s.LaunchTimeout.duration(), DrainTimeout: s.DrainTimeout.duration(),
		ReplaceAfter: s.ReplaceAfter.duration(), ReplaceBackoff: s.ReplaceBackoff.duration(), ReplaceStrikes: s.ReplaceStrikes,
		StableAfter: s.StableAfter.duration(), StopGrace: s.StopGrace.duration(), StateFile: s.StateFile, DiscardState: s.DiscardState,
	}
	if o.ReplaceAfter > 0 {
		o.ReplaceAfter = max(o.ReplaceAfter, 2*o.HealthInterval)
	}
	s.pool(c, &o, bad)
	token, warnings, err := s.AdminToken.resolve()
	if err != nil {
		all = append(all, err)
	}
	o.AdminToken, o.Warnings = token, warnings
	if len(c.Hosts) > 0 && token == "" && err == nil {
		o.Warnings = append(o.Warnings, "no admin token is set: everyone who reaches this port can launch and stop replicas")
	}
	if len(all) > 0 {
		err := errors.Join(all...)
		return Options{}, &pd.Error{Op: "check settings", Code: pd.CodeInvalidConfig, Text: err.Error(), Err: err}
	}
	return o, nil
}

// pool counts the slots that may be used.
func (s Settings) pool(c *Config, o *Options, bad func(format string, args ...any)) {
	o.Ceiling = len(c.Slots)
	limit := "declared devices"
	if s.MaxReplicas != nil {
		if *s.MaxReplicas < 1 {
			bad("max_replicas must be positive, not %d", *s.MaxReplicas)
			return
		}
		if *s.MaxReplicas < o.Ceiling {
			o.Ceiling = *s.MaxReplicas
			limit += fmt.Sprintf(", capped by max_replicas=%d", *s.MaxReplicas)
		}
	}
	if len(c.Hosts) > 0 {
		o.Initial = 1
	}
	if s.InitialReplicas != nil {
		o.Initial = *s.InitialReplicas
	}
	switch {
	case o.Initial < 0:
		bad("initial_replicas must be non-negative, not %d", o.Initial)
	case o.Initial > o.Ceiling:
		bad("initial_replicas=%d exceeds the pool ceiling %d (%s)", o.Initial, o.Ceiling, limit)
	}
}

// resolve finds the one token that all given sources agree on. No error shows
// one.
func (t TokenSources) resolve() (token string, warnings []string, err error) {
	from := ""
	for _, s := range []struct {
		name  string
		value *string
	}{{"--admin-token", t.Flag}, {TokenVariable, t.Environment}, {"--admin-token-file", t.File}} {
		switch {
		case s.value == nil:
			continue
		case *s.value == "":
			return "", nil, fmt.Errorf("the admin token of %s is empty; leave it out to run without one", s.name)
		case from != "" && *s.value != token:
			return "", nil, fmt.Errorf("%s and %s hold different admin tokens; keep one of them", from, s.name)
		}
		token, from = *s.value, s.name
	}
	if t.Flag != nil {
		warnings = append(warnings, "--admin-token is visible in the list of processes; prefer "+TokenVariable+" or --admin-token-file")
	}
	return token, warnings, nil
}
