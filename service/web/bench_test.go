package web

import (
	"fmt"
	"testing"

	"verbena/internal/ctl"
	"verbena/internal/qpinfo"
)

// manyQPs is a fake service with many queue pairs.
type manyQPs struct {
	fakeSource
	qps      []ctl.QPStatusInfo
	contexts []ctl.ContextInfo
}

func (s *manyQPs) Do(r *ctl.Request) (*ctl.Response, error) {
	switch r.Op {
	case ctl.OpQPShow:
		return &ctl.Response{QPs: s.qps}, nil
	case ctl.OpResShow:
		return &ctl.Response{Contexts: s.contexts}, nil
	}
	return s.fakeSource.Do(r)
}

// BenchmarkState makes the message about a service with 1,000 queue pairs.
func BenchmarkState(b *testing.B) {
	s := &manyQPs{contexts: []ctl.ContextInfo{{Device: "rxe0", PID: 42, Process: "program"}}}
	for n := range uint32(1000) {
		s.qps = append(s.qps, ctl.QPStatusInfo{Device: "rxe0", Status: qpinfo.Status{Num: n, Type: "RC", State: "RTS",
			DestQPN: n, Peer: fmt.Sprintf("10.0.0.%d", n%250), MTU: 1024}})
		s.contexts[0].QPs = append(s.contexts[0].QPs, ctl.QPInfo{Num: n})
	}
	p := newTestPage(s)
	size := 0
	for b.Loop() {
		size = len(p.takeState())
	}
	b.ReportMetric(float64(size), "bytes/message")
}
