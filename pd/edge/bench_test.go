package edge_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// benchServe is serve for benchmarks.
func benchServe(b *testing.B, h edge.Handler) string { return benchServeWith(b, nil, h) }

func benchServeWith(b *testing.B, certificate *edge.Certificate, h edge.Handler) string {
	s, err := edge.Listen(edge.ServerConfig{Address: "127.0.0.1:0", Certificate: certificate})
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(h) }()
	b.Cleanup(func() {
		s.Shutdown(b.Context())
		<-done
	})
	return s.Addr().String()
}

// benchTLS makes a certificate and what a client needs to believe it.
func benchTLS(b *testing.B) (*edge.Certificate, *tls.Config) {
	certFile, keyFile := filepath.Join(b.TempDir(), "cert.pem"), filepath.Join(b.TempDir(), "key.pem")
	pool := writeCertificate(b, certFile, keyFile, 1)
	certificate, err := edge.LoadCertificate(certFile, keyFile)
	if err != nil {
		b.Fatal(err)
	}
	return certificate, &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}
}

// reportCPU adds what the whole process took of the processors per operation, which
// depends less on how goroutines are woken than the time does.
func reportCPU(b *testing.B) func() {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	began := used()
	return func() { b.ReportMetric(float64(used()-began)/float64(b.N), "cpu-ns/op") }
}

// BenchmarkRelayEvent is what one event of 200 bytes costs from upstream to
// client, everything in one process; with TLS between client and relay, too.
func BenchmarkRelayEvent(b *testing.B) {
	b.Run("plain", func(b *testing.B) { relayEvents(b, nil, nil) })
	b.Run("tls", func(b *testing.B) {
		certificate, trust := benchTLS(b)
		relayEvents(b, certificate, trust)
	})
}

// BenchmarkConnect is a connection with one request on it.
func BenchmarkConnect(b *testing.B) {
	certificate, trust := benchTLS(b)
	for _, secured := range []bool{false, true} {
		b.Run(map[bool]string{false: "plain", true: "tls"}[secured], func(b *testing.B) {
			with := certificate
			if !secured {
				with = nil
			}
			address := benchServeWith(b, with, func(c *edge.Call) { c.Reply(200, "text/plain", []byte("hello")) })
			defer reportCPU(b)()
			for b.Loop() {
				nc, err := net.Dial("tcp", address)
				if err != nil {
					b.Fatal(err)
				}
				stream := nc
				if secured {
					stream = tls.Client(nc, trust)
				}
				io.WriteString(stream, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
				if text, err := io.ReadAll(stream); err != nil || len(text) == 0 {
					b.Fatal(err)
				}
				nc.Close()
			}
		})
	}
}

func relayEvents(b *testing.B, certificate *edge.Certificate, trust *tls.Config) {
	event := fmt.Appendf(nil, "%0198d", 7)
	n := make(chan int, 1)
	turn := make(chan struct{})
	upstream := benchServe(b, func(c *edge.Call) {
		c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
			for range <-n {
				if err := w.WriteEvent(event); err != nil {
					return err
				}
				<-turn
			}
			return nil
		})
	})
	client := edge.NewClient(edge.ClientConfig{})
	b.Cleanup(client.Close)
	front := benchServeWith(b, certificate, func(c *edge.Call) {
		x, err := client.Open(c.Context(), edge.Request{Method: "POST", Address: upstream, Target: "/", Body: c.Body()})
		if err != nil {
			return
		}
		defer x.Close()
		c.Stream(200, "text/event-stream", func(w *edge.StreamWriter) error {
			pump := edge.EventPump{Data: func([]byte) {}}
			return pump.Run(w, x)
		})
	})
	nc, err := net.Dial("tcp", front)
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	if trust != nil {
		nc = tls.Client(nc, trust)
	}
	b.ReportAllocs()
	defer reportCPU(b)()
	n <- b.N
	io.WriteString(nc, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	br := bufio.NewReader(nc)
	for got := 0; got < b.N; {
		line, err := br.ReadSlice('\n')
		if err != nil {
			b.Fatal(err)
		}
		if len(line) > 100 {
			got++
			turn <- struct{}{}
		}
	}
}

// BenchmarkCall is one small request and answer on a kept connection.
func BenchmarkCall(b *testing.B) {
	address := benchServe(b, func(c *edge.Call) { c.Reply(200, "text/plain", []byte("hello")) })
	nc, err := net.Dial("tcp", address)
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(time.Hour))
	br := bufio.NewReader(nc)
	b.ReportAllocs()
	for b.Loop() {
		io.WriteString(nc, "GET /health HTTP/1.1\r\nHost: h\r\nUser-Agent: b\r\n\r\n")
		for {
			line, err := br.ReadSlice('\n')
			if err != nil {
				b.Fatal(err)
			}
			if len(line) == 2 {
				break
			}
		}
		br.Discard(5)
	}
}

// BenchmarkExchange is one request on a connection of its own.
func BenchmarkExchange(b *testing.B) {
	address := benchServe(b, func(c *edge.Call) { c.Reply(200, "text/plain", []byte("hello")) })
	for _, reuse := range []bool{false, true} {
		b.Run(fmt.Sprintf("reuse=%t", reuse), func(b *testing.B) {
			client := edge.NewClient(edge.ClientConfig{ReusePOST: reuse})
			defer client.Close()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := client.Do(b.Context(), edge.Request{Method: "POST", Address: address, Target: "/", Body: []byte("x")}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
