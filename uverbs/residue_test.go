package uverbs

import (
	"bytes"
	"runtime"
	"testing"

	"verbena/uapi"
)

// TestResponseHasNoOldData checks that a response, and the cleared rest of the buffer, do not depend on earlier
// contents of the command buffer.
func TestResponseHasNoOldData(t *testing.T) {
	fresh := commandBuffers.New
	defer func() { commandBuffers.New = fresh }()
	for _, form := range []commandForm{byWrite, byIoctl} {
		w := newFixture(t)
		p := w.startProgram(form)
		pd, cq := p.allocPD(), p.createCQ(-1, 0)
		qp := p.createQP(pd, cq, 0, uapi.QPTRC)
		run := func(with byte) (all [][]byte) {
			commandBuffers.New = func() any {
				b := new(commandBuffer)
				for i := range b.data {
					b.data[i] = with
				}
				return b
			}
			for _, c := range []rawCommand{
				{number: uint32(uapi.CmdQueryDevice), core: encode(uapi.QueryDevice{}), room: 512},
				{number: uint32(uapi.CmdQueryPort), core: encode(uapi.QueryPort{PortNum: 1}), room: 512},
				{number: uint32(uapi.CmdQueryQP), core: encode(uapi.QueryQP{QPHandle: qp.QPHandle, AttrMask: 1}), room: 512},
				{number: uint32(uapi.CmdPollCQ), core: encode(uapi.PollCQ{CQHandle: cq, NE: 4}), room: 512},
				{number: uint32(uapi.CmdResizeCQ), core: encode(uapi.ResizeCQ{CQHandle: cq, CQE: 20}), room: 8, driverOut: 64},
				{extended: true, number: uint32(uapi.ExCmdQueryDevice), core: encode(uapi.ExQueryDevice{}), room: 512,
					driverOut: 64},
			} {
				runtime.GC()
				runtime.GC() // empties the pools
				resp, driver, err := p.sendCommand(c)
				must(t, err)
				all = append(all, bytes.Clone(resp), bytes.Clone(driver))
			}
			return all
		}
		first, second := run(0xa5), run(0x5a)
		for i := range first {
			if !bytes.Equal(first[i], second[i]) {
				t.Errorf("%v, command %d: got a response with former bytes of the buffer:\n%x\n%x", form, i/2, first[i], second[i])
			}
		}
	}
}
