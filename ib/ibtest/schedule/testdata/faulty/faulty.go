// Package faulty is a consumer for the tests of the command schedule. Without a mistake it is correct. Its own test finds
// none of the mistakes.
package faulty

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/ib/completion"
)

// Mistake is the environment variable with the name of the mistake.
const Mistake = "SCHEDULE_TEST_MISTAKE"

// has reports whether the consumer makes a mistake.
func has(mistake string) bool { return os.Getenv(Mistake) == mistake }

const (
	slots     = 2
	blockSize = 256
	blocks    = 8
	grhLen    = 40
	qkey      = 0x11
)

// Disk reads blocks by RDMA READ, counts the reads in messages to itself, and sends datagrams.
type Disk struct {
	here   ib.Local
	mem    []byte // the blocks, the slots, the memory of a message, a sent and a received datagram
	pd     *ib.PD
	mr     *ib.MR
	cq     *completion.CQ
	qp, ud *completion.QP
	ah     *ib.AH
	free   chan int // slots
	inUse  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	reads  int

	closing atomic.Bool

	quit   chan struct{}
	failed chan struct{} // a datagram has failed
	worker sync.WaitGroup
}

// Client returns the client. It passes each disk to ready.
func Client(ready chan<- *Disk) *ib.Client {
	return &ib.Client{Name: "faulty",
		Add: func(d *ib.Device) (any, error) {
			k, err := open(d)
			if err == nil {
				ready <- k
				return k, nil
			}
			return nil, err
		},
		Remove: func(_ *ib.Device, data any) { data.(*Disk).close() },
	}
}

func open(d *ib.Device) (_ *Disk, err error) {
	k := &Disk{mem: make([]byte, (blocks+slots+4)*blockSize), free: make(chan int, 2*slots), quit: make(chan struct{}),
		failed: make(chan struct{}, 1)}
	for i := range k.mem[:blocks*blockSize] {
		k.mem[i] = byte(i / blockSize)
	}
	for i := range slots {
		k.free <- i
	}
	defer func() {
		if err != nil && !has("leak") {
			k.close()
		}
	}()
	if k.here, err = d.Local(1); err != nil {
		return nil, err
	}
	if k.pd, err = d.AllocPD(); err != nil {
		return nil, err
	}
	if k.mr, err = k.pd.RegBytes(k.mem, ib.AccessLocalWrite|ib.AccessRemoteRead); err != nil {
		return nil, err
	}
	if k.cq, err = completion.New(d, completion.Init{Entries: 64, Context: completion.Callback}); err != nil {
		return nil, err
	}
	if k.qp, err = k.cq.CreateQP(k.pd, ib.QPInitAttr{Type: ib.QPTypeRC,
		Cap: ib.QPCap{MaxSendWR: 4 * slots, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}}); err != nil {
		return nil, err
	}
	if k.ud, err = k.cq.CreateQP(k.pd, ib.QPInitAttr{Type: ib.QPTypeUD,
		Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}); err != nil {
		return nil, err
	}
	if err = k.qp.Prepare(k.here, ib.AccessRemoteRead); err != nil {
		return nil, err
	}
	if err = k.receive(); err != nil {
		return nil, err
	}
	self := k.here.Endpoint(k.qp.QP)
	if err = k.qp.Connect(k.here, self, self, ib.Path{}); err != nil {
		return nil, err
	}
	if err = k.ud.ConnectDatagram(k.here, ib.Endpoint{QKey: qkey}); err != nil {
		return nil, err
	}
	to := k.here.AddressTo(k.here.GID)
	if k.ah, err = k.pd.CreateAH(&to); err != nil {
		return nil, err
	}
	k.worker.Go(k.recover)
	time.AfterFunc(time.Minute, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.closed || has("late-timer") {
			d.QueryPort(1)
		}
	})
	return k, nil
}

func (k *Disk) sgl(at, n int) []ib.SGE {
	return []ib.SGE{{Addr: k.mr.Addr() + uint64(at*blockSize), Length: uint32(n), LKey: k.mr.LKey()}}
}

// receive posts the receive of a message.
func (k *Disk) receive() error {
	return k.qp.PostRecv(ib.RecvWR{SGList: k.sgl(blocks+slots, blockSize)}, func(wc *ib.WC) {
		if wc.Status == ib.WCSuccess || has("endless") {
			k.receive()
		}
	})
}

// Read returns block n. Read may sleep.
func (k *Disk) Read(n int, limit time.Duration) ([]byte, error) {
	slot := <-k.free
	if has("race") && k.reads > 1<<20 {
		return nil, syscall.EAGAIN
	}
	target := blocks + slot
	k.inUse.Add(1)
	type result struct {
		status ib.WCStatus
		wc     *ib.WC
	}
	done := make(chan result, 1)
	var mu sync.Mutex
	late := false // the reader has left, and the function of the completion frees the slot
	err := k.qp.PostSend(ib.SendWR{Opcode: ib.WRRDMARead, SGList: k.sgl(target, blockSize),
		RemoteAddr: k.mr.Addr() + uint64(n*blockSize), RKey: k.mr.RKey()}, func(wc *ib.WC) {
		mu.Lock()
		defer mu.Unlock()
		if !has("hang") || wc.Status == ib.WCSuccess {
			k.inUse.Done()
		}
		if has("race") {
			k.reads++
		}
		if late {
			k.free <- slot
		}
		done <- result{wc.Status, wc}
		if has("double-close") && wc.Status != ib.WCSuccess {
			close(done)
		}
		if has("double-close") {
			defer close(done)
		}
	})
	if err != nil {
		k.inUse.Done()
		if has("post") {
			k.inUse.Done()
		}
		k.free <- slot
		return nil, err
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case r := <-done:
		b := append([]byte(nil), k.mem[target*blockSize:][:blockSize]...)
		k.free <- slot
		if has("kept") {
			r.status = r.wc.Status
		}
		if r.status != ib.WCSuccess {
			return nil, fmt.Errorf("read block %d: %v: %w", n, r.status, syscall.EIO)
		}
		return b, nil
	case <-timer.C:
		mu.Lock()
		defer mu.Unlock()
		if has("clear") {
			k.mem[target*blockSize] = 0
		}
		switch {
		case has("timeout"), len(done) > 0:
			k.free <- slot
		default:
			late = true
		}
		return nil, fmt.Errorf("read block %d: %w", n, syscall.ETIMEDOUT)
	}
}

// Report sends a datagram to a queue pair without receives. Report may not sleep.
func (k *Disk) Report() {
	k.ud.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: k.sgl(blocks+slots+1, 16), AH: k.ah, RemoteQPN: k.ud.Num(),
		RemoteQKey: qkey}, func(wc *ib.WC) {
		if wc.Status != ib.WCSuccess && !has("sqe") {
			select {
			case k.failed <- struct{}{}:
			default:
			}
		}
	})
}

// Trace queries the address of the datagrams. Trace may not sleep, and any thread may call it at any time.
func (k *Disk) Trace() {
	if k.closing.Load() {
		return
	}
	if !has("late-call") {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.closed {
			return
		}
	}
	k.ah.Query()
}

// recover moves the datagram queue pair from SQE to RTS.
func (k *Disk) recover() {
	for {
		select {
		case <-k.failed:
			if k.ud.State() == ib.QPSQE {
				k.ud.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState)
			}
		case <-k.quit:
			return
		}
	}
}

func (k *Disk) close() (err error) {
	k.closing.Store(true)
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	close(k.quit)
	k.worker.Wait()
	for _, qp := range []*completion.QP{k.qp, k.ud} {
		if qp != nil {
			err = errors.Join(err, qp.Destroy())
		}
	}
	k.inUse.Wait()
	if k.ah != nil {
		err = errors.Join(err, k.ah.Destroy())
	}
	if k.cq != nil {
		err = errors.Join(err, k.cq.Destroy())
	}
	if k.mr != nil {
		err = errors.Join(err, k.mr.Dereg())
	}
	if k.pd != nil {
		err = errors.Join(err, k.pd.Dealloc())
	}
	return err
}
