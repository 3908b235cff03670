package metrics

import (
	"math"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// TestProcessMetricsMatchPrometheus compares the metrics of the process with those of Prometheus' own library.
func TestProcessMetricsMatchPrometheus(t *testing.T) {
	values := func(c prometheus.Collector) map[string]float64 {
		r := prometheus.NewRegistry()
		r.MustRegister(c)
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		v := map[string]float64{}
		for _, f := range families {
			m := f.Metric[0]
			v[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
		return v
	}
	want := values(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	got := values(newProcessCollector())
	if len(got) != 6 {
		t.Errorf("metrics of the process: got %v, want 6 metrics", got)
	}
	for name, v := range got {
		w, ok := want[name]
		tolerance := 0.2*w + 5 // seconds, descriptors or bytes
		if name == "process_start_time_seconds" {
			tolerance = 5
		}
		if !ok || math.Abs(v-w) > tolerance {
			t.Errorf("%s: got %v, want %v", name, v, w)
		}
	}
}
