package pdnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
	"github.com/hw-native-sys/pypto-pd/pd/shell"
)

// adminServer takes operators' orders on a unix socket that only the node's own
// user may open. It is not a network port: whoever may write there may as well
// stop the process.
type adminServer struct {
	listener net.Listener
	path     string
	done     func()
	server   *http.Server
	running  sync.WaitGroup
}

func listenAdmin(f journal.Files) (*adminServer, error) {
	path, done, err := program.UnixSocket(f.State, f.Admin)
	if err != nil {
		return nil, err
	}
	// A socket file of an earlier boot is left over; a living one holds the boot
	// lock, which this process has by now.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		done()
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		done()
		return nil, fmt.Errorf("admin socket %s: %w", filepath.Join(f.State, f.Admin), err)
	}
	return &adminServer{listener: l, path: path, done: done}, nil
}

// serve answers orders until close.
func (a *adminServer) serve(s *shell.Shell) {
	mux := http.NewServeMux()
	order := func(path string, f func(r *http.Request) any) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { answerOrder(w, r, s, f(r)) })
	}
	order("/fence", func(*http.Request) any { return node.FenceOrder{} })
	order("/drain", func(*http.Request) any { return node.DrainOrder{} })
	order("/gates", func(*http.Request) any { return node.GatesOrder{} })
	order("/dead", func(r *http.Request) any { return node.DeathOrder{Boot: pd.BootID(r.FormValue("boot"))} })
	order("/cancel", func(r *http.Request) any { return node.CancelOrder{Request: pd.RequestID(r.FormValue("request"))} })
	a.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	a.running.Go(func() { _ = a.server.Serve(a.listener) }) // ends with close
}

func answerOrder(w http.ResponseWriter, r *http.Request, s *shell.Shell, order any) {
	answer, err := s.Order(r.Context(), order)
	w.Header().Set("Content-Type", openai.TypeJSON)
	if err != nil {
		w.WriteHeader(openai.HTTPStatus(pd.CodeOf(err)))
		_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"code": pd.CodeOf(err).String(), "message": err.Error()}})
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// close ends the server and removes the socket.
func (a *adminServer) close() {
	if a == nil {
		return
	}
	if a.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if a.server.Shutdown(ctx) != nil {
			a.server.Close()
		}
		a.running.Wait()
	} else {
		a.listener.Close()
	}
	a.done()
}
