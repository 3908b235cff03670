package model

import (
	"slices"
	"syscall"

	"verbena/ib"
)

// Side is the queue of a queue pair that a completion belongs to.
type Side uint8

const (
	SendSide Side = iota
	RecvSide
)

// Want is an expected completion.
type Want struct {
	WC ib.WC // without QP
	// Status are the legal values of the status, the first of which is that of WC.
	Status []ib.WCStatus
	// Length and Source say that ByteLen and SrcQP are defined.
	Length, Source bool
	QP             ID // 0: destroyed
	Side           Side
}

// CQ is a completion queue.
type CQ struct {
	ID      ID
	Entries int
	Wants   []Want         // not polled yet; the order among different queues is not defined
	Armed   ib.NotifyFlags // 0: not
	Calls   int            // of the handler, since the queue was made
	Lost    bool           // a completion did not fit
	Errors  int            // events
}

// CreateCQ makes a completion queue with the capacity granted.
func (m *Model) CreateCQ(c CQ) syscall.Errno {
	if e := m.made(); e != 0 {
		return e
	}
	m.CQs[c.ID] = &c
	return 0
}

// ResizeCQ changes the capacity.
func (m *Model) ResizeCQ(id ID, entries int) syscall.Errno {
	c := m.CQs[id]
	switch {
	case m.Dead:
		return syscall.EIO
	case entries < 1 || entries < len(c.Wants):
		return syscall.EINVAL
	}
	m.resize(id, entries)
	return 0
}

// checkRoom notes that more requests are outstanding than a queue has room for: each of them may complete at any
// time, with an error.
func (m *Model) checkRoom(id ID) {
	n := 0
	for _, q := range m.QPs {
		if q.SendCQ == id {
			n += len(q.unproved)
		}
		if q.RecvCQ == id {
			n += len(m.queueOf(q).unproved)
		}
	}
	if c := m.CQs[id]; n > c.Entries {
		m.open("a completion queue may overflow")
	}
}

// Resized notes the capacity granted by a resize.
func (m *Model) Resized(id ID, entries int) { m.CQs[id].Entries = entries }

// resize changes the capacity, which a driver may round up.
func (m *Model) resize(id ID, entries int) {
	m.CQs[id].Entries = entries
	m.checkRoom(id)
}

// Arm requests a notification. It reports whether completions are there already.
func (m *Model) Arm(id ID, flags ib.NotifyFlags) (missed bool) {
	c := m.CQs[id]
	switch {
	case flags&ib.NotifyNextComp != 0:
		c.Armed = ib.NotifyNextComp
	case c.Armed == 0:
		c.Armed = ib.NotifySolicited
	}
	if c.Lost {
		m.open("arming a queue that has lost a completion")
	}
	return flags&ib.NotifyReportMissed != 0 && len(c.Wants) > 0
}

// DestroyCQ frees a queue that no queue pair uses.
func (m *Model) DestroyCQ(id ID) syscall.Errno {
	for _, q := range m.QPs {
		if q.SendCQ == id || q.RecvCQ == id {
			return syscall.EBUSY
		}
	}
	delete(m.CQs, id)
	return 0
}

// post adds a completion to the queue of a side of q.
func (m *Model) post(q *QP, side Side, w Want, solicited bool) {
	id := q.SendCQ
	if side == RecvSide {
		id = q.RecvCQ
	}
	c := m.CQs[id]
	w.QP, w.Side, w.WC.QPNum, w.WC.Status = q.ID, side, q.Num, w.Status[0]
	if len(c.Wants) >= c.Entries {
		m.open("a completion queue overflows")
		return
	}
	c.Wants = append(c.Wants, w)
	if c.Armed&ib.NotifyNextComp != 0 || c.Armed != 0 && (solicited || w.Status[0] != ib.WCSuccess) {
		c.Armed = 0
		c.Calls++
	}
}

// Match finds the expectation that a polled completion fulfils: it is the first of its queue, since completions of
// one queue come in order. -1: there is no such.
func (c *CQ) Match(wc *ib.WC) int {
	for i, w := range c.Wants {
		if w.WC.ID != wc.ID || w.WC.QPNum != wc.QPNum {
			continue
		}
		earlier := slices.ContainsFunc(c.Wants[:i], func(o Want) bool {
			return o.WC.QPNum == w.WC.QPNum && o.Side == w.Side
		})
		if !earlier {
			return i
		}
	}
	return -1
}

// Polled removes an expectation that was fulfilled.
func (m *Model) Polled(id ID, i int) Want {
	c := m.CQs[id]
	w := c.Wants[i]
	c.Wants = slices.Delete(c.Wants, i, i+1)
	q := m.QPs[w.QP]
	switch {
	case q == nil:
	case w.Side == SendSide:
		if k := slices.Index(q.unproved, w.WC.ID); k >= 0 {
			q.unproved = slices.Delete(q.unproved, 0, k+1)
		}
	default:
		m.queueOf(q).prove(w.WC.ID)
	}
	return w
}

// Mismatch returns the first field in which a completion differs from the expectation, "" for none.
func (w *Want) Mismatch(wc *ib.WC, qp *ib.QP) string {
	flushed := wc.Status == ib.WCWRFlushErr
	if !slices.Contains(w.Status, wc.Status) {
		return "status"
	}
	if wc.QP != qp {
		return "QP"
	}
	if wc.Status != ib.WCSuccess {
		if flushed && w.WC.Opcode != wc.Opcode {
			return "opcode"
		}
		return ""
	}
	const meaning = ib.WCWithImm | ib.WCWithInvalidate | ib.WCGRH
	switch {
	case w.WC.Opcode != wc.Opcode:
		return "opcode"
	case w.Length && w.WC.ByteLen != wc.ByteLen:
		return "length"
	case w.WC.Flags&meaning != wc.Flags&meaning:
		return "flags"
	case w.WC.Flags&ib.WCWithImm != 0 && w.WC.Imm != wc.Imm:
		return "immediate data"
	case w.WC.Flags&ib.WCWithInvalidate != 0 && w.WC.InvalidateRKey != wc.InvalidateRKey:
		return "invalidated key"
	case w.Source && w.WC.SrcQP != wc.SrcQP:
		return "source"
	}
	return ""
}
