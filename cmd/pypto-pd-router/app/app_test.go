package app_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/cmd/pypto-pd-router/app"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pd.json")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func pdJSON(t *testing.T) string {
	return write(t, fmt.Sprintf(`{"runtime":{"prefill":[{"host":"127.0.0.1","port":1}],"decode":[{"host":"127.0.0.1","port":2}]},"observability":{"root":%q}}`, t.TempDir()))
}

// Case B53: nor beside a mistake.
func TestMistakesOfTheCommandLineExit2WithOneLine(t *testing.T) {
	t.Chdir(t.TempDir())
	for want, args := range map[string][]string{
		"--pd-config":                             {},
		"unknown flag --nope":                     {"--pd-config", "x", "--nope"},
		"given twice":                             {"--port", "1", "--port", "2", "--pd-config", "x"},
		"--port 70000: want 0..65535":             {"--port", "70000", "--pd-config", "x"},
		"--node-poll-interval 1ms":                {"--node-poll-interval", "1ms", "--pd-config", "x"},
		"--queue-size -1":                         {"--queue-size=-1", "--pd-config", "x"},
		"--max-body-bytes 0":                      {"--max-body", "0", "--pd-config", "x"},
		"--tls-cert and --tls-key go together":    {"--tls-cert", "x", "--pd-config", "x"},
		"--tls-cert: read the certificate x":      {"--tls-cert", "x", "--tls-key", "x", "--pd-config", pdJSON(t)},
		"--api-key-file: read API keys":           {"--api-key-file", "x", "--pd-config", pdJSON(t)},
		"--control-secret-file: read the control": {"--control-secret-file", "x", "--pd-config", pdJSON(t)},
		"cannot load PD config missing.json":      {"--pd-config", "missing.json"},
		"runtime.decode":                          {"--pd-config", write(t, `{"runtime":{"prefill":[{"host":"a","port":1}]}}`)},
	} {
		var out, errs strings.Builder
		require.Equal(t, 2, app.Run(context.Background(), args, nil, &out, &errs), want)
		require.Empty(t, out.String())
		require.Equal(t, 1, strings.Count(errs.String(), "\n"), "%s", errs.String())
		require.Contains(t, errs.String(), "pypto-pd-router: ")
		require.Contains(t, errs.String(), want)
	}
}

// Case B53: no library says anything of its own.
func TestVersionAndHelpExit0(t *testing.T) {
	for _, arg := range []string{"--version", "--help"} {
		var out, errs strings.Builder
		require.Equal(t, 0, app.Run(context.Background(), []string{arg}, nil, &out, &errs))
		require.Contains(t, out.String(), "pypto-pd-router")
		require.Empty(t, errs.String())
	}
}

func TestTakenPortExits1BeforeAnythingStarts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	var out, errs strings.Builder
	code := app.Run(context.Background(), []string{"--pd-config", pdJSON(t), "--port", fmt.Sprint(l.Addr().(*net.TCPAddr).Port)}, nil, &out, &errs)
	require.Equal(t, 1, code)
	require.Empty(t, out.String())
	require.Contains(t, errs.String(), "address already in use")
}

func TestRouterRunsUntilItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- app.Run(ctx, []string{"--pd-config", pdJSON(t), "--port", "0", "--log-level", "error"}, nil, w, io.Discard)
		w.Close()
	}()
	out := bufio.NewReader(r)
	line, err := out.ReadString('\n')
	require.NoError(t, err)
	fields := map[string]string{}
	for _, f := range strings.Fields(line) {
		k, v, _ := strings.Cut(f, "=")
		fields[k] = v
	}
	require.True(t, strings.HasPrefix(line, "pypto-pd-router ready: "), "%s", line)
	require.Equal(t, "1", fields["prefill"])

	nc, err := net.Dial("tcp", fields["http"])
	require.NoError(t, err)
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(patience))
	io.WriteString(nc, "GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(nc), nil)
	require.NoError(t, err)
	require.Equal(t, 503, answer.StatusCode)
	var health struct {
		Status string
		Run    string `json:"run_id"`
	}
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&health))
	require.Equal(t, "error", health.Status)
	require.Equal(t, fields["run"], health.Run)

	cancel()
	select {
	case c := <-code:
		require.Equal(t, 0, c)
	case <-time.After(patience):
		require.FailNow(t, "the router does not stop")
	}
}
