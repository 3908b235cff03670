package main

import (
	"context"
	"errors"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// fixedMeasurement returns a measurement with given figures, and records each call.
func fixedMeasurement(name string, taken *[]string, v ...float64) Measurement {
	return Measurement{Name: name, Take: func(context.Context, *Env) (Sample, error) {
		*taken = append(*taken, name)
		x := v[0]
		v = v[1:]
		return Sample{Value: x, Extras: map[string]float64{"x": 2 * x, "none": math.NaN()}}, nil
	}}
}

func runFixedMeasurements(t *testing.T, rounds int, m ...Measurement) *GroupResult {
	t.Helper()
	r := Runner{Env: &Env{Limit: time.Minute}, Rounds: rounds, Log: io.Discard}
	got, err := r.Run(context.Background(), []Section{{Name: "s", Groups: []Group{{Name: "g", Measurements: m}}}})
	if err != nil {
		t.Fatal(err)
	}
	return got[0].Groups[0]
}

func TestRunnerAlternates(t *testing.T) {
	var taken []string
	a, b, c := fixedMeasurement("a", &taken, 10, 20, 30), fixedMeasurement("b", &taken, 5, 4, 3), fixedMeasurement("c",
		&taken, 1, 1, 2)
	a.Floor, a.Peer = "b", "c"
	g := runFixedMeasurements(t, 3, a, b, c)
	if want := strings.Fields("a b c b c a c a b"); !slices.Equal(taken, want) {
		t.Errorf("order: got %v, want %v (each round begins with another measurement)", taken, want)
	}
	// The ratios by round are 2, 5, 10. The ratio of the medians would also be 5, and the ratios of the first and
	// the last values 10 and 6.
	want := Summary{N: 3, Median: 5, Low: 2, High: 10, Q1: 3.5, Q3: 7.5}
	if r := g.Series[0].Floor; r == nil || r.To != "b" || r.Summary != want {
		t.Errorf("floor: got %+v, want b and %+v", r, want)
	}
	if r := g.Series[0].Peer; r == nil || r.To != "c" || r.Median != 15 {
		t.Errorf("peer: got %+v, want c and 15", r)
	}
	if g.Series[1].Floor != nil {
		t.Errorf("floor of b: got %+v, want none", g.Series[1].Floor)
	}
	if got := g.Series[2].Extras["none"]; got != nil {
		t.Errorf("extras that are not numbers: got %v, want none", got)
	}
	if got := g.Series[2].Extras["x"]; !slices.Equal(got, []float64{2, 2, 4}) {
		t.Errorf("extras of c: got %v, want [2 2 4]", got)
	}
}

func TestRunnerContinuesAfterFailure(t *testing.T) {
	var taken []string
	calls := 0
	bad := Measurement{Name: "bad", Floor: "good", Take: func(context.Context, *Env) (Sample, error) {
		calls++
		if calls == 1 {
			return Sample{Value: 8}, nil
		}
		return Sample{}, errors.New("broken")
	}}
	nan := Measurement{Name: "nan", Take: func(context.Context, *Env) (Sample, error) {
		return Sample{Value: math.NaN()}, nil
	}}
	g := runFixedMeasurements(t, 5, bad, nan, fixedMeasurement("good", &taken, 4, 4, 4, 4, 4))
	if calls != 3 {
		t.Errorf("calls of a failing measurement: got %d, want 3: one success, then %d failures", calls, maxFailures)
	}
	if s := g.Series[0]; s.Summary.N != 1 || s.Floor == nil || s.Floor.Median != 2 || len(s.Errors) != 2 ||
		s.Errors[0] != "round 2: broken" {
		t.Errorf("bad: got %+v, floor %+v; want one figure, ratio 2, two errors", s, s.Floor)
	}
	if s := g.Series[1]; s.Summary.N != 0 || len(s.Errors) != maxFailures {
		t.Errorf("measurement of NaN: got %+v, want failures", s)
	}
	if s := g.Series[2]; s.Summary.N != 5 || len(s.Errors) != 0 {
		t.Errorf("good: got %+v, want 5 figures", s)
	}
	if got := listFailures([]*SectionResult{{Name: "s", Groups: []*GroupResult{g}}}); len(got) != 4 ||
		got[0] != "s/g/bad: round 2: broken" {
		t.Errorf("failures: got %q, want 4", got)
	}
}

func TestRunnerLimitsMeasurementTime(t *testing.T) {
	slow := Measurement{Name: "slow", Take: func(ctx context.Context, _ *Env) (Sample, error) {
		<-ctx.Done()
		return Sample{}, errors.New("killed")
	}}
	r := Runner{Env: &Env{Limit: time.Millisecond}, Rounds: 1, Log: io.Discard}
	got, err := r.Run(context.Background(), []Section{{Groups: []Group{{Measurements: []Measurement{slow}}}}})
	if err != nil {
		t.Fatal(err)
	}
	if e := got[0].Groups[0].Series[0].Errors; len(e) != 1 || e[0] != "round 1: not complete within 1ms: killed" {
		t.Errorf("errors: got %q, want the timeout", e)
	}
}

func TestRunnerContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var taken []string
	end := Measurement{Name: "end", Take: func(context.Context, *Env) (Sample, error) {
		cancel()
		return Sample{}, errors.New("killed")
	}}
	r := Runner{Env: &Env{Limit: time.Minute}, Rounds: 3, Log: io.Discard}
	got, err := r.Run(ctx, []Section{{Groups: []Group{{Measurements: []Measurement{fixedMeasurement("a", &taken, 1, 2,
		3), end}}}}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error: got %v, want %v", err, context.Canceled)
	}
	if r.Complete != 0 {
		t.Errorf("complete rounds: got %d, want 0", r.Complete)
	}
	if s := got[0].Groups[0].Series; s[0].Summary.N != 1 || len(s[1].Errors) != 0 {
		t.Errorf("series of an ended run: got %+v and %+v, want the one taken figure and no failure", s[0], s[1])
	}
}

func TestFilterSections(t *testing.T) {
	all := []Section{{Name: "lat", Groups: []Group{
		{Name: "64 B", Short: true, Measurements: []Measurement{{Name: "trap"}, {Name: "shortcut", Floor: "trap"},
			{Name: "tcp"}}},
		{Name: "1 MB", Measurements: []Measurement{{Name: "trap"}, {Name: "shortcut", Floor: "trap"}}},
	}}, {Name: "idle", Groups: []Group{{Name: "cost", Measurements: []Measurement{{Name: "service"}}}}}}
	names := func(sections []Section) string {
		var l []string
		for _, s := range sections {
			for _, g := range s.Groups {
				for _, m := range g.Measurements {
					l = append(l, s.Name+"/"+g.Name+"/"+m.Name)
				}
			}
		}
		return strings.Join(l, ", ")
	}
	for _, c := range []struct {
		pattern string
		short   bool
		want    string
	}{
		{"shortcut", false, "lat/64 B/trap, lat/64 B/shortcut, lat/1 MB/trap, lat/1 MB/shortcut"},
		{".", true, "lat/64 B/trap, lat/64 B/shortcut, lat/64 B/tcp"},
		{"^idle", false, "idle/cost/service"},
		{"nothing", false, ""},
	} {
		if got := names(filterSections(all, regexp.MustCompile(c.pattern), c.short)); got != c.want {
			t.Errorf("choose(%q, %v): got %q, want %q", c.pattern, c.short, got, c.want)
		}
	}
	if len(all[0].Groups[0].Measurements) != 3 {
		t.Error("argument of choose: got a change, want none")
	}
}
