package rxe

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"verbena/ib"
)

// orderCase is a case of TestRandomOrder: the work requests of both ends, the way that the packets take, and what the
// network does wrong. All of it follows from the seed. (The moments at which threads run do not.)
type orderCase struct {
	seed    uint64
	typ     ib.QPType // RC or UC
	mtu     ib.MTU
	psn     uint32 // mostly wraps among the operations
	reads   int    // max_rd_atomic
	depth   int    // max_dest_rd_atomic
	timeout uint8  // local ACK timeout
	way     way
	loss    loss
	rough   bool    // packets are often repeated, and overtaken by many others, as well
	change  bool    // the shortcut and traces come and go
	direct  [2]bool // the memory of an end is in this process, see umem.Region.Direct
	late    bool    // receives are posted when messages already arrive
	both    bool    // both ends post work requests, otherwise the first does

	arena  int // bytes at the beginning of each buffer, the target of all operations of the other end
	bufLen int
	ops    [2][]*orderOp
	fails  int // the operation of the first end that uses an invalidated key; -1: none
}

// orderOp is a work request.
type orderOp struct {
	op          ib.WROpcode
	at, size    int   // in the arena; a SEND's receive begins there
	slot        int   // in the requester's buffer: the place of the source or the result
	cuts        []int // sizes of all elements but the last
	source      int   // the operation whose result is sent; -1: the operation's own slot
	fence       bool
	inline      bool
	window      bool   // by the key of the memory window, not of the region
	add         uint64 // or, of a compare and swap, the value to compare with
	swap        uint64
	matches     bool // a compare and swap compares with the bytes that are there at the beginning
	receiveSize int
}

const (
	maxOrderOps   = 31
	maxOrderCuts  = 3
	maxOrderBytes = 1 << 20 // of all operations of an end
	slotGuard     = 8       // bytes between two slots, which nothing may change
)

// scatters reports whether the receive says where the message goes.
func (o *orderOp) scatters() bool {
	return o.op == ib.WRSend || o.op == ib.WRSendWithImm || o.op == ib.WRSendWithInv
}

// takesReceive reports whether the operation takes a receive.
func (o *orderOp) takesReceive() bool { return o.scatters() || o.op == ib.WRRDMAWriteWithImm }

// atomic reports whether the operation changes memory and returns the bytes that were there.
func (o *orderOp) atomic() bool { return o.op == ib.WRAtomicCmpAndSwp || o.op == ib.WRAtomicFetchAdd }

// fetches reports whether the operation has a result.
func (o *orderOp) fetches() bool { return o.op == ib.WRRDMARead || o.atomic() }

// stores reports whether the operation copies its data to the arena.
func (o *orderOp) stores() bool { return !o.fetches() && o.op != ib.WRFlush }

// word reports whether the operation is about eight bytes that are aligned.
func (o *orderOp) word() bool { return o.atomic() || o.op == ib.WRAtomicWrite }

// in returns the operation's bytes in an arena.
func (o *orderOp) in(arena []byte) []byte { return arena[o.at:][:o.size] }

// local returns the operation's bytes in the requester's buffer.
func (o *orderOp) local(buf []byte) []byte { return buf[o.slot:][:o.size] }

func (c *orderCase) String() string {
	return fmt.Sprintf("seed %d: %v, MTU %d, PSN %#x, %v, losses %v, rough %t, change %t, direct %v, late %t, "+
		"arena %d, reads %d of %d, %d and %d operations, invalidated key %d",
		c.seed, c.typ, c.mtu.Bytes(), c.psn, c.way, c.loss, c.rough, c.change, c.direct, c.late, c.arena,
		c.reads, c.depth, len(c.ops[0]), len(c.ops[1]), c.fails)
}

// random returns a source of random numbers for one purpose.
func (c *orderCase) random(purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(c.seed, purpose)) }

// newOrderCase makes the case of a seed.
func newOrderCase(seed uint64) *orderCase {
	c := &orderCase{seed: seed, typ: ib.QPTypeRC, fails: -1}
	r := c.random(0)
	c.mtu = ib.MTU256 + ib.MTU(r.IntN(5))
	c.reads = 1 + r.IntN(4)
	c.depth = c.reads + r.IntN(2)
	c.timeout = uint8(8 + r.IntN(7))
	c.way = way(r.IntN(3))
	if c.way == wayWire && r.IntN(3) > 0 {
		c.loss = loss(r.IntN(int(numLosses)))
		c.rough = c.loss != lossNone && r.IntN(2) == 0
	}
	c.change = r.IntN(5) == 0
	c.late = r.IntN(4) == 0
	c.both = r.IntN(2) == 0
	c.direct = [2]bool{r.IntN(2) == 0, r.IntN(2) == 0}
	c.arena = []int{64, 64, 256, 2048, 8192, 70_000, 200_000}[r.IntN(7)]
	if c.loss == lossNone && !c.late && !c.change && r.IntN(4) == 0 {
		c.typ = ib.QPTypeUC // only where it loses no message, so that the same model holds
	}
	packets := 0
	for end := range c.ops {
		if end == 0 || c.both {
			c.addOps(r, end)
		}
		for _, o := range c.ops[end] {
			packets += c.mtu.Packets(uint32(o.size))
		}
	}
	c.psn = uint32(1<<24-r.IntN(2*packets+2)) & (1<<24 - 1)
	return c
}

// addOps chooses the operations of an end.
func (c *orderCase) addOps(r *rand.Rand, end int) {
	slot, total, invalidated := c.arena+messageGuard, 0, false
	for i := range 2 + r.IntN(maxOrderOps-1) {
		o := &orderOp{op: c.randomOp(r, invalidated), source: -1, fence: r.IntN(5) == 0}
		c.place(r, o)
		if total += o.size; total > maxOrderBytes {
			break
		}
		o.slot = slot + r.IntN(8) // any alignment
		slot = o.slot + o.size + slotGuard
		c.sendResult(r, o, c.ops[end])
		switch {
		case o.scatters():
			o.receiveSize = min(c.arena, o.size+r.IntN(20))
			o.at = r.IntN(c.arena - o.receiveSize + 1)
		case o.op == ib.WRFlush:
		case invalidated: // if both ends sent, the error would flush the other end's at a random moment
			o.window = !c.both && r.IntN(6) == 0
		default:
			o.window = r.IntN(3) == 0
		}
		if o.op == ib.WRSendWithInv {
			invalidated, o.fence = true, true // READs that use the window have to be done
		}
		c.addElements(r, o)
		c.ops[end] = append(c.ops[end], o)
		if invalidated && o.window && c.fails < 0 && o.size > 0 {
			c.fails = i
		}
	}
	c.bufLen = max(c.bufLen, slot+messageGuard)
}

// randomOp chooses an operation. Only one of an end may invalidate the window.
func (c *orderCase) randomOp(r *rand.Rand, invalidated bool) ib.WROpcode {
	ops := []ib.WROpcode{
		ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm,
		ib.WRRDMARead, ib.WRRDMARead, ib.WRAtomicFetchAdd, ib.WRAtomicFetchAdd, ib.WRAtomicCmpAndSwp,
		ib.WRAtomicWrite, ib.WRFlush, ib.WRSendWithInv,
	}
	if c.typ == ib.QPTypeUC {
		ops = ops[:5]
	}
	op := ops[r.IntN(len(ops))]
	if op == ib.WRSendWithInv && (invalidated || r.IntN(2) == 0) {
		return ib.WRRDMAWrite
	}
	return op
}

// place chooses an operation's bytes in the arena. Sizes are often next to a multiple of the path MTU, and every second
// atomic is on one of two words.
func (c *orderCase) place(r *rand.Rand, o *orderOp) {
	if o.word() {
		o.size, o.at = 8, 8*r.IntN(c.arena/8)
		if r.IntN(2) == 0 {
			o.at = 8 * r.IntN(2)
		}
		o.add, o.swap, o.matches = r.Uint64(), r.Uint64(), r.IntN(4) > 0
		return
	}
	o.size = r.IntN(c.arena + 1)
	if r.IntN(2) == 0 {
		o.size = min(c.arena, (1+r.IntN(3))*c.mtu.Bytes()+r.IntN(3)-1)
	}
	o.at = r.IntN(c.arena - o.size + 1)
}

// sendResult makes a third of WRITEs and SENDs send the result of an operation before them, often the last one. They
// need a fence.
func (c *orderCase) sendResult(r *rand.Rand, o *orderOp, before []*orderOp) {
	if o.op != ib.WRRDMAWrite && o.op != ib.WRSend && o.op != ib.WRRDMAWriteWithImm {
		return
	}
	var results []int
	for i, p := range before {
		if p.fetches() && p.size > 0 {
			results = append(results, i)
		}
	}
	if len(results) == 0 || r.IntN(3) > 0 {
		return
	}
	o.source = results[len(results)-1]
	if r.IntN(2) == 0 {
		o.source = results[r.IntN(len(results))]
	}
	o.fence = true
	o.size = 1 + r.IntN(before[o.source].size)
	o.at = r.IntN(c.arena - o.size + 1)
}

// addElements chooses the elements of an operation's bytes at the requester, some of them empty.
func (c *orderCase) addElements(r *rand.Rand, o *orderOp) {
	if o.word() || o.op == ib.WRFlush {
		return
	}
	left := o.size
	for range r.IntN(maxOrderCuts + 1) {
		k := min(left, r.IntN(o.size+1))
		o.cuts, left = append(o.cuts, k), left-k
	}
	o.inline = o.stores() && o.source < 0 && o.size <= inlineBytes && r.IntN(3) == 0
}

// orderModel executes the operations of one end one after another: RC and UC execute requests in the order of their
// PSNs, and each of them once, however often it arrives.
type orderModel struct {
	ops    []*orderOp // those that the peer executes
	states [][]byte   // the arena before each of them, and after the last one
}

// newOrderModel executes operations on an arena. before is the requester's buffer before all of them, and after when
// they have completed.
func newOrderModel(ops []*orderOp, arena, before, after []byte) *orderModel {
	m := &orderModel{ops: ops, states: [][]byte{arena}}
	for _, o := range ops {
		arena = bytes.Clone(arena)
		target := o.in(arena)
		switch {
		case o.stores() && o.source >= 0:
			// The fence makes it wait for the result, so it carries the bytes that were fetched, not those before.
			copy(target, after[ops[o.source].slot:])
		case o.stores():
			copy(target, o.local(before))
		case o.atomic():
			binary.NativeEndian.PutUint64(target, o.apply(binary.NativeEndian.Uint64(target)))
		}
		m.states = append(m.states, arena)
	}
	return m
}

// apply returns the value that an atomic leaves.
func (o *orderOp) apply(v uint64) uint64 {
	switch {
	case o.op == ib.WRAtomicFetchAdd:
		return v + o.add
	case v == o.add:
		return o.swap
	}
	return v
}

// final returns the arena when all operations have been executed.
func (m *orderModel) final() []byte { return m.states[len(m.states)-1] }

// fetched returns the states of which each byte of an operation's result may be.
//
// An atomic is executed exactly once, so its result is of the one moment between the operations beside it. A READ
// that is repeated reads the memory again, after requests behind it: IBA 10.8.3.3 orders them after the READ only
// with a fence. So the result may have bytes of any request up to the next fence, and of none behind that.
func (m *orderModel) fetched(i int) [][]byte {
	if m.ops[i].atomic() {
		return m.states[i : i+1]
	}
	end := i + 1
	for end < len(m.ops) && !m.ops[end].fence {
		end++
	}
	return m.states[i : end+1]
}

// visible returns the states of which each byte of an operation's target may be when the operation has completed.
func (m *orderModel) visible(i int) [][]byte { return m.states[i+1:] }

// strange returns the index of the first byte of got, which is at an offset in the arena, that is of none of the
// states; -1: each is of one.
func strange(got []byte, at int, states [][]byte) int {
	if bytes.Equal(got, states[0][at:][:len(got)]) {
		return -1
	}
next:
	for i, v := range got {
		for _, s := range states {
			if s[at+i] == v {
				continue next
			}
		}
		return i
	}
	return -1
}
