package engine

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"verbena/ib"
	"verbena/umem"
)

// countingSpace is memory that counts its reads. To the driver it is memory of another process.
type countingSpace struct {
	*umem.Local
	reads atomic.Int32
}

func (s *countingSpace) ReadV(dst [][]byte, addr uint64) error {
	s.reads.Add(1)
	return s.Local.ReadV(dst, addr)
}

// aheadBench is a bench with a countingSpace as the memory of consumer a.
type aheadBench struct {
	*bench
	space countingSpace
	mem   []byte
	addr  uint64
	mr    *ib.MR
}

const aheadLen = 1 << 14

func newAheadBench(t *testing.T, s setup) *aheadBench {
	t.Helper()
	s.shortcut, s.bufLen = true, aheadLen
	x := &aheadBench{bench: newBench(t, s), mem: make([]byte, aheadLen)}
	x.unwatched()
	x.connect(conn{})
	x.space.Local = umem.NewLocal()
	var err error
	x.addr, err = x.space.Add(x.mem)
	check(t, err)
	x.mr = x.register(0, aheadLen)
	fill(x.mem, 1)
	return x
}

// readTimes checks the number of reads. On a busy machine, a probe may retransmit packets, which are then read again.
func (x *aheadBench) readTimes(want int32) {
	x.t.Helper()
	again := int32(x.b.dev.Stats()["duplicate_request"])
	if got := x.space.reads.Load(); got < want || got > want && again == 0 {
		x.t.Errorf("the memory was read %d times, want %d; %d packets came twice", got, want, again)
	}
}

// register registers a part of the memory.
func (x *aheadBench) register(off, n int) *ib.MR {
	x.t.Helper()
	mr, err := x.a.pd.RegMR(ib.MRInit{Space: &x.space, Addr: x.addr + uint64(off), IOVA: x.addr + uint64(off), Length: uint64(n), Access: allAccess})
	check(x.t, err)
	x.a.mrs = append(x.a.mrs, mr)
	return mr
}

func (x *aheadBench) write(id uint64, mr *ib.MR, off, n int) ib.SendWR {
	return ib.SendWR{
		ID: id, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: []ib.SGE{{Addr: x.addr + uint64(off), Length: uint32(n), LKey: mr.LKey()}},
		RemoteAddr: x.b.addr + uint64(off), RKey: x.b.mr.RKey(),
	}
}

// arrived checks that a range of the target has the present data of the source.
func (x *aheadBench) arrived(off, n int) {
	x.t.Helper()
	if !bytes.Equal(x.b.buf[off:off+n], x.mem[off:off+n]) {
		x.t.Errorf("bytes %d to %d are not those of the source", off, off+n)
	}
}

// TestAheadOfNextRun posts the same list twice, with new data in its memory. The second post must send the new data.
func TestAheadOfNextRun(t *testing.T) {
	x := newAheadBench(t, setup{})
	for round := range uint64(2) {
		fill(x.mem[:128], round+2)
		x.a.send(x.write(1, x.mr, 0, 64), x.write(2, x.mr, 64, 64))
		x.a.poll(2)
		x.arrived(0, 128)
	}
	x.readTimes(2)
}

// TestAhead tests that adjacent data of work requests that were posted together is read together.
func TestAhead(t *testing.T) {
	for _, c := range []struct {
		name  string
		wrs   func(x *aheadBench) []ib.SendWR
		reads int32
	}{
		{"WRITEs in a row", func(x *aheadBench) (wrs []ib.SendWR) {
			for i := range 32 {
				wrs = append(wrs, x.write(0, x.mr, i*64, 64))
			}
			return wrs
		}, 1},
		{"across a page", func(x *aheadBench) (wrs []ib.SendWR) {
			for i := range 32 { // some end at the end of a page of 4096 bytes
				wrs = append(wrs, x.write(0, x.mr, 3072+i*64, 64))
			}
			return wrs
		}, 2},
		{"with gaps", func(x *aheadBench) (wrs []ib.SendWR) {
			for i := range 8 {
				wrs = append(wrs, x.write(0, x.mr, i*128, 64))
			}
			return wrs
		}, 8},
		{"backwards", func(x *aheadBench) (wrs []ib.SendWR) {
			for i := range 8 {
				wrs = append(wrs, x.write(0, x.mr, (8-i)*64, 64))
			}
			return wrs
		}, 8},
		{"of lengths that differ", func(x *aheadBench) (wrs []ib.SendWR) {
			at := 0
			for i := range 12 {
				wrs = append(wrs, x.write(0, x.mr, at, 1+i*20))
				at += 1 + i*20
			}
			return wrs
		}, 1},
		{"of two regions", func(x *aheadBench) (wrs []ib.SendWR) {
			other := x.register(0, aheadLen)
			return []ib.SendWR{x.write(0, x.mr, 0, 64), x.write(0, other, 64, 64), x.write(0, other, 128, 64)}
		}, 2},
		{"of two elements", func(x *aheadBench) []ib.SendWR {
			second := x.write(0, x.mr, 64, 64)
			second.SGList = []ib.SGE{{Addr: x.addr + 64, Length: 32, LKey: x.mr.LKey()}, {Addr: x.addr + 96, Length: 32, LKey: x.mr.LKey()}}
			return []ib.SendWR{x.write(0, x.mr, 0, 64), second, x.write(0, x.mr, 128, 64)}
		}, 2}, // the two elements of the second request are one read, and the third request is the other
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newAheadBench(t, setup{})
			wrs := c.wrs(x)
			x.a.send(wrs...)
			for _, wc := range x.a.poll(len(wrs)) {
				if wc.Status != ib.WCSuccess {
					t.Fatal(wc.Status)
				}
			}
			for _, wr := range wrs {
				n := 0
				for _, s := range wr.SGList {
					n += int(s.Length)
				}
				x.arrived(int(wr.RemoteAddr-x.b.addr), n)
			}
			x.readTimes(c.reads)
		})
	}
}

// TestAheadOfPost tests that no data is read before its work request is posted.
func TestAheadOfPost(t *testing.T) {
	x := newAheadBench(t, setup{})
	for i := range 8 {
		x.a.send(x.write(0, x.mr, i*64, 64))
		x.a.poll(1)
		x.arrived(i*64, 64)
		fill(x.mem[(i+1)*64:], uint64(i+2))
	}
}

// TestAheadOfRead posts a WRITE, with a fence, behind an RDMA READ into the same memory. The WRITE must send the data
// of the READ.
func TestAheadOfRead(t *testing.T) {
	x := newAheadBench(t, setup{})
	fill(x.b.buf[8192:], 77)
	read := x.write(1, x.mr, 64, 64)
	read.Opcode, read.RemoteAddr = ib.WRRDMARead, x.b.addr+8192
	last := x.write(2, x.mr, 64, 64)
	last.Flags |= ib.SendFence
	x.a.send(x.write(0, x.mr, 0, 64), read, last)
	x.a.poll(3)
	if !bytes.Equal(x.b.buf[64:128], x.b.buf[8192:8192+64]) {
		t.Error("the WRITE has sent the data from before the READ")
	}
}

// TestAheadFails posts a message with unreadable memory behind others with adjacent memory. Only that message fails.
func TestAheadFails(t *testing.T) {
	for _, why := range []string{"the region ends", "the key is none"} {
		t.Run(why, func(t *testing.T) {
			x := newAheadBench(t, setup{})
			part := x.register(0, 128)
			wrs := []ib.SendWR{x.write(1, part, 0, 64), x.write(2, part, 64, 64), x.write(3, part, 128, 64)}
			if why == "the key is none" {
				wrs[2].SGList[0].LKey ^= 0x5a00
			}
			x.a.send(wrs...)
			x.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMAWrite}, ib.WC{ID: 2, Opcode: ib.WCRDMAWrite}, ib.WC{ID: 3, Status: ib.WCLocProtErr})
			x.arrived(0, 128)
		})
	}
}

// TestAheadOfServices is TestAhead for SENDs of each service.
func TestAheadOfServices(t *testing.T) {
	for _, typ := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC} {
		t.Run(fmt.Sprint(typ), func(t *testing.T) {
			x := newAheadBench(t, setup{typ: typ})
			var wrs []ib.SendWR
			for i := range 16 {
				x.b.recv(uint64(i), i*64, 64)
				wr := x.write(0, x.mr, i*64, 64)
				wr.Opcode, wr.RemoteAddr, wr.RKey = ib.WRSend, 0, 0
				wrs = append(wrs, wr)
			}
			x.a.send(wrs...)
			x.b.poll(16)
			x.a.poll(16)
			x.arrived(0, 16*64)
			x.readTimes(1)
		})
	}
}
