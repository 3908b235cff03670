package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"verbena/driver"
	"verbena/ib"
	"verbena/internal/qpinfo"
	"verbena/link"
	"verbena/roce"
)

// PacketsDropped implements driver.Observer.
func (r *Recorder) PacketsDropped(f driver.DroppedPackets) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.Reason == driver.DropNoQP {
		k := qpKey{f.QP.Device, f.QP.Num}
		if _, ok := r.noQP[k]; !ok && len(r.noQP) >= maxNoQP {
			for old := range r.noQP {
				delete(r.noQP, old)
				break
			}
		}
		r.noQP[k] = f
		r.datagramToNoQP(&f)
		return
	}
	q := r.facts(f.QP)
	if q == nil {
		return
	}
	f.QP.Context = nil
	q.failures().drop = f
	if f.Opcode.Has(roce.FlagResponse) || q.ref.State == ib.QPErr {
		return // the rest of a connection that has failed
	}
	if e := q.byRowOf(dropRows[f.Reason]); e != nil { // a peer may send many of them
		e.count(f.Packets, 0)
		e.addSource(&f)
		return
	}
	found := judge(dropRows[f.Reason], &values{q: q, device: q.ref.Device}, FaultResponder)
	e := r.addFor(q, f.Time, describeDrop(&f, f.Source.String()), found, found, true)
	e.count(f.Packets-1, 0)
	e.addSource(&f)
}

// maxSources is the number of sources of dropped packets that a cause names.
const maxSources = 8

// describeDrop returns the text of dropped packets.
func describeDrop(f *driver.DroppedPackets, sources string) string {
	return fmt.Sprintf("QP %d: packet from %s dropped: %s, PSN %d", f.QP.Num, sources, f.Opcode, f.PSN)
}

// addSource adds the source of dropped packets to the text of their cause.
func (e *entry) addSource(f *driver.DroppedPackets) {
	if e.more || slices.Contains(e.sources, f.Source) {
		return
	}
	if e.more = len(e.sources) == maxSources; !e.more {
		e.sources = append(e.sources, f.Source)
	}
	if len(e.sources) == 1 {
		return
	}
	var b strings.Builder
	for i, a := range e.sources {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(a.String())
	}
	if e.more {
		b.WriteString(" and others")
	}
	for _, c := range []*qpinfo.Cause{&e.own, e.full} {
		if c != nil {
			c.What = describeDrop(f, b.String())
		}
	}
}

// datagramToNoQP adds a cause for the sender of a datagram, which learns nothing otherwise. The cause is only for users
// who see both ends: others would learn which queue pairs exist.
//
//verbena:held mu
func (r *Recorder) datagramToNoQP(f *driver.DroppedPackets) {
	d := r.byAddr[f.Source]
	if d == nil || f.SourceQP == 0 {
		return
	}
	q := r.qps[qpKey{d.Name, f.SourceQP}]
	if q == nil || q.gone || q.ref.Type != ib.QPTypeUD {
		return
	}
	if e := q.byRowOf("datagram-no-qp"); e != nil {
		e.count(f.Packets, 0)
		return
	}
	x := &values{q: q, device: f.QP.Device, number: f.QP.Num}
	found := judge("datagram-no-qp", x, FaultRequester)
	what := fmt.Sprintf("QP %d: datagram to QP %d of %s dropped: %s, PSN %d", q.ref.Num, f.QP.Num, f.QP.Device, f.Opcode,
		f.PSN)
	e := r.addAs(q.program, q.newCause(f.Time, what, found), nil, r.last+1)
	r.last++
	e.hidden = true
	e.count(f.Packets-1, 0)
	q.addByRow(e)
}

// PacketsUnsent implements driver.Observer.
func (r *Recorder) PacketsUnsent(f driver.UnsentPackets) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.facts(f.QP)
	if q == nil {
		return
	}
	f.QP.Context = nil
	q.failures().unsent = f
	if q.ref.Type == ib.QPTypeRC || q.ref.Type == ib.QPTypeXRCInit || q.ref.Type == ib.QPTypeXRCTgt {
		return // the work request fails if no retransmission is sent
	}
	found := r.judgeUnsent(q, &f)
	e := r.addFor(q, f.Time, fmt.Sprintf("QP %d: packets were not sent", q.ref.Num), found, found, true)
	e.count(f.Packets-1, 0)
}

// ImpairedPackets are packets that a fault rule or the shape of a link has dropped, damaged or delayed.
type ImpairedPackets struct {
	Time   time.Time
	Device string
	// QP is the queue pair of the device that sent the packets, or that would have received them.
	link.Impairment
}

// maxImpaired bounds evidence.impaired. A request without an answer is sent 8 times at most.
const maxImpaired = 32

// maxMessages bounds deviceFacts.messages.
const maxMessages = 64

// managerQPN is the number of the queue pair of the connection manager (IBA 3.9.3).
const managerQPN = 1

// PacketsImpaired reports packets that fault rules, or the shape of a link, have impaired.
func (r *Recorder) PacketsImpaired(f ImpairedPackets) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.devices[f.Device]; d != nil && f.QP == managerQPN {
		d.messages = appendLimited(d.messages, f, maxMessages)
		return
	}
	if q := r.qps[qpKey{f.Device, f.QP}]; q != nil {
		v := q.failures()
		v.impaired = appendLimited(v.impaired, f, maxImpaired)
	}
}

// appendLimited appends to a list, which loses its older half first if it has limit items.
func appendLimited(list []ImpairedPackets, f ImpairedPackets, limit int) []ImpairedPackets {
	if len(list) >= limit {
		list = slices.Delete(list, 0, limit/2)
	}
	return append(list, f)
}
