package stub

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The variables that a launched stub reads; all are optional. Times are as in Go.
const (
	// CardsVariable names the folder with the locks of the cards, without which
	// none are taken.
	CardsVariable = "STUB_CARDS"
	// NameVariable is served_by; the port without it.
	NameVariable = "STUB_NAME"
	// LoadVariable is the time until the port is bound.
	LoadVariable = "STUB_LOAD"
	// FailVariable is an exit status, taken when the load ends; FailOnceVariable
	// names a file that is made then, and with which the load does not fail.
	FailVariable     = "STUB_FAIL"
	FailOnceVariable = "STUB_FAIL_ONCE"
	// DeafVariable, if not empty, has the replica ignore SIGTERM.
	DeafVariable = "STUB_DEAF"
	// WorkersVariable starts one worker per card, which holds the card's lock and
	// outlives the replica: "group" in its process group, "session" in a session
	// and with a name of its own. DeafWorkersVariable has them ignore SIGTERM for
	// that long.
	WorkersVariable     = "STUB_WORKERS"
	DeafWorkersVariable = "STUB_WORKERS_DEAF"
	// TokensVariable and TokenDelayVariable are Config's.
	TokensVariable     = "STUB_TOKENS"
	TokenDelayVariable = "STUB_TOKEN_DELAY"
)

const (
	statusFailed = 1
	// statusViolation: a card was taken.
	statusViolation = 70
	worker          = "device-worker"
	violations      = "violations"
	starts          = "starts"
)

// Main is the program. It never returns.
func Main() {
	if len(os.Args) > 1 && os.Args[0] == worker {
		work(os.Args[1])
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "stub-replica:", err)
		os.Exit(statusFailed)
	}
	os.Exit(0)
}

// flagValue finds a flag of the serving command line. Whatever else stands there
// is nobody's business.
func flagValue(name string) string {
	for i, a := range os.Args[:len(os.Args)-1] {
		if a == name {
			return os.Args[i+1]
		}
	}
	return ""
}

func duration(variable string) time.Duration {
	d, _ := time.ParseDuration(os.Getenv(variable))
	return d
}

func run() error {
	terminated := make(chan os.Signal, 1)
	if os.Getenv(DeafVariable) == "" {
		signal.Notify(terminated, syscall.SIGTERM)
	} else {
		signal.Ignore(syscall.SIGTERM)
	}
	port := flagValue("--port")
	fmt.Fprintf(os.Stderr, "stub-replica: startup: pid %d, port %s, devices %s\n", os.Getpid(), port, flagValue("--devices"))
	cards, err := takeCards(os.Getenv(CardsVariable), strings.Split(flagValue("--devices"), ","))
	if err != nil {
		fmt.Fprintln(os.Stderr, "stub-replica:", err)
		os.Exit(statusViolation)
	}
	if err := startWorkers(cards); err != nil {
		return err
	}
	select {
	case <-time.After(duration(LoadVariable)):
	case <-terminated:
		return nil
	}
	if status := failure(); status != 0 {
		fmt.Fprintln(os.Stderr, "stub-replica: out of memory on a card")
		os.Exit(status)
	}
	c := Config{Name: os.Getenv(NameVariable), Model: flagValue("--served-model-name"), TokenDelay: duration(TokenDelayVariable)}
	_, _ = fmt.Sscan(os.Getenv(TokensVariable), &c.Tokens)
	if c.Name == "" {
		c.Name = port
	}
	if c.Model == "" {
		c.Model = filepath.Base(flagValue("--model"))
	}
	l, err := net.Listen("tcp", net.JoinHostPort(flagValue("--host"), port))
	if err != nil {
		return err
	}
	r := New(c)
	// What a process does to itself: crash without a word, or accept no more.
	r.mux.HandleFunc("POST /crash", func(http.ResponseWriter, *http.Request) { os.Exit(9) })
	r.mux.HandleFunc("POST /silence", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		l.Close()
	})
	s := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }() // it ends by /silence, and the process lives on
	fmt.Fprintf(os.Stderr, "stub-replica: startup: port bound: %s\n", l.Addr())
	<-terminated
	return nil
}

// failure is the status with which the load fails; 0 if it does not.
func failure() (status int) {
	_, _ = fmt.Sscan(os.Getenv(FailVariable), &status)
	if once := os.Getenv(FailOnceVariable); once != "" && status != 0 {
		f, err := os.OpenFile(once, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return 0
		}
		f.Close()
	}
	return status
}

// takeCards locks one file per card. It does not wait: a card that is taken has
// two processes on it, which is what must never be.
func takeCards(folder string, devices []string) ([]*os.File, error) {
	if folder == "" {
		return nil, nil
	}
	var out []*os.File
	for _, d := range devices {
		f, err := os.OpenFile(filepath.Join(folder, "card-"+d), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			note(folder, violations, fmt.Sprintf("pid %d: card %s is taken: %v", os.Getpid(), d, err))
			return nil, fmt.Errorf("VIOLATION: card %s is taken: %w", d, err)
		}
		out = append(out, f)
	}
	note(folder, starts, fmt.Sprintf("pid %d: %s", os.Getpid(), strings.Join(devices, ",")))
	return out, nil
}

// note appends a line in one write, so that no two mix.
func note(folder, file, line string) {
	f, err := os.OpenFile(filepath.Join(folder, file), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(line + "\n")
		f.Close()
	}
	if err != nil {
		panic(err)
	}
}

// startWorkers hands the locks to workers, which keep them whatever becomes of
// this process.
func startWorkers(cards []*os.File) error {
	kind := os.Getenv(WorkersVariable)
	if kind == "" {
		return nil
	}
	for i, card := range cards {
		c := exec.Command("/proc/self/exe")
		c.Args = []string{worker, fmt.Sprint(i)}
		c.ExtraFiles = []*os.File{card}
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: kind == "session"}
		if err := c.Start(); err != nil {
			return err
		}
		card.Close() // the lock is the worker's alone
	}
	return nil
}

// work holds a card until it is told to end.
func work(string) {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	<-terminated
	if deaf := duration(DeafWorkersVariable); deaf > 0 {
		<-time.After(deaf)
	}
	os.Exit(0)
}
