package engine

import (
	"bytes"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/umem"
)

// vanished is memory that its program has unmapped before the write.
type vanished struct{ *umem.Local }

func (vanished) WriteV([][]byte, uint64) error { return umem.ErrFault }

// torn is memory with a part that its program has unmapped.
type torn struct {
	*umem.Local
	from, to uint64
}

func (m torn) WriteV(src [][]byte, addr uint64) error {
	end := addr
	for _, b := range src {
		end += uint64(len(b))
	}
	if addr < m.to && end > m.from {
		return umem.ErrFault
	}
	return m.Local.WriteV(src, addr)
}

// TestUnreliableLostWrite tests that an unreliable RDMA WRITE ends at the first byte that cannot be stored. The next
// WRITE arrives.
func TestUnreliableLostWrite(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		const size, hole = 600_000, 300_000
		s.typ, s.bufLen = ib.QPTypeUC, 2*size
		b := newBenchIn(t, s)
		b.connect(conn{mtu: ib.MTU1024})
		space := torn{b.b.mem, b.b.addr + hole, b.b.addr + hole + 1}
		target, err := b.b.pd.RegMR(ib.MRInit{Space: space, Addr: b.b.addr, Length: 2 * size, Access: allAccess})
		check(t, err)
		b.b.mrs = append(b.b.mrs, target)
		fill(b.a.buf, 1)
		wr := ib.SendWR{
			Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: b.a.sge(0, size), RemoteAddr: b.b.addr, RKey: target.RKey(),
		}
		next := wr
		next.Opcode, next.SGList, next.RemoteAddr = ib.WRRDMAWriteWithImm, b.a.sge(size, 3000), b.b.addr+size
		b.b.recv(1, 0, 0)
		b.a.send(wr, next)
		b.a.expect(ib.WC{Opcode: ib.WCRDMAWrite}, ib.WC{Opcode: ib.WCRDMAWrite})
		b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecvRDMAWithImm, ByteLen: 3000, Flags: ib.WCWithImm})
		if i := bytes.IndexFunc(b.b.buf[hole:size], func(r rune) bool { return r != 0 }); i >= 0 {
			t.Errorf("byte %d has arrived, behind the hole at %d", hole+i, hole)
		}
		if !bytes.Equal(b.b.buf[size:][:3000], b.a.buf[size:][:3000]) {
			t.Error("the next message has not arrived")
		}
		b.close()
	})
}

// TestRefusedBehindLostWrite sends a request that is refused at once, behind an RDMA WRITE that cannot be stored. The
// NAK must refuse the WRITE.
func TestRefusedBehindLostWrite(t *testing.T) {
	const wrongKey = 0x12345600
	eachNetwork(t, func(t *testing.T, s setup) {
		for _, size := range []int{64, 3000, 40_000} {
			for _, behind := range []ib.SendWR{
				{Opcode: ib.WRRDMARead, RKey: wrongKey}, {Opcode: ib.WRRDMAWrite, RKey: wrongKey},
				{Opcode: ib.WRAtomicFetchAdd, RKey: wrongKey}, {Opcode: ib.WRSend}, // without a receive
			} {
				b := newBenchIn(t, s)
				b.connect(conn{})
				gone, err := b.b.pd.RegMR(ib.MRInit{Space: vanished{b.b.mem}, Addr: b.b.addr, Length: uint64(size),
					Access: allAccess})
				check(t, err)
				b.b.mrs = append(b.b.mrs, gone)
				behind.ID, behind.Flags, behind.SGList, behind.RemoteAddr = 2, ib.SendSignaled, b.a.sge(0, 8), b.b.addr
				b.a.send(
					ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: b.a.sge(0, size), RemoteAddr: b.b.addr,
						RKey: gone.RKey()},
					behind,
				)
				b.a.expect(ib.WC{ID: 1, Status: ib.WCRemAccessErr}, ib.WC{ID: 2, Status: ib.WCWRFlushErr})
				b.close()
			}
		}
	})
}

// TestReadBehindLostWrite tests that the response to an RDMA READ does not acknowledge an earlier RDMA WRITE that
// could not be stored. The failure is found late, when the READ has been accepted.
func TestReadBehindLostWrite(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		for _, size := range []int{64, 3000, 40_000} {
			b := newBenchIn(t, s)
			b.connect(conn{})
			gone, err := b.b.pd.RegMR(ib.MRInit{Space: vanished{b.b.mem}, Addr: b.b.addr, Length: uint64(size),
				Access: allAccess})
			check(t, err)
			b.b.mrs = append(b.b.mrs, gone)
			fill(b.a.buf[:size], 1)
			b.a.send(
				ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: b.a.sge(0, size), RemoteAddr: b.b.addr,
					RKey: gone.RKey()},
				ib.SendWR{ID: 2, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: b.a.sge(0, 64), RemoteAddr: b.b.addr,
					RKey: b.b.mr.RKey()},
			)
			b.a.expect(ib.WC{ID: 1, Status: ib.WCRemAccessErr}, ib.WC{ID: 2, Status: ib.WCWRFlushErr})
			testutil.AdvanceTime(time.Second)
			if !bytes.Equal(b.b.buf, make([]byte, len(b.b.buf))) {
				t.Error("the target's memory has changed")
			}
			b.close()
		}
	})
}

// unread is memory that its program has unmapped before the read.
type unread struct{ *umem.Local }

func (unread) ReadV([][]byte, uint64) error { return umem.ErrFault }

// TestResponsesBeforeUnreadable tests that a READ of unreadable memory does not lose the responses of earlier READs:
// they arrive without a retransmission.
func TestResponsesBeforeUnreadable(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		for _, size := range []int{8, 3000} {
			b := newBenchIn(t, s)
			b.connect(conn{})
			gone, err := b.b.pd.RegMR(ib.MRInit{Space: unread{b.b.mem}, Addr: b.b.addr, Length: uint64(size), Access: allAccess})
			check(t, err)
			b.b.mrs = append(b.b.mrs, gone)
			fill(b.b.buf, 1)
			read := ib.SendWR{Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: b.a.sge(0, size), RemoteAddr: b.b.addr,
				RKey: b.b.mr.RKey()}
			wrong := read
			wrong.RKey, wrong.SGList = gone.RKey(), b.a.sge(size, size)
			b.a.send(read, read, wrong)
			b.a.expect(ib.WC{Opcode: ib.WCRDMARead, ByteLen: uint32(size)}, ib.WC{Opcode: ib.WCRDMARead, ByteLen: uint32(size)},
				ib.WC{Opcode: ib.WCRDMARead, Status: ib.WCRemAccessErr})
			if !bytes.Equal(b.a.buf[:size], b.b.buf[:size]) {
				t.Errorf("%d bytes: the data of the first READ have not arrived", size)
			}
			if n := b.b.dev.counters[cntDupReq].n.Load(); n != 0 {
				t.Errorf("%d bytes: got %d repeated requests, want none", size, n)
			}
			b.close()
		}
	})
}
