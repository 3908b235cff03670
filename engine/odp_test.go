package engine

import (
	"errors"
	"syscall"
	"testing"

	"verbena/ib"
	"verbena/umem"
)

// TestOnDemand tests that memory that is registered on demand is usable like other memory, even if a part of it was
// not present at the registration.
func TestOnDemand(t *testing.T) {
	for _, c := range []struct {
		name         string
		addr, length func(n *node) uint64
	}{
		{"explicit", func(n *node) uint64 { return n.addr }, func(n *node) uint64 { return uint64(len(n.buf)) }},
		{"implicit", func(*node) uint64 { return 0 }, func(*node) uint64 { return umem.ImplicitLength }},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachNetwork(t, func(t *testing.T, s setup) {
				b := newBench(t, s)
				b.connect(conn{})
				mem := umem.NewLocal()
				mr, err := b.b.pd.RegMR(ib.MRInit{Space: mem, Account: umem.NewAccount(func() uint64 { return 0 }),
					Addr: c.addr(b.b), Length: c.length(b.b), Access: allAccess | ib.AccessOnDemand})
				check(t, err)
				_, err = mem.Add(b.b.buf)
				check(t, err)
				fill(b.a.buf[:5000], 1)
				b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: b.a.sge(0, 5000),
					RemoteAddr: b.b.addr, RKey: mr.RKey()})
				b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMAWrite, ByteLen: 5000})
				if i := firstDifference(b.a.buf[:5000], b.b.buf[:5000]); i >= 0 {
					t.Errorf("byte %d differs", i)
				}
				check(t, mem.Remove(b.b.addr))
				b.a.send(ib.SendWR{ID: 2, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: b.a.sge(0, 8),
					RemoteAddr: b.b.addr, RKey: mr.RKey()})
				b.a.expect(ib.WC{ID: 2, Status: ib.WCRemAccessErr})
				check(t, mr.Dereg())
			})
		})
	}
}

func TestAdvice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{})
		n := b.a
		reg := func(access ib.AccessFlags) *ib.MR {
			mr, err := n.pd.RegMR(ib.MRInit{Space: n.mem, Addr: n.addr, Length: uint64(len(n.buf)) + 1<<20,
				Access: access | ib.AccessOnDemand})
			check(t, err)
			return mr
		}
		mr, readOnly := reg(ib.AccessLocalWrite), reg(0)
		other, err := n.dev.IB().AllocPD()
		check(t, err)
		size := uint32(len(n.buf))
		for _, c := range []struct {
			name   string
			pd     *ib.PD
			advice ib.MRAdvice
			sge    ib.SGE
			want   error
		}{
			{"read", n.pd, ib.AdvicePrefetch, ib.SGE{Addr: n.addr, Length: size, LKey: mr.LKey()}, nil},
			{"write", n.pd, ib.AdvicePrefetchWrite, ib.SGE{Addr: n.addr, Length: size, LKey: mr.LKey()}, nil},
			{"read what is read only", n.pd, ib.AdvicePrefetch, ib.SGE{Addr: n.addr, Length: size, LKey: readOnly.LKey()}, nil},
			{"write what is read only", n.pd, ib.AdvicePrefetchWrite, ib.SGE{Addr: n.addr, Length: size,
				LKey: readOnly.LKey()}, syscall.EPERM},
			{"what is not there", n.pd, ib.AdvicePrefetch, ib.SGE{Addr: n.addr, Length: size + 1, LKey: mr.LKey()},
				syscall.EFAULT},
			{"without a fault", n.pd, ib.AdvicePrefetchNoFault, ib.SGE{Addr: n.addr, Length: size + 1, LKey: mr.LKey()}, nil},
			{"outside the region", n.pd, ib.AdvicePrefetchNoFault, ib.SGE{Addr: n.addr - 1, Length: 1, LKey: mr.LKey()},
				syscall.EINVAL},
			{"no such key", n.pd, ib.AdvicePrefetch, ib.SGE{Addr: n.addr, Length: 1, LKey: mr.LKey() + 1}, syscall.EINVAL},
			{"of another domain", other, ib.AdvicePrefetch, ib.SGE{Addr: n.addr, Length: 1, LKey: mr.LKey()}, syscall.EINVAL},
			{"not on demand", n.pd, ib.AdvicePrefetch, ib.SGE{Addr: n.addr, Length: 1, LKey: n.mr.LKey()}, syscall.EINVAL},
			{"unknown advice", n.pd, 3, ib.SGE{Addr: n.addr, Length: 1, LKey: mr.LKey()}, syscall.EOPNOTSUPP},
		} {
			if err := c.pd.AdviseMR(c.advice, ib.AdviceFlush, []ib.SGE{c.sge}); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
		}
		check(t, mr.Dereg())
		check(t, readOnly.Dereg())
		check(t, other.Dealloc())
	})
}
