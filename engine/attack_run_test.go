package engine

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
)

// TestRunQueueUnderAttack runs threads that post, ring doorbells, look at queue pairs, change states and make
// programs slow, all at once. At the end, no queue pair is running, no event waits, no train counts, and messages
// arrive.
func TestRunQueueUnderAttack(t *testing.T) {
	for _, shortcut := range []bool{true, false} {
		b := newBench(t, setup{shortcut: shortcut, cqe: 30000})
		b.connect(conn{timeout: 14, retry: 7})
		type pair struct{ a, z *ib.QP }
		var pairs []pair
		for _, typ := range []ib.QPType{ib.QPTypeRC, ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUC} {
			p := pair{b.a.newQP(setup{typ: typ, cap: userCap}), b.b.newQP(setup{typ: typ, cap: userCap})}
			connectQPs(t, b.a.dev, p.a, b.b.dev, p.z, conn{timeout: 14, retry: 7})
			pairs = append(pairs, p)
		}
		self := b.a.newQP(setup{typ: ib.QPTypeRC, cap: userCap})
		toRTR(t, self, b.a.dev, self.Num(), conn{})
		toRTS(t, self, conn{})
		// Each queue pair and direction writes to memory of its own. Memory that is read from is never written.
		const source, room = 0, 8192
		write := func(n, to *node, qp *ib.QP, place int, r *rand.Rand) {
			wr := ib.SendWR{
				ID: 1, Opcode: ib.WRRDMAWrite, SGList: n.sge(source, 1+r.IntN(5000)), RemoteAddr: to.addr +
					uint64(room*(1+2*place)),
				RKey: to.mr.RKey(), Flags: ib.SendSignaled,
			}
			if qp.Type() == ib.QPTypeRC && r.IntN(3) == 0 {
				wr.Opcode, wr.SGList, wr.RemoteAddr = ib.WRRDMARead, n.sge(room*(2+2*place), 1+r.IntN(5000)), to.addr+source
			}
			_, _ = qp.PostSend(wr)
		}
		stop := time.Now().Add(testutil.FewerIfShort(400*time.Millisecond, 100*time.Millisecond))
		var wg sync.WaitGroup
		for k := range 4 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(k), 1))
				for time.Now().Before(stop) {
					i := r.IntN(len(pairs))
					p := pairs[i]
					switch r.IntN(12) {
					case 0:
						_, _ = qpOf(p.a).Query(0)
					case 1:
						b.a.dev.QPStatuses()
					case 2:
						_ = b.b.dev.TraceQP(p.z.Num(), r.IntN(2) == 0)
					case 3:
						qpOf(p.z).Doorbell(nil)
					case 4:
						var h ib.Hold
						qpOf(p.a).Doorbell(&h)
						qpOf(p.z).Doorbell(&h)
						h.Run()
					case 5:
						l := qpOf(p.z).lane
						l.stall()
						x := b.b.dev.begin(false)
						x.forgive(qpOf(p.z))
						x.finish()
						l.resume()
						l.mu.Lock()
						l.until = time.Time{}
						l.mu.Unlock()
					case 6:
						write(b.a, b.a, self, len(pairs), r)
					case 7:
						write(b.b, b.a, p.z, i, r)
					default:
						write(b.a, b.b, p.a, i, r)
					}
					if r.IntN(8) == 0 {
						wc := make([]ib.WC, 64)
						_, _ = b.a.cq.Poll(wc)
						_, _ = b.b.cq.Poll(wc)
					}
				}
			})
		}
		wg.Wait()
		quiet := func(what string, f func(qp *QP) bool) {
			t.Helper()
			all := []*QP{qpOf(self)}
			for _, p := range pairs {
				all = append(all, qpOf(p.a), qpOf(p.z))
			}
			for _, qp := range all {
				if !testutil.PollUntil(func() bool { return f(qp) }) {
					t.Fatalf("shortcut %t, %v queue pair %d: %s", shortcut, qp.typ, qp.num, what)
				}
			}
		}
		quiet("it is still being run", func(qp *QP) bool { return qp.activity.state.Load() == resting })
		quiet("events wait", func(qp *QP) bool { return !qp.events.any.Load() })
		quiet("trains count as handed over", func(qp *QP) bool { return qp.egress.handed.Load() == 0 })
		quiet("bytes are in its lane", func(qp *QP) bool { return qp.lane.bytes.Load() == 0 })
		quiet("requests are in flight", func(qp *QP) bool {
			n := 0
			qp.exclusively(func(*pass) { n = qp.req.snd.Len() })
			return n == 0
		})
		for _, p := range pairs {
			if s := p.a.State(); s != ib.QPRTS {
				t.Errorf("shortcut %t: a %v queue pair is in %v", shortcut, p.a.Type(), s)
			}
			check(t, p.a.Destroy())
			check(t, p.z.Destroy())
		}
		check(t, self.Destroy())
	}
}

// TestLifeUnderAttack resets, reconnects and destroys queue pairs, and moves them to ERR, while others send to them.
func TestLifeUnderAttack(t *testing.T) {
	for _, shortcut := range []bool{true, false} {
		b := newBench(t, setup{shortcut: shortcut, cqe: 30000})
		b.connect(conn{})
		for round := range 60 {
			typ := []ib.QPType{ib.QPTypeRC, ib.QPTypeUC}[round%2]
			a, z := b.a.newQP(setup{typ: typ, cap: userCap}), b.b.newQP(setup{typ: typ, cap: userCap})
			connectQPs(t, b.a.dev, a, b.b.dev, z, conn{timeout: 8, retry: 1})
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					for range 40 {
						_, _ = a.PostSend(ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 3000), RemoteAddr: b.b.addr,
							RKey: b.b.mr.RKey()})
					}
				})
			}
			wg.Go(func() {
				switch round % 3 {
				case 0:
					check(t, z.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
				case 1:
					check(t, z.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
				case 2:
					check(t, a.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
				}
			})
			wg.Wait()
			from := qpOf(a)
			check(t, z.Destroy())
			if s := a.State(); s == ib.QPReset {
				t.Errorf("round %d: the sender is in %v", round, s)
			}
			check(t, a.Destroy())
			if !testutil.PollUntil(func() bool { return from.egress.handed.Load() == 0 }) {
				t.Fatalf("round %d: %d trains count as handed over", round, from.egress.handed.Load())
			}
			for wc := make([]ib.WC, 64); ; {
				n, _ := b.a.cq.Poll(wc)
				m, _ := b.b.cq.Poll(wc)
				if n+m == 0 {
					break
				}
			}
		}
	}
}
