package engine

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link/simnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConcurrentPosting posts from many goroutines to one pair of queue pairs, in both directions, and polls it, over
// the shortcut and over the network. The shortcut is turned on and off in between.
func TestConcurrentPosting(t *testing.T) {
	for _, c := range []struct {
		name string
		s    setup
		flip bool
	}{
		{"shortcut", setup{shortcut: true}, false},
		{"wire", setup{net: simnet.Config{}}, false},
		{"both", setup{shortcut: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			const posters, each = 8, 200
			c.s.cqe = 2 * posters * each // the send queue has room again before a completion is polled
			b := newBench(t, c.s)
			b.connect(conn{})
			stop := make(chan struct{})
			var flipping sync.WaitGroup
			if c.flip {
				flipping.Go(func() {
					for on := false; ; on = !on {
						select {
						case <-stop:
							return
						case <-time.After(200 * time.Microsecond):
							b.a.dev.SetShortcut(on)
						}
					}
				})
			}
			// Each message carries the number of its sender and its position. The messages of each sender must arrive
			// in the order of posting, all of them, once.
			var wg sync.WaitGroup
			for _, dir := range []struct{ from, to *node }{{b.a, b.b}, {b.b, b.a}} {
				for i := range 100 {
					dir.to.recv(uint64(1000+i), 1000+i*8, 8)
				}
				for n := range posters {
					wg.Go(func() {
						for i := range each {
							var data [8]byte
							binary.NativeEndian.PutUint32(data[:], uint32(n))
							binary.NativeEndian.PutUint32(data[4:], uint32(i))
							wr := ib.SendWR{ID: uint64(n), Opcode: ib.WRSend, Flags: ib.SendSignaled | ib.SendInline, Inline: data[:]}
							if !testutil.PollUntil(func() bool {
								k, _ := dir.from.qp.PostSend(wr)
								return k == 1 || t.Failed()
							}) {
								t.Errorf("message %d of %d: the send queue has no room", i, n)
							}
						}
					})
				}
			}
			var received, sent atomic.Int64
			const total = 2 * posters * each
			for _, n := range []*node{b.a, b.b} {
				var mu sync.Mutex
				next := make([]uint32, posters)
				for range 2 {
					wg.Go(func() {
						over := func() bool { return received.Load()+sent.Load() >= 2*total || t.Failed() }
						look := func() (some bool) {
							mu.Lock() // the order of the checks is the order of polling
							defer mu.Unlock()
							var wc [4]ib.WC
							k, err := n.cq.Poll(wc[:])
							if err != nil {
								t.Error(err)
							}
							for _, w := range wc[:k] {
								if w.Status != ib.WCSuccess {
									t.Errorf("completion %+v", w)
								}
								if w.Opcode == ib.WCSend {
									sent.Add(1)
									continue
								}
								off := 1000 + int(w.ID-1000)*8
								who, at := binary.NativeEndian.Uint32(n.buf[off:]), binary.NativeEndian.Uint32(n.buf[off+4:])
								if next[who] != at {
									t.Errorf("message %d of %d arrives, expected %d", at, who, next[who])
								}
								next[who] = at + 1
								n.recv(w.ID, off, 8)
								received.Add(1)
							}
							return k > 0
						}
						for !over() {
							if !testutil.PollUntil(func() bool { return look() || over() }) {
								t.Errorf("%d messages have arrived, and %d were sent, of %d", received.Load(), sent.Load(), total)
							}
						}
					})
				}
			}
			wg.Wait()
			close(stop)
			flipping.Wait()
		})
	}
}

// TestDestroyUnderLoad destroys queue pairs, regions and queues while packets for them come and go.
func TestDestroyUnderLoad(t *testing.T) {
	for _, shortcut := range []bool{true, false} {
		b := newBench(t, setup{shortcut: shortcut, bufLen: 8 << 20})
		b.connect(conn{})
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { // keeps the devices busy with other work
			for {
				select {
				case <-stop:
					return
				default:
				}
				b.a.qp.PostSend(ib.SendWR{Opcode: ib.WRRDMARead, SGList: b.a.sge(0, 200_000), RemoteAddr: b.b.addr,
					RKey: b.b.mr.RKey()})
			}
		})
		const size = 100_000
		for i := range 60 {
			off := 200_000 + i*size
			a, z := b.a.newQP(setup{typ: ib.QPTypeRC, cap: userCap}), b.b.newQP(setup{typ: ib.QPTypeRC, cap: userCap})
			connectQPs(t, b.a.dev, a, b.b.dev, z, conn{})
			mr, err := b.b.pd.RegMR(ib.MRInit{Space: b.b.mem, Addr: b.b.addr, Length: uint64(off + size), Access: allAccess})
			check(t, err)
			before := b.b.dev.counters[cntRcvdPkts].n.Load()
			arrived := func(packets int) {
				testutil.Eventually(t, "packets to arrive",
					func() bool { return b.b.dev.counters[cntRcvdPkts].n.Load() >= before+uint64(packets) })
			}
			wg.Go(func() {
				wr := ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.a.sge(off, size), RemoteAddr: b.b.addr + uint64(off),
					RKey: mr.RKey()}
				read := wr
				read.Opcode = ib.WRRDMARead
				a.PostSend(wr, read, wr, read)
			})
			arrived(20 * (i % 10)) // another time for each i
			check(t, mr.Dereg())
			check(t, z.Destroy())
			arrived(30 * (i % 10))
			defer func() { check(t, a.Destroy()) }() // its goroutine may still post
		}
		close(stop)
		wg.Wait()
	}
}
