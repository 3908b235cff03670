package engine

import (
	"sync"
	"testing"

	"verbena/ib"
	"verbena/umem"
)

// countedSpace is memory of this process that counts its copies. For memory of a program, each copy is a system call.
type countedSpace struct {
	*umem.Local
	reads, writes int
}

func (s *countedSpace) ReadV(dst [][]byte, addr uint64) error {
	s.reads++
	return s.Local.ReadV(dst, addr)
}

func (s *countedSpace) WriteV(src [][]byte, addr uint64) error {
	s.writes++
	return s.Local.WriteV(src, addr)
}

// passList holds the passes of a device. A thread may need a pass while another thread has one.
type passList struct {
	mu   sync.Mutex
	list []*pass
}

func (l *passList) add(p *pass) *pass {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, p)
	return p
}

// runs returns the number of runs of queue pairs by the passes.
func (l *passList) runs() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.list {
		n += p.runs
	}
	return n
}

// TestMessageCosts counts the costs of a message between two devices of a Fabric, at an MTU of 4096: the runs of a
// queue pair, the copies at either end, and the packets, including acknowledgements. A change that adds one must
// change this table. TestDataPathAllocates tests that there are no allocations.
func TestMessageCosts(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool drop its buffers")
	}
	for _, c := range []struct {
		name string
		op   ib.WROpcode
		size int
		want messageCost
		wire bool
	}{
		{"SEND of 64 bytes", ib.WRSend, 64, messageCost{runs: 3, reads: 1, writes: 1, packets: 2}, false},
		{"SEND of 4 KB", ib.WRSend, 4 << 10, messageCost{runs: 3, reads: 1, writes: 1, packets: 2}, false},
		{"SEND of 64 KB", ib.WRSend, 64 << 10, messageCost{runs: 3, reads: 1, writes: 1, packets: 17}, false},
		{"SEND of 1 MB", ib.WRSend, 1 << 20, messageCost{runs: 7, reads: 5, writes: 5, packets: 259}, false},
		{"WRITE of 64 bytes", ib.WRRDMAWrite, 64, messageCost{runs: 3, reads: 1, writes: 1, packets: 2}, false},
		{"WRITE of 64 KB", ib.WRRDMAWrite, 64 << 10, messageCost{runs: 3, reads: 1, writes: 1, packets: 17}, false},
		{"WRITE of 1 MB", ib.WRRDMAWrite, 1 << 20, messageCost{runs: 7, reads: 5, writes: 5, packets: 259}, false},
		{"READ of 64 bytes", ib.WRRDMARead, 64, messageCost{runs: 3, reads: 1, writes: 1, packets: 2}, false},
		{"READ of 64 KB", ib.WRRDMARead, 64 << 10, messageCost{runs: 3, reads: 1, writes: 1, packets: 17}, false},
		{"READ of 1 MB", ib.WRRDMARead, 1 << 20, messageCost{runs: 9, reads: 16, writes: 4, packets: 272}, false},
		{"SEND of 64 bytes by the network", ib.WRSend, 64, messageCost{runs: 3, reads: 1, writes: 1, packets: 2}, true},
		{"WRITE of 64 KB by the network", ib.WRRDMAWrite, 64 << 10,
			messageCost{runs: 4, reads: 1, writes: 1, packets: 17}, true},
		{"WRITE of 1 MB by the network", ib.WRRDMAWrite, 1 << 20,
			messageCost{runs: 11, reads: 5, writes: 5, packets: 259}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got messageCost
			for range 20 { // the threads of a busy machine may disturb all messages of two devices
				if got = measureMessage(t, c.op, c.size, c.wire, c.want); got == c.want {
					return
				}
			}
			t.Errorf("got %+v, want %+v", got, c.want)
		})
	}
}

// messageCost holds the costs of a message.
type messageCost struct{ runs, reads, writes, packets int }

// measureMessage returns the costs of a message between two new devices: of the first of five messages with the wanted
// costs, or of the last.
func measureMessage(t *testing.T, op ib.WROpcode, size int, wire bool, want messageCost) (got messageCost) {
	b := newBench(t, setup{shortcut: !wire})
	b.connect(conn{mtu: ib.MTU4096})
	spaces := [2]countedSpace{{Local: umem.NewLocal()}, {Local: umem.NewLocal()}}
	var mrs [2]*ib.MR
	var addrs [2]uint64
	for i, n := range []*node{b.a, b.b} {
		var err error
		addrs[i], err = spaces[i].Add(make([]byte, 1<<20))
		check(t, err)
		mrs[i], err = n.pd.RegMR(ib.MRInit{Space: &spaces[i], Addr: addrs[i], Length: 1 << 20, Access: allAccess})
		check(t, err)
		n.mrs = append(n.mrs, mrs[i])
	}
	var passes passList
	for _, d := range []*Device{b.a.dev, b.b.dev} {
		d.passes.New = func() any { return passes.add(newPass(d)) }
	}
	forgetPools()
	sge := func(i int) []ib.SGE {
		return []ib.SGE{{Addr: addrs[i], Length: uint32(size), LKey: mrs[i].LKey()}}
	}
	exchange := func() {
		if op == ib.WRSend {
			_, err := b.b.qp.PostRecv(ib.RecvWR{ID: 1, SGList: sge(1)})
			check(t, err)
		}
		b.a.send(ib.SendWR{ID: 2, Opcode: op, Flags: ib.SendSignaled, SGList: sge(0), RemoteAddr: addrs[1],
			RKey: mrs[1].RKey()})
		b.a.poll(1)
		if op == ib.WRSend {
			b.b.poll(1)
		}
	}
	exchange()
	sent := func() int { return int(b.a.dev.Stats()["sent_pkts"] + b.b.dev.Stats()["sent_pkts"]) }
	for range 5 { // a timer, or a thread that the scheduler delays, changes the number of runs
		for i := range spaces {
			spaces[i].reads, spaces[i].writes = 0, 0
		}
		runs, before := passes.runs(), sent()
		exchange()
		got = messageCost{
			runs: passes.runs() - runs, reads: spaces[0].reads + spaces[1].reads,
			writes: spaces[0].writes + spaces[1].writes, packets: sent() - before,
		}
		if got == want {
			break
		}
	}
	return got
}
