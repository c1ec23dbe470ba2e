package relay

import (
	"bytes"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// MetricsHandler answers with what a registry gathers, in Prometheus text form.
func MetricsHandler(g prometheus.Gatherer) edge.Handler {
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	return func(c *edge.Call) {
		families, err := g.Gather()
		var b bytes.Buffer
		for _, f := range families {
			if err == nil {
				_, err = expfmt.MetricFamilyToText(&b, f)
			}
		}
		if err != nil {
			ReplyError(c, &pd.Error{Op: "gather metrics", Code: pd.CodeInternal, Err: err})
			return
		}
		c.Reply(200, string(format), b.Bytes())
	}
}
