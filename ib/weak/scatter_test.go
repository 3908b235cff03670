package weak_test

import (
	"testing"
	"testing/synctest"

	"verbena/ib"
	"verbena/ib/ibtest"
	"verbena/ib/weak"
)

// TestUnusedElements tests that a message checks only the bytes of a receive's scatter list that the message fills, on
// each driver. The kernel's rxe does the same (copy_data in rxe_mr.c).
func TestUnusedElements(t *testing.T) {
	const region = 64
	tests := []struct {
		name   string
		list   func(m *registeredBuffer) []ib.SGE
		length uint32
		want   ib.WCStatus
	}{
		{"element longer than its region", func(m *registeredBuffer) []ib.SGE { return elementBeyondRegion(m) }, region,
			ib.WCSuccess},
		{"message past the end of the region", func(m *registeredBuffer) []ib.SGE { return elementBeyondRegion(m) },
			region + 1, ib.WCLocProtErr},
		{"unused element with a wrong key", func(m *registeredBuffer) []ib.SGE { return elementsWithWrongKey(m) }, region,
			ib.WCSuccess},
		{"used element with a wrong key", func(m *registeredBuffer) []ib.SGE { return elementsWithWrongKey(m) }, region + 1,
			ib.WCLocProtErr},
		{"empty message", func(m *registeredBuffer) []ib.SGE { return elementsWithWrongKey(m)[1:] }, 0, ib.WCSuccess},
		{"message longer than the list", func(m *registeredBuffer) []ib.SGE { return m.fullSGL() }, region + 1,
			ib.WCLocLenErr},
	}
	on := weak.Config{Seed: 1}
	for name, d := range map[string]ibtest.NewDevice{"loopback": newLoopback, "rxe": newRXE,
		"weak loopback": newWeakFactory(newLoopback, on), "weak rxe": newWeakFactory(newRXE, on)} {
		for _, c := range tests {
			t.Run(name+"/"+c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newConnectedDevice(t, d)
					a, b := w.newPairWithSGEs(2)
					from, to := w.registerBuffer(make([]byte, 2*region), private), w.newBuffer(private)
					if _, err := b.qp.PostRecv(ib.RecvWR{SGList: c.list(to)}); err != nil {
						t.Fatal(err)
					}
					list := from.fullSGL()
					list[0].Length = c.length
					a.postSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: list})
					if wc := w.pollCompletions(b.recv, 1)[0]; wc.Status != c.want {
						t.Errorf("receive: got status %v, want %v", wc.Status, c.want)
					}
				})
			})
		}
	}
}

// elementBeyondRegion returns an element that is longer than its region.
func elementBeyondRegion(m *registeredBuffer) []ib.SGE {
	list := m.fullSGL()
	list[0].Length *= 2
	return list
}

// elementsWithWrongKey returns the memory and an element with a wrong key.
func elementsWithWrongKey(m *registeredBuffer) []ib.SGE {
	return append(m.fullSGL(), ib.SGE{Addr: m.mr.Addr(), Length: 64, LKey: 0xdeadbe00})
}
