package main

import (
	"math"
	"slices"
)

// Summary describes a set of figures.
type Summary struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Low    float64 `json:"low"`  // the minimum
	High   float64 `json:"high"` // the maximum
	Q1     float64 `json:"q1"`   // the quartiles
	Q3     float64 `json:"q3"`
}

// summarise returns the summary of v, or the zero Summary if there are no figures.
func summarise(v []float64) Summary {
	if len(v) == 0 {
		return Summary{}
	}
	s := slices.Sorted(slices.Values(v))
	return Summary{N: len(s), Median: quantile(s, 0.5), Low: s[0], High: s[len(s)-1], Q1: quantile(s, 0.25),
		Q3: quantile(s, 0.75)}
}

// quantile returns the q-quantile of sorted figures, interpolated between the two nearest figures.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(math.Floor(at))
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// medianInterval returns bounds of the median of the population with at least the given confidence, for any
// distribution. The bounds are the k-th smallest and k-th largest figure, with the largest suitable k. ok is false if
// there are too few figures.
func medianInterval(v []float64, confidence float64) (low, high float64, ok bool) {
	s := slices.Sorted(slices.Values(v))
	// The median is below the k-th smallest figure with the probability of fewer than k heads in len(s) coin
	// tosses. It is above the k-th largest figure with the same probability.
	term := math.Pow(0.5, float64(len(s)))
	outside := 0.0
	for k := 1; k <= len(s)/2; k++ {
		if outside += 2 * term; 1-outside < confidence {
			break
		}
		low, high, ok = s[k-1], s[len(s)-k], true
		term *= float64(len(s)-k+1) / float64(k)
	}
	return low, high, ok
}

// ratios returns a/b for each round with both figures. A missing figure is NaN, and its round is omitted.
func ratios(a, b []float64) []float64 {
	var r []float64
	for i := range min(len(a), len(b)) {
		if q := a[i] / b[i]; !math.IsNaN(q) && !math.IsInf(q, 0) {
			r = append(r, q)
		}
	}
	return r
}
