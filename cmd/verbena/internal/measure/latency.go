package measure

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// latencyHistogram collects times with a precision of 0.1 %.
type latencyHistogram struct{ h *hdrhistogram.Histogram }

const maxLatency = 100 * time.Second

func newLatencyHistogram() *latencyHistogram {
	return &latencyHistogram{hdrhistogram.New(1, int64(maxLatency), 3)}
}

func (l *latencyHistogram) add(d time.Duration) {
	_ = l.h.RecordValue(int64(min(max(d, 1), maxLatency)))
}

// TimeDistribution is a distribution of times, in nanoseconds.
type TimeDistribution struct {
	Min    int64   `json:"min"`
	Mean   float64 `json:"mean"`
	StdDev float64 `json:"stddev"`
	P50    int64   `json:"p50"`
	P90    int64   `json:"p90"`
	P99    int64   `json:"p99"`
	P999   int64   `json:"p99_9"`
	P9999  int64   `json:"p99_99"`
	Max    int64   `json:"max"`
	// Buckets holds the counts of the times in intervals of doubling width.
	Buckets []HistogramBucket `json:"buckets"`
}

// HistogramBucket counts the times from From up to, but not including, To.
type HistogramBucket struct {
	From  int64 `json:"from"`
	To    int64 `json:"to"`
	Count int64 `json:"count"`
}

func (l *latencyHistogram) timeDistribution() TimeDistribution {
	t := TimeDistribution{
		Min: l.h.Min(), Mean: l.h.Mean(), StdDev: l.h.StdDev(), Max: l.h.Max(), P50: l.h.ValueAtQuantile(
			50), P90: l.h.ValueAtQuantile(90),
		P99: l.h.ValueAtQuantile(99), P999: l.h.ValueAtQuantile(99.9), P9999: l.h.ValueAtQuantile(99.99),
		Buckets: []HistogramBucket{},
	}
	if l.h.TotalCount() == 0 {
		t.Min = 0
	}
	for _, b := range l.h.Distribution() {
		if b.Count == 0 {
			continue
		}
		from := int64(1)
		for from*2 <= b.From {
			from *= 2
		}
		if n := len(t.Buckets); n > 0 && t.Buckets[n-1].From == from {
			t.Buckets[n-1].Count += b.Count
			continue
		}
		t.Buckets = append(t.Buckets, HistogramBucket{from, from * 2, b.Count})
	}
	return t
}

// WriteHistogram writes the buckets as a bar chart.
func (t *TimeDistribution) WriteHistogram(w io.Writer) {
	const width = 40
	var most, all int64
	for _, b := range t.Buckets {
		most, all = max(most, b.Count), all+b.Count
	}
	for _, b := range t.Buckets {
		bar := strings.Repeat("#", int((b.Count*width+most-1)/most))
		fmt.Fprintf(w, "  %9.2f to %9.2f us  %-*s %9d  %6.2f %%\n", toMicroseconds(b.From), toMicroseconds(b.To), width,
			bar, b.Count,
			100*float64(b.Count)/float64(all))
	}
}

func toMicroseconds(ns int64) float64 { return float64(ns) / 1e3 }
