package completion_test

import (
	"context"
	"fmt"
	"log"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/completion"
)

// A queue pair that is connected to itself sends a message to itself. Each work request has a done function, which is
// called with the completion.
func Example() {
	var core ib.Core
	drv := loopback.New("loop0", nil)
	if err := core.Register(drv.Handle()); err != nil {
		log.Fatal(err)
	}
	defer core.Unregister(drv.Handle())
	d := drv.IB()
	here, err := d.Local(1)
	if err != nil {
		log.Fatal(err)
	}
	pd, err := d.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	defer pd.Dealloc()
	buf := []byte("a message, and room for it.......")
	mr, err := pd.RegBytes(buf, ib.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Dereg()
	cq, err := completion.New(d, completion.Init{Entries: 8, Context: completion.Worker})
	if err != nil {
		log.Fatal(err)
	}
	defer cq.Destroy()
	qp, err := cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC,
		Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		log.Fatal(err)
	}
	defer qp.Destroy() // drains the queue pair: every done function is called
	self := here.Endpoint(qp.QP)
	if err := qp.Connect(here, self, self, ib.Path{}); err != nil {
		log.Fatal(err)
	}
	sgl := func(off, n int) []ib.SGE {
		return []ib.SGE{{Addr: mr.Addr() + uint64(off), Length: uint32(n), LKey: mr.LKey()}}
	}
	received := make(chan string, 1)
	if err := qp.PostRecv(ib.RecvWR{SGList: sgl(9, 9)}, func(wc *ib.WC) {
		received <- fmt.Sprintf("%s: %q", wc.Status, buf[9:9+wc.ByteLen])
	}); err != nil {
		log.Fatal(err)
	}
	if err := qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: sgl(0, 9)}, nil); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-received)
	// Output: success: "a message"
}

// Drain flushes outstanding work requests. Drain returns after their done functions have returned.
func ExampleQP_Drain() {
	var core ib.Core
	drv := loopback.New("loop0", nil)
	if err := core.Register(drv.Handle()); err != nil {
		log.Fatal(err)
	}
	defer core.Unregister(drv.Handle())
	pd, err := drv.IB().AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	defer pd.Dealloc()
	cq, err := completion.New(drv.IB(), completion.Init{Entries: 8, Context: completion.Callback})
	if err != nil {
		log.Fatal(err)
	}
	defer cq.Destroy()
	qp, err := cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC, Cap: ib.QPCap{MaxRecvWR: 4}})
	if err != nil {
		log.Fatal(err)
	}
	here, err := drv.IB().Local(1)
	if err != nil {
		log.Fatal(err)
	}
	if err := qp.Prepare(here, 0); err != nil {
		log.Fatal(err)
	}
	for id := range uint64(2) {
		if err := qp.PostRecv(ib.RecvWR{ID: id}, func(wc *ib.WC) { fmt.Println(wc.ID, wc.Status) }); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(qp.Drain(context.Background()))
	fmt.Println(qp.Destroy())
	// Output:
	// 0 work request flushed
	// 1 work request flushed
	// <nil>
	// <nil>
}
