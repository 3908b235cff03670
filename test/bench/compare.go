package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// Comparison is the result of make bench-compare for one exchange. Comparison holds the ratios of the new binary's
// figures to the old binary's figures, for pairs measured one after another.
type Comparison struct {
	Name     string    `json:"name"`
	Unit     string    `json:"unit"`
	Higher   bool      `json:"higher_is_better"`
	Base     []float64 `json:"base"`
	New      []float64 `json:"new"`
	Ratios   Summary   `json:"ratios"`
	Low      float64   `json:"confidence_low"` // 99 % confidence interval of the median ratio
	High     float64   `json:"confidence_high"`
	Verdict  string    `json:"verdict"`
	Failures []string  `json:"errors,omitempty"`
}

// medianConfidence is the confidence of the bounds of the median ratio. If ten exchanges have not changed, nine of ten
// runs find no difference in any exchange.
const medianConfidence = 0.99

// computeResults computes the results from the figures.
func (c *Comparison) computeResults() {
	q := ratios(c.New, c.Base)
	c.Ratios = summarise(q)
	low, high, ok := medianInterval(q, medianConfidence)
	c.Low, c.High = low, high
	switch {
	case len(q) == 0:
		c.Verdict = "not measured"
	case !ok:
		c.Verdict = fmt.Sprintf("too few pairs (%d)", len(q))
	case low <= 1 && high >= 1:
		c.Verdict = "no difference seen"
	case (low > 1) == c.Higher:
		c.Verdict = "better"
	default:
		c.Verdict = "worse"
	}
}

// ComparedExchange is an exchange of make bench-compare.
type ComparedExchange struct {
	Name, Unit string
	Higher     bool // a higher figure is better
	Take       func(context.Context, *Env) (Sample, error)
}

// compareBinaries measures both binaries alternately. The order changes in each round.
func compareBinaries(ctx context.Context, base, changed *Env, list []ComparedExchange, rounds int,
	progress io.Writer) ([]*Comparison,
	error) {
	var all []*Comparison
	for _, x := range list {
		all = append(all, &Comparison{Name: x.Name, Unit: x.Unit, Higher: x.Higher})
	}
pairs:
	for round := range rounds {
		fmt.Fprintf(progress, "pair %d of %d\n", round+1, rounds)
		for i, x := range list {
			if len(all[i].Failures) >= maxFailures {
				continue
			}
			pair := [2]float64{math.NaN(), math.NaN()}
			for k := range pair {
				k = (k + round) % 2
				s, err := []*Env{base, changed}[k].measureWithTimeout(ctx, x.Take)
				if ctx.Err() != nil {
					break pairs
				}
				if err != nil {
					all[i].Failures = append(all[i].Failures, fmt.Sprintf("pair %d, %s: %v", round+1, []string{"base", "new"}[k], err))
					break
				}
				pair[k] = s.Value
			}
			if !math.IsNaN(pair[0]) && !math.IsNaN(pair[1]) { // JSON has no NaN
				all[i].Base, all[i].New = append(all[i].Base, pair[0]), append(all[i].New, pair[1])
			}
		}
	}
	err := ctx.Err()
	for _, c := range all {
		c.computeResults()
		for _, f := range c.Failures {
			err = errors.Join(err, fmt.Errorf("%s: %s", c.Name, f))
		}
	}
	return all, err
}

// CompareReport is the result of a whole comparison.
type CompareReport struct {
	Header      Header        `json:"header"`
	Base        string        `json:"base"`
	Comparisons []*Comparison `json:"comparisons"`
}

// Markdown writes the comparison as text with a table.
func (r *CompareReport) Markdown(w io.Writer) {
	h := r.Header
	fmt.Fprintf(w,
		"%s against %s, on %s; %s, kernel %s, %d cores. Load average before %s, after %s. %d pairs, taken in alternation.\n\n",
		h.Version, r.Base, h.Date, h.CPU, h.Kernel, h.Cores, h.LoadFrom, h.LoadTo, h.Rounds)
	fmt.Fprintf(w,
		"| | base | new | new / base | 99 %% of the median | quartiles | range | |\n|---|---:|---:|---:|---:|---:|---:|---|\n")
	for _, c := range r.Comparisons {
		fmt.Fprintf(w, "| %s, %s | %s | %s | %s | %s | %s–%s | %s | %s |\n", c.Name, c.Unit,
			formatFigure(summarise(c.Base).Median),
			formatFigure(summarise(c.New).Median), formatFigure(c.Ratios.Median), c.formatBounds(),
			formatFigure(c.Ratios.Q1), formatFigure(c.Ratios.Q3),
			c.Ratios.formatRange(), c.Verdict)
	}
	for _, c := range r.Comparisons {
		for _, f := range c.Failures {
			fmt.Fprintf(w, "\nFailed: %s: %s\n", c.Name, strings.TrimSpace(f))
		}
	}
}

func (c *Comparison) formatBounds() string {
	if c.Low == 0 {
		return ""
	}
	return formatFigure(c.Low) + "–" + formatFigure(c.High)
}
