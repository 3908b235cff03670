package ib_test

import (
	"fmt"
	"log"

	"verbena/driver/loopback"
	"verbena/ib"
)

// newDevice registers a device of the reference driver. The function remove unregisters the device.
func newDevice(core *ib.Core) (d *ib.Device, remove func()) {
	drv := loopback.New("loop0", nil)
	if err := core.Register(drv.Handle()); err != nil {
		log.Fatal(err)
	}
	return drv.IB(), func() {
		if err := core.Unregister(drv.Handle()); err != nil {
			log.Print(err)
		}
	}
}

// must ends the program on an error.
func must[T any](x T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return x
}

// The midlayer calls a client for each registered device, and whenever a device is registered or unregistered later.
func ExampleCore_RegisterClient() {
	var core ib.Core
	_, remove := newDevice(&core)
	client := &ib.Client{
		Name: "greeter",
		Add: func(d *ib.Device) (any, error) {
			fmt.Println("hello", d.Name())
			return "the data of Add", nil
		},
		Remove: func(d *ib.Device, data any) { fmt.Println("goodbye", d.Name(), "and", data) },
	}
	if err := core.RegisterClient(client); err != nil {
		log.Fatal(err)
	}
	remove()
	core.UnregisterClient(client)
	// Output:
	// hello loop0
	// goodbye loop0 and the data of Add
}

// Two queue pairs of a device send a message to each other and poll for the completions.
func ExampleConnectPair() {
	var core ib.Core
	d, remove := newDevice(&core)
	defer remove()
	here := must(d.Local(1))
	pd := must(d.AllocPD())
	defer pd.Dealloc()
	buf := []byte("ping....")
	mr := must(pd.RegBytes(buf, ib.AccessLocalWrite))
	defer mr.Dereg()
	cq := must(d.CreateCQ(ib.CQInit{Entries: 8}))
	defer cq.Destroy()
	var qps [2]*ib.QP
	for i := range qps {
		qps[i] = must(pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: cq, RecvCQ: cq,
			Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
		defer qps[i].Destroy()
	}
	if err := ib.ConnectPair(qps[0], qps[1], here, here, ib.Path{}); err != nil {
		log.Fatal(err)
	}
	at := func(off int) []ib.SGE { return []ib.SGE{{Addr: mr.Addr() + uint64(off), Length: 4, LKey: mr.LKey()}} }
	must(qps[1].PostRecv(ib.RecvWR{ID: 1, SGList: at(4)}))
	must(qps[0].PostSend(ib.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: at(0)}))
	for n := 0; n < 2; {
		var wc [2]ib.WC
		k := must(cq.Poll(wc[:]))
		for _, c := range wc[:k] {
			if c.Status != ib.WCSuccess {
				log.Fatalf("work request %d: %v", c.ID, c.Status)
			}
		}
		n += k
	}
	fmt.Printf("%s\n", buf)
	// Output: pingping
}

// A peer reads and writes memory with the remote key of the region. The owner of the memory takes no action, and the
// access rights apply.
func ExampleQP_PostSend() {
	var core ib.Core
	d, remove := newDevice(&core)
	defer remove()
	here := must(d.Local(1))
	pd := must(d.AllocPD())
	defer pd.Dealloc()
	mine, theirs := []byte("written"), make([]byte, 7)
	local := must(pd.RegBytes(mine, 0))
	defer local.Dereg()
	remote := must(pd.RegBytes(theirs, ib.AccessLocalWrite|ib.AccessRemoteWrite))
	defer remote.Dereg()
	cq := must(d.CreateCQ(ib.CQInit{Entries: 4}))
	defer cq.Destroy()
	qp := must(pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: cq, RecvCQ: cq,
		Cap: ib.QPCap{MaxSendWR: 2, MaxSendSGE: 1}}))
	defer qp.Destroy()
	self := here.Endpoint(qp)
	if err := qp.Connect(here, self, self, ib.Path{Access: ib.AccessRemoteWrite}); err != nil {
		log.Fatal(err)
	}
	wr := ib.SendWR{
		Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, RemoteAddr: remote.Addr(), RKey: remote.RKey(),
		SGList: []ib.SGE{{Addr: local.Addr(), Length: 7, LKey: local.LKey()}},
	}
	read := wr
	read.Opcode = ib.WRRDMARead // neither the queue pair nor the region allows reading
	must(qp.PostSend(wr, read))
	var wc [1]ib.WC
	for n := 0; n < 2; {
		if must(cq.Poll(wc[:])) == 1 {
			fmt.Println(wc[0].Status)
			n++
		}
	}
	fmt.Printf("%s\n", theirs)
	// Output:
	// success
	// local protection error
	// written
}

// A completion handler polls until the queue is empty and then arms the queue. If a completion has arrived in between,
// the handler polls again.
func ExampleCQ_ReqNotify() {
	var core ib.Core
	d, remove := newDevice(&core)
	defer remove()
	pd := must(d.AllocPD())
	defer pd.Dealloc()
	seen := make(chan ib.WC, 4)
	cq := must(d.CreateCQ(ib.CQInit{Entries: 4, Handler: func(cq *ib.CQ) {
		for {
			var wc [4]ib.WC
			n, err := cq.Poll(wc[:])
			if err != nil {
				return
			}
			for _, c := range wc[:n] {
				seen <- c // does not block, because the buffer is large enough: a handler may not sleep
			}
			if n > 0 {
				continue
			}
			if missed, err := cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed); err != nil || !missed {
				return
			}
		}
	}}))
	defer cq.Destroy()
	must(cq.ReqNotify(ib.NotifyNextComp)) // arms the queue before the first completion
	qp := must(pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: cq, RecvCQ: cq,
		Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 4}}))
	defer qp.Destroy()
	if err := qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState); err != nil {
		log.Fatal(err)
	}
	for id := range uint64(3) {
		must(qp.PostRecv(ib.RecvWR{ID: id}))
	}
	for range 3 {
		c := <-seen
		fmt.Println(c.ID, c.Status)
	}
	// Output:
	// 0 work request flushed
	// 1 work request flushed
	// 2 work request flushed
}

// The functions of OnEvent receive the events of a device. After stop has returned, its function does not run again.
func ExampleDevice_OnEvent() {
	var core ib.Core
	drv := loopback.New("loop0", nil)
	if err := core.Register(drv.Handle()); err != nil {
		log.Fatal(err)
	}
	heard := make(chan ib.Event, 1)
	stop := drv.IB().OnEvent(func(e ib.Event) { heard <- e })
	drv.Handle().DispatchEvent(ib.EventPortActive, 1) // in a real program the driver makes this call
	e := <-heard
	stop()
	fmt.Println(e.Device.Name(), e.Type, e.Port)
	if err := core.Unregister(drv.Handle()); err != nil {
		log.Fatal(err)
	}
	// Output: loop0 port active 1
}
