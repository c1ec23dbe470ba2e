package cluster

import (
	"bytes"
	"fmt"
	"io"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Samples are the metrics of one process by name.
type Samples map[string]*dto.MetricFamily

// Metrics reads the /metrics of a router or node.
func Metrics(url string) (Samples, error) {
	status, body, err := Get(url + "/metrics")
	if err != nil {
		return nil, err
	}
	if status != 200 {
		return nil, fmt.Errorf("%s/metrics answered %d", url, status)
	}
	out := Samples{}
	for d := expfmt.NewDecoder(bytes.NewReader(body), expfmt.NewFormat(expfmt.TypeTextPlain)); ; {
		family := &dto.MetricFamily{}
		if err := d.Decode(family); err == io.EOF {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s/metrics: %w", url, err)
		}
		out[family.GetName()] = family
	}
}

// Sum adds up the gauges and counters of a name whose label has a value; with
// an empty label it takes all.
func (s Samples) Sum(name, label, value string) float64 {
	sum := 0.0
	for _, m := range s[name].GetMetric() {
		match := label == ""
		for _, l := range m.GetLabel() {
			match = match || l.GetName() == label && l.GetValue() == value
		}
		if match {
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return sum
}
