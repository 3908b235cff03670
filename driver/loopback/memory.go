package loopback

import (
	"math"

	"verbena/ib"
	"verbena/umem"
)

// memory is the checked source or destination of a message. A memory consists of parts of regions, or of inline data.
type memory struct {
	parts  []part
	inline []byte
	n      uint64 // bytes
}

type part struct {
	region *umem.Region
	addr   uint64
	n      uint64
}

func (m *memory) reset() { m.parts, m.inline, m.n = m.parts[:0], nil, 0 }

func (m *memory) add(r *umem.Region, addr, n uint64) {
	if n > 0 {
		m.parts = append(m.parts, part{r, addr, n})
		m.n += n
	}
}

// copier copies messages. All objects of a device share the buffers of its copier. The caller must hold the lock of the
// device.
type copier struct {
	src, dst memory
	buf      [16 << 10]byte
	vec      [1][]byte
}

// side identifies the side on which a copy has failed.
type side uint8

const (
	neither side = iota
	atSource
	atTarget
)

// move copies the first n bytes of src to dst, starting at offset skip in dst.
func (c *copier) move(dst, src *memory, skip, n uint64) side {
	for off := uint64(0); off < n; {
		chunk := min(n-off, uint64(len(c.buf)))
		if !c.access(src, off, c.buf[:chunk], false) {
			return atSource
		}
		if !c.access(dst, skip+off, c.buf[:chunk], true) {
			return atTarget
		}
		off += chunk
	}
	return neither
}

// access reads or writes the len(b) bytes at offset off of m.
func (c *copier) access(m *memory, off uint64, b []byte, write bool) bool {
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

// everything is the argument of local for a message that uses the whole list.
const everything = math.MaxUint64

// local checks the scatter/gather list of a consumer in the domain, and stores the memory of the list in m. As on rxe,
// the check covers the first used bytes, which a message accesses, and no element beyond these bytes.
func (d *Device) local(m *memory, sgl []ib.SGE, pd *pd, need ib.AccessFlags, used uint64) bool {
	m.reset()
	unused := uint64(0)
	for _, s := range sgl {
		n := min(uint64(s.Length), used-m.n)
		unused += uint64(s.Length) - n
		if n == 0 {
			continue
		}
		k := d.key(s.LKey)
		if k == nil || k.mw != nil || k.pd != pd || k.access&need != need || !k.contains(s.Addr, n) {
			return false
		}
		m.add(k.region, s.Addr, n)
	}
	m.n += unused
	return true
}

// remote checks the access of a request from a peer of q to n bytes, and stores the memory in m. For an XRC target, the
// protection domain is that of the shared receive queue that the request specifies (IBA A14).
func (d *Device) remote(m *memory, w *sendWQE, n uint64, q *QP, need ib.AccessFlags) bool {
	m.reset()
	if n == 0 {
		return true
	}
	k, pd, addr := d.key(w.wr.RKey), q.pd, w.wr.RemoteAddr
	if q.xrcd != nil {
		if rq := q.xrcQueue(w.wr.RemoteSRQN); rq != nil {
			pd = rq.pd
		}
	}
	if k == nil || k.pd != pd || k.access&need != need || k.qp != nil && k.qp != q || !k.contains(addr, n) {
		return false
	}
	m.add(k.region, addr+k.shift, n)
	return true
}
