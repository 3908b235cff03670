package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
)

// Series holds the results of one measurement in all rounds.
type Series struct {
	Name   string               `json:"name"`
	Kind   Kind                 `json:"kind"`
	Values []*float64           `json:"values"` // one value per round; null if not measured
	Extras map[string][]float64 `json:"extras,omitempty"`
	Errors []string             `json:"errors,omitempty"`

	Summary Summary `json:"summary"`
	Floor   *Ratio  `json:"floor,omitempty"`
	Peer    *Ratio  `json:"peer,omitempty"`
}

// Ratio compares two series round by round.
type Ratio struct {
	To string `json:"to"`
	Summary
}

// GroupResult holds the results of a group.
type GroupResult struct {
	Name   string    `json:"name"`
	Series []*Series `json:"series"`
}

// SectionResult holds the results of a section.
type SectionResult struct {
	Name   string         `json:"name"`
	Title  string         `json:"title"`
	Unit   string         `json:"unit"`
	Note   string         `json:"note,omitempty"`
	Floor  string         `json:"floor_heading,omitempty"`
	Peer   string         `json:"peer_heading,omitempty"`
	Extras []string       `json:"extras,omitempty"`
	Groups []*GroupResult `json:"groups"`
}

// Runner takes measurements.
type Runner struct {
	Env    *Env
	Rounds int
	Log    io.Writer // output for progress messages

	Complete int // number of complete rounds of Run
}

// maxFailures is the number of failures after which a measurement is not repeated any more.
const maxFailures = 2

// Run takes every measurement once in each round. The measurements of a group alternate, and each round begins with
// a different measurement. Neither a drift of the machine nor the order therefore favours a measurement. A failed
// measurement is recorded, and the other measurements continue. Run therefore returns results together with the
// context's error.
func (r *Runner) Run(ctx context.Context, sections []Section) ([]*SectionResult, error) {
	var results []*SectionResult
	for _, s := range sections {
		sr := &SectionResult{Name: s.Name, Title: s.Title, Unit: s.Unit, Note: s.Note, Floor: s.Floor, Peer: s.Peer,
			Extras: s.Extras}
		for _, g := range s.Groups {
			gr := &GroupResult{Name: g.Name}
			for _, m := range g.Measurements {
				gr.Series = append(gr.Series, &Series{Name: m.Name, Kind: m.Kind, Values: make([]*float64, r.Rounds)})
			}
			sr.Groups = append(sr.Groups, gr)
		}
		results = append(results, sr)
	}
	for round := range r.Rounds {
		for i, s := range sections {
			for j, g := range s.Groups {
				if ctx.Err() != nil {
					break
				}
				fmt.Fprintf(r.Log, "round %d of %d: %s/%s\n", round+1, r.Rounds, s.Name, g.Name)
				for k := range g.Measurements {
					k = (k + round) % len(g.Measurements)
					r.measureSeries(ctx, g.Measurements[k], results[i].Groups[j].Series[k], round)
				}
			}
		}
		if ctx.Err() != nil {
			break
		}
		r.Complete++
	}
	for i, s := range sections {
		for j, g := range s.Groups {
			results[i].Groups[j].computeRatios(g)
		}
	}
	return results, ctx.Err()
}

func (r *Runner) measureSeries(ctx context.Context, m Measurement, s *Series, round int) {
	if ctx.Err() != nil || len(s.Errors) >= maxFailures {
		return
	}
	sample, err := r.Env.measureWithTimeout(ctx, m.Take)
	if ctx.Err() != nil { // the run was ended, which is not a failure of this measurement
		return
	}
	if err != nil {
		s.Errors = append(s.Errors, fmt.Sprintf("round %d: %v", round+1, err))
		return
	}
	s.Values[round] = &sample.Value
	for name, v := range sample.Extras {
		if math.IsNaN(v) || math.IsInf(v, 0) { // not representable in JSON
			continue
		}
		if s.Extras == nil {
			s.Extras = map[string][]float64{}
		}
		s.Extras[name] = append(s.Extras[name], v)
	}
}

// measureWithTimeout takes one figure within the time limit.
func (e *Env) measureWithTimeout(ctx context.Context, take func(context.Context, *Env) (Sample, error)) (Sample,
	error) {
	limited, cancel := context.WithTimeoutCause(ctx, e.Limit, fmt.Errorf("not complete within %v", e.Limit))
	defer cancel()
	s, err := take(limited, e)
	if err == nil && (math.IsNaN(s.Value) || math.IsInf(s.Value, 0)) {
		return s, fmt.Errorf("invalid figure %v", s.Value)
	}
	if err != nil && limited.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(limited), err)
	}
	return s, err
}

// computeRatios computes the summaries and ratios.
func (g *GroupResult) computeRatios(of Group) {
	for i, s := range g.Series {
		s.Summary = summarise(s.measuredFigures())
		s.Floor = g.ratioTo(s, of.Measurements[i].Floor)
		s.Peer = g.ratioTo(s, of.Measurements[i].Peer)
	}
}

func (g *GroupResult) ratioTo(s *Series, to string) *Ratio {
	other := g.findSeries(to)
	if other == nil {
		return nil
	}
	q := ratios(s.figures(), other.figures())
	if len(q) == 0 {
		return nil
	}
	return &Ratio{to, summarise(q)}
}

func (g *GroupResult) findSeries(name string) *Series {
	if i := slices.IndexFunc(g.Series, func(s *Series) bool { return s.Name == name }); i >= 0 {
		return g.Series[i]
	}
	return nil
}

// figures returns one figure per round, or NaN.
func (s *Series) figures() []float64 {
	v := make([]float64, len(s.Values))
	for i, p := range s.Values {
		if v[i] = math.NaN(); p != nil {
			v[i] = *p
		}
	}
	return v
}

// measuredFigures returns the figures of the measured rounds.
func (s *Series) measuredFigures() []float64 {
	return slices.DeleteFunc(s.figures(), math.IsNaN)
}

// filterSections returns the sections with the measurements whose "section/group/measurement" matches, and the
// measurements that these are compared with.
func filterSections(sections []Section, pattern *regexp.Regexp, short bool) []Section {
	var chosen []Section
	for _, s := range sections {
		var groups []Group
		for _, g := range s.Groups {
			wanted := map[string]bool{}
			for _, m := range g.Measurements {
				if (g.Short || !short) && pattern.MatchString(s.Name+"/"+g.Name+"/"+m.Name) {
					wanted[m.Name], wanted[m.Floor], wanted[m.Peer] = true, true, true
				}
			}
			g.Measurements = slices.DeleteFunc(slices.Clone(g.Measurements), func(m Measurement) bool { return !wanted[m.Name] })
			if len(g.Measurements) > 0 {
				groups = append(groups, g)
			}
		}
		if s.Groups = groups; len(groups) > 0 {
			chosen = append(chosen, s)
		}
	}
	return chosen
}

// listFailures returns a line for each failed measurement.
func listFailures(results []*SectionResult) []string {
	var lines []string
	for _, s := range results {
		for _, g := range s.Groups {
			for _, m := range g.Series {
				for _, e := range m.Errors {
					lines = append(lines, fmt.Sprintf("%s/%s/%s: %s", s.Name, g.Name, m.Name, e))
				}
			}
		}
	}
	return lines
}
