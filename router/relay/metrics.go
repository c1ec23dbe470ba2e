package relay

import (
	"bytes"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
)

// MetricsHandler answers with what collectors tell, and with what the Go runtime and
// the process do, in Prometheus text form.
func MetricsHandler(all ...prometheus.Collector) edge.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(all...)
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	return func(c *edge.Call) {
		families, err := registry.Gather()
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
