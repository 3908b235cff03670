package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// scriptedMeasurement returns figures of two binaries in order, and records the order of calls.
func scriptedMeasurement(turns *[]string, names map[*Env]string, figures map[string][]float64) func(context.Context,
	*Env) (Sample,
	error) {
	return func(_ context.Context, e *Env) (Sample, error) {
		name := names[e]
		*turns = append(*turns, name)
		v := figures[name]
		if len(v) == 0 {
			return Sample{}, errors.New("broken")
		}
		figures[name] = v[1:]
		return Sample{Value: v[0]}, nil
	}
}

func TestCompare(t *testing.T) {
	base, changed := &Env{Limit: time.Minute}, &Env{Limit: time.Minute}
	names := map[*Env]string{base: "base", changed: "new"}
	var turns, ignored []string
	machine := []float64{10, 30, 12, 11, 25, 10, 14, 10} // the speed of the machine drifts, but the ratio does not
	times := func(f ...float64) []float64 {
		v := make([]float64, len(machine))
		for i := range v {
			v[i] = machine[i] * f[i%len(f)]
		}
		return v
	}
	list := []ComparedExchange{
		{"latency", "µs", false, scriptedMeasurement(&turns, names, map[string][]float64{"base": times(1), "new": times(0.9,
			0.92)})},
		{"bandwidth", "MB/s", true, scriptedMeasurement(&ignored, names,
			map[string][]float64{"base": times(1), "new": times(0.8, 0.85)})},
		{"noise", "µs", false, scriptedMeasurement(&ignored, names, map[string][]float64{"base": times(1), "new": times(0.7,
			1.4)})},
		{"broken", "µs", false, scriptedMeasurement(&ignored, names, map[string][]float64{"base": times(1), "new": {9}})},
	}
	all, err := compareBinaries(context.Background(), base, changed, list, len(machine), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "broken: pair 2, new: broken") {
		t.Errorf("error: got %v, want the error of the broken exchange", err)
	}
	if want := strings.Fields("base new new base base new new base"); !slices.Equal(turns[:8], want) {
		t.Errorf("order: got %v, want %v", turns[:8], want)
	}
	for i, want := range []string{"better", "worse", "no difference seen", "too few pairs (1)"} {
		if all[i].Verdict != want {
			t.Errorf("%s: got %q (%v to %v), want %q", all[i].Name, all[i].Verdict, all[i].Low, all[i].High, want)
		}
	}
	r := CompareReport{Header{Date: "2026-11-22 10:00:00 UTC", Version: "b50b3b4", CPU: "Some Processor",
		Kernel: "6.18.44", Cores: 2,
		Rounds: 8, LoadFrom: "0.10 0.20 0.30", LoadTo: "1.00 0.80 0.50"}, "main (ec58c10)", all}
	var md bytes.Buffer
	r.Markdown(&md)
	compareGolden(t, "compare.md", md.Bytes())
}
