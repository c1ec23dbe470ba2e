package pdrouter

import (
	"context"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// poll asks one node for its descriptor, every interval and at once when poked.
func (r *Router) poll(ctx context.Context, n *node) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.gone:
			r.options.Log.Info("node left", "side", n.role.String(), "node", n.id)
			return
		case <-timer.C:
		case <-n.ask:
		}
		r.askNode(ctx, n)
		timer.Reset(r.options.PollInterval)
	}
}

func (r *Router) askNode(ctx context.Context, n *node) {
	ctx, cancel := context.WithTimeout(ctx, r.options.PollTimeout)
	defer cancel()
	before := r.pool.describe(n)
	said, err := r.probes.Node(ctx, n.control)
	if err != nil {
		if r.pool.lost(n, pollFailure(err)) && r.base.Err() == nil {
			r.options.Log.Warn("node lost", "side", n.role.String(), "node", n.id, "code", pd.CodeOf(err).String(), "error", err)
		}
		return
	}
	r.pool.heard(n, &said)
	if after := r.pool.describe(n); after != before {
		r.options.Log.Info("node changed", "side", n.role.String(), "node", n.id, "boot", after.boot, "state", after.state, "reason", after.reason)
	}
}

// pollFailure words why a node cannot be asked; addresses stay in the log.
func pollFailure(err error) string {
	if pd.CodeOf(err) == pd.CodeDeadline {
		return "does not answer on its control port"
	}
	return err.Error()
}

// described is what a change of is worth a line in the log.
type described struct {
	boot   pd.BootID
	state  string
	reason string
}

func (p *pool) describe(n *node) described {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := described{boot: n.boot(), reason: n.unfit}
	if n.unfit == "" && n.said != nil {
		d.state, d.reason = n.said.Health.String(), n.said.Reason
	}
	return d
}
