package program

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// HangUps are the SIGHUPs of a program that reads its files again when one comes.
type HangUps struct{ signals chan os.Signal }

// CatchHangUps keeps SIGHUP from ending the process until Release. One that comes
// before Each runs waits.
func CatchHangUps() *HangUps {
	h := &HangUps{signals: make(chan os.Signal, 1)}
	signal.Notify(h.signals, syscall.SIGHUP)
	return h
}

// Release lets SIGHUP end the process again.
func (h *HangUps) Release() { signal.Stop(h.signals) }

// Each calls reload for every SIGHUP until the context ends, and logs its errors.
func (h *HangUps) Each(ctx context.Context, log *slog.Logger, reload func() error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.signals:
			if err := reload(); err != nil {
				log.Error("not everything could be read again; that stays as it was", "error", err)
			}
		}
	}
}
