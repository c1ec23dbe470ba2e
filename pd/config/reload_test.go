package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
)

func TestChangeTo(t *testing.T) {
	const a, b, c, d = `{"host":"h","port":1}`, `{"host":"h","port":2}`, `{"host":"h","port":3}`, `{"host":"h","port":4}`
	file := func(prefill, decode, more string) *config.Config {
		t.Helper()
		got, err := config.Parse(fmt.Appendf(nil, `{"runtime":{"prefill":[%s],"decode":[%s]%s}}`, prefill, decode, more))
		require.NoError(t, err)
		return got
	}
	const run = `,"run_id":"r"`
	base := file(a, b+","+c, run)
	for name, row := range map[string]struct {
		next *config.Config
		want string // of the change, or of the error
	}{
		"the same":           {file(a, b+","+c, run), "nothing changed"},
		"another order":      {file(a, c+","+b, run), "nothing changed"},
		"one more":           {file(a+","+d, b+","+c, run), "added prefill node h:4"},
		"one less":           {file(a, c, run), "removed decode node h:2"},
		"one for the other":  {file(a, c+","+d, run), "added decode node h:4, removed decode node h:2"},
		"policy":             {file(a, b+","+c, run+`,"policy":"least_loaded"`), "policy is now least_loaded"},
		"other role":         {file(a+","+b, c, run), "!decode node h:2 at h:2 (control port 10002, transfer host h) becomes prefill node h:2"},
		"other control port": {file(a, c+`,{"host":"h","port":2,"control_port":9}`, run), "!becomes decode node h:2 at h:2 (control port 9, transfer host h): remove it"},
		"other name":         {file(a, c+`,{"host":"h","port":2,"node_id":"n"}`, run), "!becomes decode node n at h:2"},
		"same name, other host": {
			file(a, c+`,{"host":"i","port":2,"node_id":"h:2"}`, run), "!becomes decode node h:2 at i:2",
		},
		"other host spelling": {file(`{"host":"H","port":1}`, b+","+c, run), "!becomes prefill node H:1"},
		"derived run":         {file(a, b+","+c, ""), "!the run id changes from r to pd-"},
		"capacity":            {file(a, b+","+c, run+`,"capacity":9`), "!runtime.capacity changes from 8 to 9, which needs a restart"},
		"timeouts":            {file(a, b+","+c, run+`,"handoff_timeout":9,"request_timeout":90`), "!runtime.handoff_timeout changes from 5m0s to 9s, which needs a restart; runtime.request_timeout"},
		"provider":            {file(a, b+","+c, run+`,"provider":"simulator"`), "!runtime.provider changes"},
	} {
		change, err := base.ChangeTo(row.next)
		if want, refused := strings.CutPrefix(row.want, "!"); refused {
			require.ErrorIs(t, err, pd.CodeInvalidConfig, name)
			require.ErrorContains(t, err, want, name)
			require.Zero(t, change, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, row.want, change.String(), name)
	}
}
