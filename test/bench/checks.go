package main

import (
	"fmt"
	"io"
)

// FloorCheck is an expected ratio of two floors, measured on an idle machine, with a tolerance. A floor that was badly
// compiled, or disturbed by other programs, would make Verbena's figures look too good.
type FloorCheck struct {
	Name   string
	A, B   string // names of measurements in the section "floors"
	Want   float64
	Within float64 // tolerance as a factor
}

// Verdict is the result of a check.
type Verdict struct {
	Name   string  `json:"name"`
	Got    float64 `json:"got"`
	Want   float64 `json:"want"`
	Within float64 `json:"within"`
	OK     bool    `json:"ok"`
	Error  string  `json:"error,omitempty"`
}

// The following constants are the names of floors in the tables and the checks.
const (
	trapCall    = "trapped call"
	vm64        = "process_vm_readv 64 B"
	vm64K       = "process_vm_readv 64 KB"
	vm1M        = "process_vm_readv 1 MB"
	copy64      = "memcpy 64 B"
	copy1M      = "memcpy 1 MB"
	udpPing     = "UDP ping-pong, polling"
	udpPlain    = "UDP stream, 4 KB datagrams"
	udpOffload  = "UDP stream, GSO and GRO"
	udpCRC      = "UDP stream, GSO, GRO, CRC-32"
	udpCRCGo    = "UDP stream, GSO, GRO, CRC-32, Go"
	tcpPingFlat = "TCP ping-pong, blocking"
	tcpFlat     = "TCP stream, 64 KB writes"
)

// floorChecks lists the ratios measured on an idle machine with Linux 6.18 and two cores.
var floorChecks = []FloorCheck{
	{"trapped call / process_vm 64 B", trapCall, vm64, 3, 4},
	{"process_vm 64 KB / process_vm 64 B", vm64K, vm64, 4, 4},
	{"process_vm 1 MB / memcpy 1 MB", vm1M, copy1M, 3, 3},
	{"process_vm 64 B / memcpy 64 B", vm64, copy64, 500, 20},
	{"UDP ping-pong / trapped call", udpPing, trapCall, 0.7, 3},
	{"UDP stream plain / GSO and GRO", udpPlain, udpOffload, 7, 2.5},
	{"UDP stream with CRC-32 / without", udpCRC, udpOffload, 1.6, 2},
	{"UDP stream in Go / in C", udpCRCGo, udpCRC, 1.1, 2},
	{"UDP stream GSO and GRO / TCP stream", udpOffload, tcpFlat, 0.5, 3},
}

// judgeChecks compares the ratios of the floors with the expected ratios, and omits checks of floors that were not
// selected.
func judgeChecks(checks []FloorCheck, results []*SectionResult) []Verdict {
	var verdicts []Verdict
	for _, s := range results {
		if s.Name != "floors" {
			continue
		}
		for _, g := range s.Groups {
			for _, c := range checks {
				a, b := g.findSeries(c.A), g.findSeries(c.B)
				if a == nil || b == nil {
					continue
				}
				v := Verdict{Name: c.Name, Want: c.Want, Within: c.Within}
				if q := ratios(a.figures(), b.figures()); len(q) == 0 {
					v.Error = "not measured"
				} else {
					v.Got = summarise(q).Median
					v.OK = v.Got >= c.Want/c.Within && v.Got <= c.Want*c.Within
				}
				verdicts = append(verdicts, v)
			}
		}
	}
	return verdicts
}

func countDoubtfulVerdicts(verdicts []Verdict) int {
	n := 0
	for _, v := range verdicts {
		if !v.OK {
			n++
		}
	}
	return n
}

func writeChecks(w io.Writer, verdicts []Verdict) {
	if len(verdicts) == 0 {
		return
	}
	fmt.Fprintf(w, "\n### Are the floors sound?\n\n")
	if n := countDoubtfulVerdicts(verdicts); n > 0 {
		fmt.Fprintf(w,
			"**DOUBTFUL: %d of %d ratios between floors are not as on an idle machine. Do not trust the ratios to floors below.**\n\n",
			n, len(verdicts))
	}
	fmt.Fprintf(w, "| ratio | here | expected | |\n|---|---:|---:|---|\n")
	for _, v := range verdicts {
		verdict := "ok"
		if v.Error != "" {
			verdict = v.Error
		} else if !v.OK {
			verdict = "**doubtful**"
		}
		fmt.Fprintf(w, "| %s | %s | %s to %s | %s |\n", v.Name, formatFigure(v.Got), formatFigure(v.Want/v.Within),
			formatFigure(v.Want*v.Within),
			verdict)
	}
}
