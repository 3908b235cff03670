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
		t.Errorf("summarise sorted its argument: %v", v)
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

func TestInterval(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	if low, high := interval([]float64{1.5, 1.5, 1.5}, 0.95, random); low != 1.5 || high != 1.5 {
		t.Errorf("interval of one value: got %v to %v, want 1.5", low, high)
	}
	// 95 % intervals of samples from a known distribution hold its median about 95 times of 100.
	held := 0
	for range 200 {
		v := make([]float64, 15)
		for i := range v {
			v[i] = math.Exp(random.NormFloat64() / 10) // median 1
		}
		if low, high := interval(v, 0.95, random); low <= 1 && 1 <= high {
			held++
		}
	}
	if held < 176 || held > 200 {
		t.Errorf("the interval holds the median in %d of 200 samples, want about 190", held)
	}
}
