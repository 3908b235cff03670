package ibtest

import (
	"fmt"
	"syscall"

	"verbena/ib"
)

// Point 6: a device in error.

var deviceErrorChecks = []check{
	{
		name: "DeviceError/NothingMade",
		rule: "in error nothing is created or modified (EIO)",
		test: testNothingMade,
	},
	{
		name: "DeviceError/NoNewWork",
		rule: "in error no new work request is carried out: it is refused, or completes with a flush error",
		test: testNoNewWork,
	},
	{
		name: "DeviceError/Flush",
		rule: "what is in flight when the device goes into error completes with a flush error",
		test: testErrorFlush,
	},
	{
		name: "DeviceError/DestroyWorks",
		rule: "in error everything can be destroyed, and the device unregistered",
		test: func(e *env) {
			p := e.pair(pairConfig{kind: ib.QPTypeRC})
			p.recv(1, 1, 0, 8)
			was := p.qps[0].State()
			e.handle.SetError()
			e.must("modify to ERR", p.qps[0].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			// As of a Modify that the midlayer had checked before.
			for _, end := range []ib.QPState{ib.QPErr, ib.QPReset} {
				e.must(fmt.Sprintf("modify to %v what is in error meanwhile", end),
					e.handle.QP(p.qps[1]).Modify(&ib.QPAttr{CurState: was, State: end}, ib.QPAttrState, nil))
			}
			e.destroyPair(p)
		},
	},
}

func testNothingMade(e *env) {
	p := e.pair(pairConfig{kind: ib.QPTypeRC})
	a := e.address()
	e.handle.SetError()
	_, err := e.dev.AllocPD()
	e.wantErr("alloc pd", err, syscall.EIO)
	_, err = p.pd.RegMR(ib.MRInit{Space: e.mem, Addr: p.buf[0].addr, Length: 8, IOVA: 0, Access: 0})
	e.wantErr("register memory", err, syscall.EIO)
	_, err = e.dev.CreateCQ(ib.CQInit{Entries: 1})
	e.wantErr("create cq", err, syscall.EIO)
	_, err = p.pd.CreateQP(ib.QPInitAttr{SendCQ: p.cqs[0], RecvCQ: p.cqs[0], Type: ib.QPTypeRC})
	e.wantErr("create qp", err, syscall.EIO)
	_, err = p.pd.CreateAH(&a)
	e.wantErr("create ah", err, syscall.EIO)
	e.wantErr("modify qp", p.qps[0].Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState), syscall.EIO)
}

func testNoNewWork(e *env) {
	p := e.pair(pairConfig{kind: ib.QPTypeRC})
	p.needWrite()
	fill(p.buf[0].b[:8], 1)
	clear(p.buf[1].b[:8])
	e.handle.SetError()
	n, err := p.qps[0].PostSend(ib.SendWR{
		ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: p.buf[0].sgl(0, 8),
		RemoteAddr: p.buf[1].addr, RKey: p.buf[1].mr.RKey(),
	})
	if n == 1 {
		e.waitOne(p.cqs[0], 1, ib.WCWRFlushErr)
	} else if err == nil {
		e.Error("post send: refused without an error")
	}
	e.settle()
	for _, b := range p.buf[1].b[:8] {
		if b != 0 {
			e.Fatal("a work request was carried out on a device in error")
		}
	}
}

func testErrorFlush(e *env) {
	p := e.pair(pairConfig{kind: ib.QPTypeRC})
	for i := range 3 {
		p.recv(1, uint64(i), 0, 8)
	}
	e.handle.SetError()
	for i := range 3 {
		e.waitOne(p.cqs[1], uint64(i), ib.WCWRFlushErr)
	}
}
