package app

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/hw-native-sys/pypto-pd/pd/config"
)

// catchHangUps keeps SIGHUP from ending the process until stop is called. One that
// comes before there is a node waits.
func catchHangUps() (signals chan os.Signal, stop func()) {
	signals = make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	return signals, func() { signal.Stop(signals) }
}

// reread takes the next version of pd.json in for every SIGHUP until the context
// ends.
func (n *pdNode) reread(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.hangUps:
			if err := n.node.Reload(config.Load(n.settings.PDConfig)); err != nil {
				n.node.Log.Error("pd.json was not read again; everything stays as it was", "error", err)
			}
		}
	}
}
