package main

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Summary describes a set of figures.
type Summary struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Low    float64 `json:"low"` // the smallest
	High   float64 `json:"high"`
	Q1     float64 `json:"q1"` // the quartiles
	Q3     float64 `json:"q3"`
}

// summarise returns the summary of v, which is zero without figures.
func summarise(v []float64) Summary {
	if len(v) == 0 {
		return Summary{}
	}
	s := slices.Sorted(slices.Values(v))
	return Summary{N: len(s), Median: quantile(s, 0.5), Low: s[0], High: s[len(s)-1], Q1: quantile(s, 0.25), Q3: quantile(s, 0.75)}
}

// quantile returns the q-quantile of sorted figures, interpolated between the two nearest.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(math.Floor(at))
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// interval returns bounds that hold the median of the population with the given confidence, by the percentile bootstrap.
func interval(v []float64, confidence float64, random *rand.Rand) (low, high float64) {
	const resamples = 10000
	if len(v) == 0 {
		return 0, 0
	}
	medians, sample := make([]float64, resamples), make([]float64, len(v))
	for i := range medians {
		for j := range sample {
			sample[j] = v[random.IntN(len(v))]
		}
		slices.Sort(sample)
		medians[i] = quantile(sample, 0.5)
	}
	slices.Sort(medians)
	return quantile(medians, (1-confidence)/2), quantile(medians, (1+confidence)/2)
}

// ratios returns a/b for each round in which both were measured. Figures that were not measured are NaN.
func ratios(a, b []float64) []float64 {
	var r []float64
	for i := range min(len(a), len(b)) {
		if q := a[i] / b[i]; !math.IsNaN(q) && !math.IsInf(q, 0) {
			r = append(r, q)
		}
	}
	return r
}
