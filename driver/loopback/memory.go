package loopback

import (
	"math"

	"verbena/ib"
	"verbena/umem"
)

// messageMemory is the checked source or destination of a message. A memory consists of parts of regions, or of inline
// data.
type messageMemory struct {
	parts  []regionPart
	inline []byte
	n      uint64 // bytes
}

type regionPart struct {
	region *umem.Region
	addr   uint64
	n      uint64
}

func (m *messageMemory) reset() { m.parts, m.inline, m.n = m.parts[:0], nil, 0 }

func (m *messageMemory) addPart(r *umem.Region, addr, n uint64) {
	if n > 0 {
		m.parts = append(m.parts, regionPart{r, addr, n})
		m.n += n
	}
}

// messageCopier copies messages. All objects of a device share the buffers of its copier. The caller must hold the lock
// of the device.
type messageCopier struct {
	src, dst messageMemory
	buf      [16 << 10]byte
	vec      [1][]byte
}

// failedSide identifies the side on which a copy has failed.
type failedSide uint8

const (
	neither failedSide = iota
	atSource
	atTarget
)

// copyMessage copies the first n bytes of src to dst, starting at offset skip in dst.
func (c *messageCopier) copyMessage(dst, src *messageMemory, skip, n uint64) failedSide {
	for off := uint64(0); off < n; {
		chunk := min(n-off, uint64(len(c.buf)))
		if !c.transferBytes(src, off, c.buf[:chunk], false) {
			return atSource
		}
		if !c.transferBytes(dst, skip+off, c.buf[:chunk], true) {
			return atTarget
		}
		off += chunk
	}
	return neither
}

// transferBytes reads or writes the len(b) bytes at offset off of m.
func (c *messageCopier) transferBytes(m *messageMemory, off uint64, b []byte, write bool) bool {
	if m.inline != nil {
		copy(b, m.inline[off:])
		return true
	}
	for _, p := range m.parts {
		if off >= p.n {
			off -= p.n
			continue
		}
		k := min(p.n-off, uint64(len(b)))
		c.vec[0] = b[:k]
		var err error
		if write {
			err = p.region.WriteV(c.vec[:], p.addr+off)
		} else {
			err = p.region.ReadV(c.vec[:], p.addr+off)
		}
		if err != nil {
			return false
		}
		if b = b[k:]; len(b) == 0 {
			return true
		}
		off = 0
	}
	return len(b) == 0
}

// wholeListLength is the argument of checkLocalList for a message that uses the whole list.
const wholeListLength = math.MaxUint64

// checkLocalList checks the scatter/gather list of a consumer in the domain, and stores the memory of the list in m. As
// on rxe, the check covers the first used bytes, which a message accesses, and no element beyond these bytes.
func (d *Device) checkLocalList(m *messageMemory, sgl []ib.SGE, pd *pd, need ib.AccessFlags, used uint64) bool {
	m.reset()
	unused := uint64(0)
	for _, s := range sgl {
		n := min(uint64(s.Length), used-m.n)
		unused += uint64(s.Length) - n
		if n == 0 {
			continue
		}
		k := d.lookupKey(s.LKey)
		if k == nil || k.mw != nil || k.pd != pd || k.access&need != need || !k.containsRange(s.Addr, n) {
			return false
		}
		m.addPart(k.region, s.Addr, n)
	}
	m.n += unused
	return true
}

// checkRemoteAccess checks the access of a request from a peer of q to n bytes, and stores the memory in m. For an XRC
// target, the protection domain is that of the shared receive queue that the request specifies (IBA A14).
func (d *Device) checkRemoteAccess(m *messageMemory, w *sendWQE, n uint64, q *QP, need ib.AccessFlags) bool {
	m.reset()
	if n == 0 {
		return true
	}
	k, pd, addr := d.lookupKey(w.wr.RKey), q.pd, w.wr.RemoteAddr
	if q.xrcd != nil {
		if rq := q.xrcRecvQueue(w.wr.RemoteSRQN); rq != nil {
			pd = rq.pd
		}
	}
	if k == nil || k.pd != pd || k.access&need != need || k.qp != nil && k.qp != q || !k.containsRange(addr, n) {
		return false
	}
	m.addPart(k.region, addr+k.shift, n)
	return true
}
