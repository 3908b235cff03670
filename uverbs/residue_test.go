package uverbs

import (
	"bytes"
	"runtime"
	"testing"

	"verbena/uverbs/abi"
)

// TestNoResidue: a response, and what fills the room after it, does not depend on what was in the buffer that the command was
// read to.
func TestNoResidue(t *testing.T) {
	fresh := commandBuffers.New
	defer func() { commandBuffers.New = fresh }()
	for _, form := range []form{byWrite, byIoctl} {
		w := newWorld(t)
		p := w.start(form)
		pd, cq := p.allocPD(), p.createCQ(-1, 0)
		qp := p.createQP(pd, cq, 0, abi.QPTRC)
		run := func(with byte) (all [][]byte) {
			commandBuffers.New = func() any {
				b := new(commandBuffer)
				for i := range b.data {
					b.data[i] = with
				}
				return b
			}
			for _, c := range []rawCommand{
				{number: uint32(abi.CmdQueryDevice), core: enc(abi.QueryDevice{}), room: 512},
				{number: uint32(abi.CmdQueryPort), core: enc(abi.QueryPort{PortNum: 1}), room: 512},
				{number: uint32(abi.CmdQueryQP), core: enc(abi.QueryQP{QPHandle: qp.QPHandle, AttrMask: 1}), room: 512},
				{number: uint32(abi.CmdPollCQ), core: enc(abi.PollCQ{CQHandle: cq, NE: 4}), room: 512},
				{number: uint32(abi.CmdResizeCQ), core: enc(abi.ResizeCQ{CQHandle: cq, CQE: 20}), room: 8, driverOut: 64},
				{extended: true, number: uint32(abi.ExCmdQueryDevice), core: enc(abi.ExQueryDevice{}), room: 512, driverOut: 64},
			} {
				runtime.GC()
				runtime.GC() // the pools are empty
				resp, driver, err := p.send(c)
				must(t, err)
				all = append(all, bytes.Clone(resp), bytes.Clone(driver))
			}
			return all
		}
		first, second := run(0xa5), run(0x5a)
		for i := range first {
			if !bytes.Equal(first[i], second[i]) {
				t.Errorf("%v, command %d: the response holds what was in a buffer before:\n%x\n%x", form, i/2, first[i], second[i])
			}
		}
	}
}
