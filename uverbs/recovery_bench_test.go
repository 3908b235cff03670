package uverbs

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/uapi"
)

// BenchmarkRecovery measures the time from a fatal event until the recovered device is registered and programs can open
// it. Ten processes share the given number of queue pairs. Each queue pair has an outstanding receive.
func BenchmarkRecovery(b *testing.B) {
	for _, qps := range []int{1, 100, 10000} {
		b.Run(fmt.Sprintf("qps=%d", qps), func(b *testing.B) {
			s := newSoakFixture(b)
			must(b, s.slot.Plug())
			procs := make([]*soakProc, min(qps, 10))
			for i := range procs {
				procs[i] = s.newProc(i)
			}
			var times []time.Duration
			for range b.N {
				b.StopTimer()
				for _, p := range procs {
					var err error
					p.program.f, err = s.srv.Open("uverbs0", p, &unmappedMemory{})
					must(b, err)
					p.createQPs(b, qps/len(procs))
				}
				b.StartTimer()
				must(b, s.slot.Reset(context.Background()))
				b.StopTimer()
				times = append(times, s.slot.Status().Recovery)
				for _, p := range procs {
					p.program.f.Close()
					p.closeDescriptors()
				}
				b.StartTimer()
			}
			b.StopTimer()
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Microseconds()), "µs/median")
			b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "µs/p99")
			b.ReportMetric(0, "ns/op")
			s.stop.Store(true)
			for _, p := range procs {
				p.run() // destroys its objects
			}
			must(b, s.slot.Close())
			s.srv.Close()
		})
	}
}

// createQPs creates queue pairs, each with an outstanding receive.
func (p *soakProc) createQPs(b *testing.B, qps int) {
	_, err := sendPlain[uapi.GetContextResp](p.program, uapi.CmdGetContext, uapi.GetContext{})
	must(b, err)
	pd, err := sendPlain[uapi.AllocPDResp](p.program, uapi.CmdAllocPD, uapi.AllocPD{})
	must(b, err)
	cq, _, err := sendPlainWith[uapi.CreateCQResp](p.program, uapi.CmdCreateCQ, uapi.CreateCQ{CQE: uint32(qps),
		CompChannel: -1},
		nil, 16)
	must(b, err)
	for range qps {
		qp, _, err := sendPlainWith[uapi.CreateQPResp](p.program, uapi.CmdCreateQP,
			uapi.CreateQP{PDHandle: pd.PDHandle, SendCQHandle: cq.CQHandle,
				RecvCQHandle: cq.CQHandle, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, QPType: uapi.QPTRC}, nil, 32)
		must(b, err)
		must(b, sendWithoutResponse(p.program, uapi.CmdModifyQP, uapi.ModifyQP{QPHandle: qp.QPHandle, QPState: uapi.QPSInit,
			PortNum:  1,
			AttrMask: uapi.QPAttrState | uapi.QPAttrPort | uapi.QPAttrPKeyIndex | uapi.QPAttrAccessFlags}))
		resp := addressOf(p.program.allocMem(8))
		req := uapi.PostRecv{Response: resp, QPHandle: qp.QPHandle, WRCount: 1, WQESize: uint32(uapi.SizeOf[uapi.RecvWR]())}
		core := encodePair(req, uapi.RecvWR{WRID: 1})
		_, _, err = p.program.sendCommand(rawCommand{number: uint32(uapi.CmdPostRecv), core: core, room: 4})
		must(b, err)
	}
}

// closeDescriptors closes the program's descriptors.
func (p *soakProc) closeDescriptors() {
	for _, fd := range p.program.fds {
		unix.Close(fd)
	}
	p.program.fds = nil
}
