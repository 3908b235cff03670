package engine

import (
	"slices"
	"sync"
	"testing"

	"verbena/ib"
	"verbena/link"
	"verbena/roce"
	"verbena/uapi"
)

type tapFunc func(p *link.Tapped)

func (f tapFunc) Packet(p *link.Tapped) { f(p) }

// TestTapShortcut tests that taps see a packet on the shortcut twice: at the sending and at the receiving device.
func TestTapShortcut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBenchIn(t, setup{shortcut: true})
		defer b.close()
		b.connect(conn{mtu: ib.MTU1024})
		var mu sync.Mutex
		seen := map[*node][]roce.Opcode{}
		for _, n := range []*node{b.a, b.b} {
			n.dev.taps = &link.Taps{}
			peer := b.a.qp.Num()
			src := addrB
			if n == b.a {
				peer, src = b.b.qp.Num(), addrA
			}
			n.dev.taps.Add(tapFunc(func(p *link.Tapped) {
				mu.Lock()
				defer mu.Unlock()
				h := roce.BTH(p.Data)
				if p.Time.IsZero() || !p.Unsealed || p.TTL != 64 || p.Out != (p.Src.Addr() == src) ||
					p.Out && (p.QP != n.qp.Num() || h.DestQPN() != peer) || !p.Out && (p.QP != peer || h.DestQPN() != n.qp.Num()) {
					t.Errorf("%s: a tapped packet: got %+v", n.dev.name, p)
				}
				seen[n] = append(seen[n], h.Opcode())
			}))
		}
		transfer(b, ib.WRSend, 2500, 1)
		want := []roce.Opcode{roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLast, roce.RCAcknowledge}
		for n, got := range seen {
			if !slices.Equal(got, want) {
				t.Errorf("%s: seen %v, want %v", n.dev.name, got, want)
			}
		}
		if len(seen) != 2 {
			t.Errorf("%d devices saw packets", len(seen))
		}
	})
}

// TestMigReq tests that all packets of a queue pair have the MigReq bit of path migration state MIGRATED (IBA
// 17.2.8).
func TestMigReq(t *testing.T) {
	for _, typ := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD} {
		bubble(t, func(t *testing.T) {
			b := newBenchIn(t, setup{typ: typ, shortcut: true})
			defer b.close()
			b.connect(conn{mtu: ib.MTU1024})
			var mu sync.Mutex
			packets := 0
			b.a.dev.taps = &link.Taps{}
			b.a.dev.taps.Add(tapFunc(func(p *link.Tapped) {
				mu.Lock()
				defer mu.Unlock()
				packets++
				if h := roce.BTH(p.Data); !h.MigReq() {
					t.Errorf("%v: MigReq of %v is 0", typ, h.Opcode())
				}
			}))
			if typ == ib.QPTypeRC {
				transfer(b, ib.WRRDMARead, 2500, 1)
				transfer(b, ib.WRSend, 2500, 2)
			} else {
				wr := ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 100)}
				if typ == ib.QPTypeUD {
					wr.AH, wr.RemoteQPN, wr.RemoteQKey = newAH(b.a, b.b.dev, 1), b.b.qp.Num(), testQKey
					defer wr.AH.Destroy()
				}
				b.b.recv(1, 0, 1000)
				b.a.send(wr)
				b.a.expect(ib.WC{Opcode: ib.WCSend})
			}
			if a, _, err := b.a.qp.Query(ib.QPAttrPathMigState); err != nil || uapi.MigState(a.PathMigState) != uapi.MigMigrated {
				t.Errorf("%v: path migration state: got %v, %v, want MIGRATED", typ, a.PathMigState, err)
			}
			if packets == 0 {
				t.Errorf("%v: no packet was seen", typ)
			}
		})
	}
}
