package faulty

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/ib/completion"
)

const meterDepth = 2

// Meter writes bytes to itself, with a limit for the writes in flight.
type Meter struct {
	pd  *ib.PD
	mr  *ib.MR
	cq  *completion.CQ
	qp  *completion.QP
	mem [2]byte

	mu      sync.Mutex
	credits int
	waiter  chan struct{} // closed by the next completion
}

// OpenMeter creates a meter. After an error no object is left.
func OpenMeter(d *ib.Device) (*Meter, error) {
	m := &Meter{credits: meterDepth, waiter: make(chan struct{})}
	if err := m.open(d); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Meter) open(d *ib.Device) (err error) {
	here, err := d.Local(1)
	if err != nil {
		return err
	}
	if m.pd, err = d.AllocPD(); err != nil {
		return err
	}
	rights := ib.AccessLocalWrite | ib.AccessRemoteWrite
	if m.mr, err = m.pd.RegBytes(m.mem[:], rights); err != nil {
		return err
	}
	if m.cq, err = completion.New(d, completion.Init{Entries: meterDepth, Context: completion.Callback}); err != nil {
		return err
	}
	if m.qp, err = m.cq.CreateQP(m.pd, ib.QPInitAttr{Type: ib.QPTypeRC,
		Cap: ib.QPCap{MaxSendWR: meterDepth, MaxSendSGE: 1}}); err != nil {
		return err
	}
	self := here.Endpoint(m.qp.QP)
	return m.qp.Connect(here, self, self, ib.Path{Access: rights})
}

// take takes a credit. If there is none, it returns a channel that the next completion closes.
func (m *Meter) take() (wait <-chan struct{}) {
	m.mu.Lock()
	if m.credits > 0 {
		m.credits--
		m.mu.Unlock()
		return nil
	}
	if has("wakeup") { // a completion in this gap is missed
		m.mu.Unlock()
		m.mu.Lock()
	}
	defer m.mu.Unlock()
	return m.waiter
}

func (m *Meter) give() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.credits++
	close(m.waiter)
	m.waiter = make(chan struct{})
}

// Write writes a byte. The completions may take up to 2 seconds.
func (m *Meter) Write() error {
	for {
		wait := m.take()
		if wait == nil {
			break
		}
		select {
		case <-wait:
		case <-time.After(2 * time.Second):
			return syscall.ETIMEDOUT
		}
	}
	err := m.qp.PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite, RemoteAddr: m.mr.Addr() + 1, RKey: m.mr.RKey(),
		SGList: []ib.SGE{{Addr: m.mr.Addr(), Length: 1, LKey: m.mr.LKey()}}}, func(*ib.WC) { m.give() })
	if err != nil {
		m.give()
	}
	return err
}

// Close destroys the meter.
func (m *Meter) Close() (err error) {
	if m.qp != nil {
		err = errors.Join(err, m.qp.Destroy())
	}
	if m.cq != nil {
		err = errors.Join(err, m.cq.Destroy())
	}
	if m.mr != nil {
		err = errors.Join(err, m.mr.Dereg())
	}
	if m.pd != nil {
		err = errors.Join(err, m.pd.Dealloc())
	}
	return err
}
