package engine

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
)

// seeds returns the seeds of the random tests: fixed ones, and a new one for each run.
func seeds(n int) []uint64 {
	s := []uint64{rand.Uint64()}
	for i := range n - 1 {
		s = append(s, uint64(i))
	}
	return s
}

// TestLoss runs streams of mixed work requests over a network that loses, repeats, damages and reorders packets. All
// data must arrive correctly, once, and in order.
func TestLoss(t *testing.T) {
	for _, c := range []struct {
		name string
		rule link.Rule
		sign counter // counted by one of the devices if the rule did something
	}{
		{"drop", link.Rule{Drop: 0.02}, cntCompRetry},
		{"duplicate", link.Rule{Duplicate: 0.2}, cntDupReq},
		{"reorder", link.Rule{Reorder: 0.02, Behind: 3}, cntRcvSeqErr},
		{"jitter", link.Rule{Jitter: 4 * time.Microsecond}, cntOutOfSeqReq},
		{"all", link.Rule{Drop: 0.01, Duplicate: 0.05, Corrupt: 0.005, Reorder: 0.01, Behind: 2}, cntCompRetry},
	} {
		t.Run(c.name, func(t *testing.T) {
			signs := uint64(0)
			n, streams := 4, 4
			if raceEnabled || testing.Short() { // more seeds take seconds
				n, streams = 1, 2
			}
			for _, seed := range seeds(n) {
				bubble(t, func(t *testing.T) {
					t.Logf("seed %d", seed)
					b := newBenchIn(t, setup{
						bufLen: 4 << 20,
						net:    simnet.Config{Latency: 20 * time.Microsecond, Bandwidth: 1 << 30, Rand: rand.NewPCG(seed, 1)},
					})
					check(t, b.net.Faults().Add(c.rule))
					mtu := ib.MTU256 + ib.MTU(seed%5)
					if c.rule.Jitter != 0 {
						mtu = ib.MTU4096 // hardly a packet in order: many small ones would take their time
					}
					b.connect(conn{mtu: mtu, psn: 0xffff00})
					r := rand.New(rand.NewPCG(seed, 2))
					for range streams {
						stream(b, r, 48, seed)
						// A delayed READ request is executed again after its data has arrived. That must not happen
						// while the next stream fills the memory.
						testutil.AdvanceTime(time.Second)
					}
					signs += b.a.dev.counters[c.sign].n.Load() + b.b.dev.counters[c.sign].n.Load()
					b.close()
				})
			}
			if signs == 0 {
				t.Errorf("%s is 0", counterNames[c.sign])
			}
		})
	}
}

// stream sends n random work requests from a to b, all of them in flight together, and checks the result.
func stream(b *bench, r *rand.Rand, n int, seed uint64) {
	b.t.Helper()
	type expectation struct{ src, dst []byte }
	var (
		wrs      []ib.SendWR
		data     []expectation
		received []ib.WC
		sent     []ib.WC
		at       = 64
		added    uint64
	)
	counter := b.b.buf[:8]
	before := binary.NativeEndian.Uint64(counter)
	var olds []int // places for the results of the atomics
	for i := range n {
		size := r.IntN(6000)
		switch r.IntN(8) {
		case 0:
			size = 0
		case 1:
			size = r.IntN(150_000)
		}
		if at+size+8 > len(b.a.buf) {
			break
		}
		a, z := b.a.buf[at:at+size], b.b.buf[at:at+size]
		wr := ib.SendWR{ID: uint64(i), SGList: split(r, b.a.sge(at, size)), RemoteAddr: b.b.addr + uint64(at),
			RKey: b.b.mr.RKey(), Imm: uint32(i)}
		if r.IntN(3) > 0 {
			wr.Flags |= ib.SendSignaled
		}
		wr.Opcode = []ib.WROpcode{
			ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead, ib.WRAtomicFetchAdd,
		}[r.IntN(6)]
		x := expectation{a, z}
		wc := ib.WC{ID: uint64(i)}
		switch wr.Opcode {
		case ib.WRSend, ib.WRSendWithImm:
			b.b.recv(uint64(i), at, size)
			in := ib.WC{ID: uint64(i), Opcode: ib.WCRecv, ByteLen: uint32(size)}
			if wr.Opcode == ib.WRSendWithImm {
				in.Flags, in.Imm = ib.WCWithImm, uint32(i)
			}
			received = append(received, in)
			wc.Opcode = ib.WCSend
		case ib.WRRDMAWriteWithImm:
			b.b.recv(uint64(i), 0, 0)
			received = append(received, ib.WC{ID: uint64(i), Opcode: ib.WCRecvRDMAWithImm, ByteLen: uint32(size),
				Flags: ib.WCWithImm, Imm: uint32(i)})
			wc.Opcode = ib.WCRDMAWrite
		case ib.WRRDMAWrite:
			wc.Opcode = ib.WCRDMAWrite
		case ib.WRRDMARead:
			x = expectation{z, a}
			wc.Opcode = ib.WCRDMARead
		case ib.WRAtomicFetchAdd:
			at = (at + 7) &^ 7
			x = expectation{}
			wr.SGList, wr.RemoteAddr, wr.CompareAdd = b.a.sge(at, 8), b.b.addr, 3
			olds = append(olds, at)
			size = 8
			added += 3
			wc.Opcode = ib.WCFetchAdd
		}
		fill(x.src, seed+uint64(i))
		clear(x.dst)
		data = append(data, x)
		if i == n-1 {
			wr.Flags |= ib.SendSignaled
		}
		if wr.Flags&ib.SendSignaled != 0 {
			sent = append(sent, wc)
		}
		wrs = append(wrs, wr)
		at += size
	}
	for len(wrs) > 0 {
		k := 1 + r.IntN(len(wrs))
		b.a.send(wrs[:k]...)
		wrs = wrs[k:]
	}
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(47 * time.Microsecond):
				qpOf(b.a.qp).verify(b.t)
			}
		}
	}()
	b.a.expect(sent...)
	b.b.expect(received...)
	close(stop)
	b.a.none()
	b.b.none()
	for i, x := range data {
		if !bytes.Equal(x.src, x.dst) {
			b.t.Fatalf("seed %d: work request %d: data differ from byte %d of %d on", seed, i, firstDifference(x.src, x.dst),
				len(x.src))
		}
	}
	if got := binary.NativeEndian.Uint64(counter) - before; got != added {
		b.t.Fatalf("seed %d: atomics added %d instead of %d", seed, got, added)
	}
	for i, o := range olds {
		if got := binary.NativeEndian.Uint64(b.a.buf[o:]) - before; got != uint64(3*i) {
			b.t.Fatalf("seed %d: atomic %d found %d added instead of %d", seed, i, got, 3*i)
		}
	}
}

// verify checks the sender's counts against its requests in flight.
func (qp *QP) verify(t testing.TB) {
	t.Helper()
	qp.exclusively(func(*pass) {
		if err := qp.req.snd.Verify(); err != nil {
			t.Error(err)
		}
	})
}

// split cuts a gather list of one element into up to four elements.
func split(r *rand.Rand, list []ib.SGE) []ib.SGE {
	s := list[0]
	list = nil
	for i := range 3 {
		n := uint32(r.IntN(int(s.Length) + 1))
		if r.IntN(2) == 0 || i > 0 && n == 0 {
			continue
		}
		list = append(list, ib.SGE{Addr: s.Addr, Length: n, LKey: s.LKey})
		s.Addr, s.Length = s.Addr+uint64(n), s.Length-n
	}
	return append(list, s)
}
