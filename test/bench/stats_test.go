package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestSummarise(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		want Summary
	}{
		{nil, Summary{}},
		{[]float64{7}, Summary{1, 7, 7, 7, 7, 7}},
		{[]float64{4, 1}, Summary{2, 2.5, 1, 4, 1.75, 3.25}},
		{[]float64{5, 1, 4, 2, 3}, Summary{5, 3, 1, 5, 2, 4}},
		{[]float64{1, 2, 3, 100}, Summary{4, 2.5, 1, 100, 1.75, 27.25}},
	} {
		if got := summarise(c.v); got != c.want {
			t.Errorf("summarise(%v): got %+v, want %+v", c.v, got, c.want)
		}
	}
	v := []float64{3, 1, 2}
	if summarise(v); !slices.Equal(v, []float64{3, 1, 2}) {
		t.Errorf("argument of summarise: got %v, want no change", v)
	}
}

func TestQuantile(t *testing.T) {
	sorted := []float64{10, 20, 30, 40}
	for q, want := range map[float64]float64{0: 10, 0.25: 17.5, 0.5: 25, 0.9: 37, 1: 40} {
		if got := quantile(sorted, q); math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile(%v, %v): got %v, want %v", sorted, q, got, want)
		}
	}
}

func TestRatios(t *testing.T) {
	nan := math.NaN()
	got := ratios([]float64{2, nan, 6, 1, 9}, []float64{1, 5, 3, 0})
	if want := []float64{2, 2}; !slices.Equal(got, want) {
		t.Errorf("ratios: got %v, want %v (only rounds in which both were measured)", got, want)
	}
}

func TestMedianInterval(t *testing.T) {
	upTo := func(n int) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = float64(n - i)
		}
		return v
	}
	for _, c := range []struct {
		n          int
		confidence float64
		low, high  float64
		ok         bool
	}{ // values from tables of the sign test
		{0, 0.95, 0, 0, false}, {5, 0.95, 0, 0, false}, {6, 0.95, 1, 6, true}, {9, 0.95, 2, 8, true}, {15, 0.95, 4, 12, true},
		{20, 0.95, 6, 15, true}, {7, 0.99, 0, 0, false}, {8, 0.99, 1, 8, true}, {15, 0.99, 3, 13, true}, {40, 0.95, 14, 27,
			true},
	} {
		if low, high, ok := medianInterval(upTo(c.n), c.confidence); low != c.low || high != c.high || ok != c.ok {
			t.Errorf("interval of 1 to %d, %v: got %v to %v, %v, want %v to %v, %v", c.n, c.confidence, low, high, ok, c.low,
				c.high, c.ok)
		}
	}
	// At least 95 of 100 such intervals of samples from a known distribution contain the median of the
	// distribution.
	random := rand.New(rand.NewPCG(1, 2))
	held := 0
	for range 1000 {
		v := make([]float64, 15)
		for i := range v {
			v[i] = math.Exp(random.NormFloat64() / 10) // median 1
		}
		if low, high, _ := medianInterval(v, 0.95); low <= 1 && 1 <= high {
			held++
		}
	}
	if held < 940 || held > 990 {
		t.Errorf("intervals with the median: got %d of 1000, want about 965", held)
	}
}
