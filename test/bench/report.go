package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Header describes the machine and time of the figures.
type Header struct {
	Date     string `json:"date"`
	Version  string `json:"version"` // version of Verbena
	CPU      string `json:"cpu"`
	Kernel   string `json:"kernel"`
	Cores    int    `json:"cores"`
	Go       string `json:"go"`
	Rounds   int    `json:"rounds"`
	LoadFrom string `json:"load_before"` // load averages of 1, 5 and 15 minutes
	LoadTo   string `json:"load_after"`
	Remark   string `json:"remark,omitempty"`
}

// Report is the result of a run.
type Report struct {
	Header   Header           `json:"header"`
	Checks   []Verdict        `json:"floor_checks,omitempty"`
	Sections []*SectionResult `json:"sections"`
}

func newHeader(version string, rounds int) Header {
	h := Header{Date: time.Now().UTC().Format(time.DateTime) + " UTC", Version: version, CPU: runtime.GOARCH,
		Cores: runtime.NumCPU(),
		Go:    runtime.Version(), Rounds: rounds, LoadFrom: loadAverage()}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if m := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(b); m != nil {
			h.CPU = strings.TrimSpace(string(m[1]))
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		h.Kernel, _, _ = strings.Cut(strings.TrimSpace(string(b)), "-")
	}
	return h
}

func loadAverage() string {
	b, _ := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(b))
	return strings.Join(f[:min(3, len(f))], " ")
}

// JSON writes the report as JSON.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// Markdown writes the report as text with tables.
func (r *Report) Markdown(w io.Writer) {
	h := r.Header
	fmt.Fprintf(w,
		"Taken on %s of %s; %s, kernel %s, %d cores, %s. Load average before %s, after %s. Medians of %d rounds.\n",
		h.Date, h.Version, h.CPU, h.Kernel, h.Cores, h.Go, h.LoadFrom, h.LoadTo, h.Rounds)
	if h.Remark != "" {
		fmt.Fprintf(w, "%s\n", h.Remark)
	}
	writeChecks(w, r.Checks)
	for _, s := range r.Sections {
		s.writeMarkdown(w)
	}
	if failed := listFailures(r.Sections); len(failed) > 0 {
		fmt.Fprintf(w, "\n### Failed\n\n")
		for _, f := range failed {
			fmt.Fprintf(w, "    %s\n", strings.ReplaceAll(strings.TrimSpace(f), "\n", "\n      "))
		}
	}
}

func (s *SectionResult) writeMarkdown(w io.Writer) {
	fmt.Fprintf(w, "\n### %s, in %s\n\n", s.Title, s.Unit)
	if s.Note != "" {
		fmt.Fprintf(w, "%s\n\n", s.Note)
	}
	head, rule := "| | | median | range |", "|---|---|---:|---:|"
	add := func(heading string) { head, rule = head+" "+heading+" |", rule+"---:|" }
	floors := s.anySeries(func(m *Series) bool { return m.Floor != nil })
	peers := s.anySeries(func(m *Series) bool { return m.Peer != nil })
	if floors {
		add("× " + cmp.Or(s.Floor, "floor"))
	}
	if peers {
		add("× " + cmp.Or(s.Peer, "peer"))
	}
	for _, e := range s.Extras {
		add(e)
	}
	fmt.Fprintf(w, "%s\n%s\n", head, rule)
	for _, g := range s.Groups {
		for i, m := range g.Series {
			name := ""
			if i == 0 {
				name = g.Name
			}
			fmt.Fprintf(w, "| %s | %s | %s | %s |", name, m.label(), m.formatMedian(), m.Summary.formatRange())
			if floors {
				fmt.Fprintf(w, " %s |", m.Floor.formatRatio())
			}
			if peers {
				fmt.Fprintf(w, " %s |", m.Peer.formatRatio())
			}
			for _, e := range s.Extras {
				cell := ""
				if v := m.Extras[e]; len(v) > 0 {
					cell = formatFigure(summarise(v).Median)
				}
				fmt.Fprintf(w, " %s |", cell)
			}
			fmt.Fprintln(w)
		}
	}
}

func (s *SectionResult) anySeries(f func(*Series) bool) bool {
	return slices.ContainsFunc(s.Groups, func(g *GroupResult) bool { return slices.ContainsFunc(g.Series, f) })
}

func (s *Series) label() string {
	if s.Kind == Ours {
		return "**" + s.Name + "**"
	}
	return s.Name
}

func (s *Series) formatMedian() string {
	if s.Summary.N == 0 && len(s.Errors) > 0 {
		return "failed"
	}
	if s.Summary.N == 0 {
		return "-"
	}
	return formatFigure(s.Summary.Median)
}

func (s Summary) formatRange() string {
	if s.N < 2 {
		return ""
	}
	return formatFigure(s.Low) + "–" + formatFigure(s.High)
}

func (r *Ratio) formatRatio() string {
	if r == nil {
		return ""
	}
	if r.N < 2 {
		return formatFigure(r.Median)
	}
	return fmt.Sprintf("%s (%s)", formatFigure(r.Median), r.formatRange())
}

// formatFigure formats a figure with three significant digits, or as a whole number.
func formatFigure(v float64) string {
	a := math.Abs(v)
	switch {
	case a >= 100 || v == 0:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.*f", min(6, 2-int(math.Floor(math.Log10(a)))), v)
	}
}
