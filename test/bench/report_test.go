package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var updateGolden = flag.Bool("update", false, "rewrite the golden files")

func floatPointers(v ...float64) []*float64 {
	p := make([]*float64, len(v))
	for i := range v {
		if v[i] >= 0 {
			p[i] = &v[i]
		}
	}
	return p
}

func sampleReport() *Report {
	lat := &SectionResult{Name: "latency", Title: "Latency", Unit: "µs", Note: "Half a round trip.", Peer: "TCP",
		Extras: []string{"mean", "service"},
		Groups: []*GroupResult{{Name: "64 B", Series: []*Series{
			{Name: "trap", Kind: Floor, Values: floatPointers(10, 11, 12), Extras: map[string][]float64{"mean": {12, 13, 14}}},
			{Name: "SEND, shortcut", Kind: Ours, Values: floatPointers(12, 13.2, 15),
				Extras: map[string][]float64{"mean": {14, 15, 16}, "service": {7.123, 8, 9}}},
			{Name: "SEND, wire", Kind: Ours, Values: floatPointers(-1, 50, 61),
				Errors: []string{"round 1: perftest:\nexit status 1"}},
			{Name: "TCP", Kind: Peer, Values: floatPointers(20, 22, 24)},
		}}, {Name: "1 MB", Series: []*Series{
			{Name: "trap", Kind: Floor, Values: floatPointers(200, 210, 220)},
			{Name: "SEND, shortcut", Kind: Ours, Values: floatPointers(-1, -1, -1),
				Errors: []string{"round 1: no figure", "round 2: no figure"}},
		}}}}
	for _, g := range lat.Groups {
		g.computeRatios(Group{Measurements: []Measurement{{}, {Floor: "trap", Peer: "TCP"}, {Peer: "TCP"}, {}}})
	}
	floors := &SectionResult{Name: "floors", Title: "Floors", Unit: "µs",
		Groups: []*GroupResult{{Name: "all", Series: []*Series{
			{Name: "a", Kind: Floor, Values: floatPointers(6, 6.2, 0.0059)}, {Name: "b", Kind: Floor,
				Values: floatPointers(2, 2, 2)}, {Name: "c", Kind: Floor, Values: floatPointers(9, 9, 9)},
		}}}}
	floors.Groups[0].computeRatios(Group{Measurements: make([]Measurement, 3)})
	checks := []FloorCheck{{"a / b", "a", "b", 3, 2}, {"c / b", "c", "b", 1, 2}, {"a / absent", "a", "absent", 1, 2}}
	all := []*SectionResult{floors, lat}
	return &Report{Header: Header{Date: "2026-11-22 10:00:00 UTC", Version: "ec58c10", CPU: "Some Processor",
		Kernel: "6.18.44", Cores: 2,
		Go: "go1.26.8", Rounds: 3, LoadFrom: "0.10 0.20 0.30", LoadTo: "1.00 0.80 0.50"}, Checks: judgeChecks(
		checks, all), Sections: all}
}

func TestReportGolden(t *testing.T) {
	r := sampleReport()
	if n := countDoubtfulVerdicts(r.Checks); n != 1 || len(r.Checks) != 2 {
		t.Errorf("checks: got %+v, want 2 with c / b doubtful", r.Checks)
	}
	var md, js bytes.Buffer
	r.Markdown(&md)
	if err := r.JSON(&js); err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "report.md", md.Bytes())
	compareGolden(t, "report.json", js.Bytes())
}

func compareGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *updateGolden {
		if err := os.MkdirAll("testdata", 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s(go test ./test/bench -update rewrites it)", file, got, want)
	}
}

func TestChecksOmitUnmeasuredFloors(t *testing.T) {
	r := []*SectionResult{{Name: "floors", Groups: []*GroupResult{{Series: []*Series{
		{Name: "a", Values: floatPointers(-1)}, {Name: "b", Values: floatPointers(1)}}}}}}
	if v := judgeChecks([]FloorCheck{{"a / b", "a", "b", 1, 2}}, r); len(v) != 1 || v[0].OK ||
		v[0].Error != "not measured" {
		t.Errorf("judge: got %+v, want one check that was not measured", v)
	}
}

func TestFormatFigure(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1234.5: "1234", 99.94: "99.9", 12.345: "12.3", 1.234: "1.23",
		0.5:     "0.500",
		0.01234: "0.0123", 0.0000001: "0.000000", -12.34: "-12.3"} {
		if got := formatFigure(v); got != want {
			t.Errorf("short(%v): got %q, want %q", v, got, want)
		}
	}
}
