package fleet

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// What a fleet router says of itself is what docs/metrics.md says: each name, its
// type and its labels.
func TestMetricsPageIsWhatTheFleetRouterSays(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 1, slots: 1})
	s.post(chatBody(""))
	body := s.ask("GET", pathMetrics, "").body
	kinds, labels := map[string]string{}, map[string]string{}
	for line := range strings.Lines(body) {
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "# TYPE pypto_"):
			kinds[fields[2]] = fields[3]
		case strings.HasPrefix(line, "pypto_"):
			name, rest, _ := strings.Cut(line, "{")
			var names []string
			for _, m := range regexp.MustCompile(`([a-z]+)="`).FindAllStringSubmatch(rest, -1) {
				if m[1] != "le" {
					names = append(names, m[1])
				}
			}
			name = strings.Fields(name)[0]
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				if base := strings.TrimSuffix(name, part); kinds[base] == "histogram" {
					name = base
				}
			}
			labels[name] = strings.Join(names, ", ")
		}
	}
	said := map[string]string{}
	for n, kind := range kinds {
		said[n] = strings.TrimSpace(kind + " " + labels[n])
	}
	page, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	want := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(pypto_fleet_[a-z_]+)` \\| ([a-z]+) \\| ([a-z, ]*) \\| ").FindAllStringSubmatch(string(page), -1) {
		want[m[1]] = strings.TrimSpace(m[2] + " " + strings.TrimSpace(m[3]))
	}
	assert.Equal(t, want, said)
	for _, cause := range causes {
		assert.True(t, strings.Contains(string(page), cause), cause)
		assert.True(t, strings.Contains(body, fmt.Sprintf("pypto_fleet_failures_total{cause=%q} 0\n", cause)), cause)
	}
}

func TestMetricsCountWhatHappened(t *testing.T) {
	s := newRig(t, rigOptions{replicas: 2})
	home := s.post(chatBody(""), "X-Session-Id: mine").servedBy(t)
	s.post(chatBody(""), "X-Session-Id: mine")
	s.replicas[int(home[0]-'a')].kill()
	other := s.ask("POST", pathCompletions, `{"prompt":"x"}`, "X-Session-Id: mine").servedBy(t)
	for _, n := range s.replicas {
		n.kill()
	}
	s.post(chatBody(""))
	s.post(chatBody(""))
	body := s.ask("GET", pathMetrics, "").body
	for _, line := range []string{
		fmt.Sprintf(`pypto_fleet_requests_total{replica=%q,route="chat",status="200"} 2`, home),
		fmt.Sprintf(`pypto_fleet_requests_total{replica=%q,route="completion",status="200"} 1`, other),
		fmt.Sprintf(`pypto_fleet_requests_total{replica=%q,route="chat",status="502"} 1`, other),
		`pypto_fleet_requests_total{replica="",route="chat",status="503"} 1`,
		`pypto_fleet_failures_total{cause="unreachable"} 1`, `pypto_fleet_failures_total{cause="no_replica"} 1`,
		`pypto_fleet_connect_retries_total 1`, `pypto_fleet_active_requests 0`,
		`pypto_fleet_routable_replicas 0`,
		fmt.Sprintf(`pypto_fleet_replica_phase{phase="failed",replica=%q} 1`, home),
		`pypto_fleet_request_seconds_count{route="chat"} 2`, `pypto_fleet_first_byte_seconds_count{route="completion"} 1`,
	} {
		assert.True(t, strings.Contains(body, line+"\n"), line)
	}
}

// Nothing that a client or a model wrote is in any line of the log, at any level.
func TestAccessLogHasOneLineAndNoWordOfTheClient(t *testing.T) {
	const secret = "xyzzy"
	s := newRig(t, rigOptions{replicas: 1})
	s.replicas[0].answer(s.replicas[0].streams)
	body := fmt.Sprintf(`{"model":%q,"user":%q,"prompt":%q,"session_id":%q}`, secret, secret, secret, secret)
	headers := []string{"Authorization: Bearer " + secret, "X-Request-Id: " + secret}
	a := s.ask("POST", pathCompletions+"?"+secret, body, headers...)
	assert.Equal(t, secret, a.session())
	s.ask("POST", pathCompletions, body+secret, append(headers, "X-Session-Id: "+secret+"!")...)
	s.replicas[0].kill()
	s.ask("POST", pathChat, body, headers...)
	s.ask("POST", "/v1/"+secret, body, headers...)
	s.ask("DELETE", pathReplicas+"/"+secret, "")
	s.ask("DELETE", pathReplicas+"/"+secret+"?force=true", "")
	s.ask("POST", pathReplicas+"?slot="+secret, "")
	s.ask("GET", pathReplicas+"/"+secret+"/log", "")
	s.idle()
	s.logged(t, "cause=unreachable")
	require.NotContains(t, s.log.String(), secret)
	var lines []string
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, "msg=request ") {
			lines = append(lines, line)
		}
	}
	require.Len(t, lines, 3)
	for _, key := range []string{"route=completion", "status=200", "replica=a", "session=", "fresh=false", "first=", "ended=", fmt.Sprintf("asked=%d", len(body)), "bytes="} {
		assert.Contains(t, lines[0], key)
	}
	assert.Contains(t, lines[1], "fresh=true")
	assert.Contains(t, lines[2], "cause=unreachable")
	session := regexp.MustCompile(`session=\w+`)
	assert.Equal(t, session.FindString(lines[0]), session.FindString(lines[2]), "turns of one conversation can be found")
	assert.NotEqual(t, session.FindString(lines[0]), session.FindString(lines[1]))
	// The replica and the client know the request by the id of the log, or by theirs.
	s.replicas[0].start(edge.ServerConfig{})
	s.pool.Suspect(s.pool.statics[0].member)
	require.Eventually(t, func() bool { return s.view("a").routable() }, patience, 1e6)
	mine := s.post(chatBody(""))
	got := s.replicas[0].requests()
	assert.Equal(t, got[len(got)-1].header.Get(requestHeader), mine.header.Get(requestHeader))
	s.logged(t, "request="+mine.header.Get(requestHeader))
	assert.Equal(t, secret, got[0].header.Get(requestHeader))
}
