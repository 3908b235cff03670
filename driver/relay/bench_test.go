package relay

import (
	"testing"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/weak"
	"verbena/uapi"
)

// BenchmarkWrite measures a WRITE of 64 bytes, from the post to the poll, through a relay without delays.
func BenchmarkWrite(b *testing.B) {
	rules, err := check.ParseProgramRules(nil)
	must(b, err)
	for name, checks := range map[string]*check.ProgramConfig{
		"unchecked": nil,
		"checked":   {Rules: rules, Report: func(v check.Violation) { b.Error(v) }},
	} {
		b.Run(name, func(b *testing.B) {
			w := newWorldOf(b, &guest{weak: &weak.Config{Choices: checkedChoices}, checks: checks})
			request := queue.Send{Opcode: uapi.WRRDMAWrite, Flags: uapi.SendSignaled, SGEs: []ib.SGE{w.sge(0, 64)},
				NumSGE: 1, Length: 64, RemoteAddr: w.mr.Addr() + 1024, RKey: w.mr.RKey()}
			b.ReportAllocs()
			for b.Loop() {
				w.send(0, request)
				if n := len(w.poll(1, longest)); n != 1 {
					b.Fatalf("completions: got %d, want 1", n)
				}
			}
		})
	}
}
