package link

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/roce"
)

// tapNotes is a Tap that records packets.
type tapNotes struct {
	mu  sync.Mutex
	got []Tapped
}

func (n *tapNotes) Packet(p *Tapped) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := *p
	c.Data = slices.Clone(p.Data)
	n.got = append(n.got, c)
}

// icrcs checks the number of recorded packets of one direction, and the number of wrong ICRCs among them.
func (n *tapNotes) icrcs(t *testing.T, out bool, want, wantBad int) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	seen, bad := 0, 0
	for _, p := range n.got {
		if p.Out != out {
			continue
		}
		seen++
		if p.Time.IsZero() || p.TTL != 64 || p.Src.Port() != Port || p.Dst.Port() != Port || p.Unsealed || out && p.QP != 18 {
			t.Errorf("unexpected packet: %+v", p)
		}
		if roce.NewFlow(p.Src, p.Dst).ICRC(p.ID, p.Data) != binary.LittleEndian.Uint32(p.Data[len(p.Data)-ICRCLen:]) {
			bad++
		}
	}
	if seen != want || bad != wantBad {
		t.Errorf("out %v: %d packets seen, %d with wrong ICRC; want %d, %d", out, seen, bad, want, wantBad)
	}
}

// TestUDPTaps: taps get the packets as they are on the wire: segmented by the kernel or not, damaged or not.
func TestUDPTaps(t *testing.T) {
	families(t, func(t *testing.T, src, dst netip.Addr) {
		taps, notes := &Taps{}, &tapNotes{}
		c := newCollector()
		from, to := pair(t, UDP(UDPOptions{Taps: taps}), src, dst, c)
		send := func(tr *Train) {
			t.Helper()
			tr.QP = 18
			if err := from.Send(tr); err != nil {
				t.Fatal(err)
			}
		}
		send(makeTrain(to.Addr(), 3, 100, 60, 0)) // before the tap is added
		c.wait(3)
		taps.Add(notes)
		send(makeTrain(to.Addr(), 5, 100, 60, 3))
		send(makeTrain(to.Addr(), 1, 1040, 1040, 8))
		raw := makeTrain(to.Addr(), 4, 200, 200, 9)
		raw.QP = 18
		if err := from.(RawEndpoint).Seal(raw); err != nil {
			t.Fatal(err)
		}
		raw.Packet(1)[30] ^= 4
		if err := from.(RawEndpoint).SendRaw(raw); err != nil {
			t.Fatal(err)
		}
		c.wait(3 + 5 + 1 + 3)
		notes.icrcs(t, true, 10, 1)
		notes.icrcs(t, false, 10, 1)
		taps.Remove(notes)
		send(makeTrain(to.Addr(), 3, 100, 60, 20))
		c.wait(15)
		notes.icrcs(t, true, 10, 1)
		if taps.On() {
			t.Error("on without taps")
		}
	})
}

// TestUDPTapsUnsegmented tests taps if the kernel does not segment.
func TestUDPTapsUnsegmented(t *testing.T) {
	taps, notes := &Taps{}, &tapNotes{}
	c := newCollector()
	from, to := pair(t, UDP(UDPOptions{Taps: taps}), loopback(), loopback(), c)
	// The kernel refuses segmentation on a socket that sends no checksums.
	if err := unix.SetsockoptInt(from.(*UDPEndpoint).fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1); err != nil {
		t.Fatal(err)
	}
	taps.Add(notes)
	tr := makeTrain(to.Addr(), 5, 100, 60, 0)
	tr.QP = 18
	if err := from.Send(tr); err != nil {
		t.Fatal(err)
	}
	c.wait(5)
	if stats(t, from).SentSingly != 1 {
		t.Error("the kernel segmented")
	}
	notes.icrcs(t, true, 5, 0)
	notes.icrcs(t, false, 5, 0)
}

func TestTapsNone(t *testing.T) {
	var none *Taps
	if none.On() {
		t.Error("a nil Taps is on")
	}
	none.Packet(&Tapped{})
	var taps Taps
	a, b := &tapNotes{}, &tapNotes{}
	taps.Add(a)
	taps.Add(b)
	taps.Packet(&Tapped{})
	taps.Remove(a)
	taps.Remove(a)
	taps.Packet(&Tapped{})
	taps.Remove(b)
	taps.Packet(&Tapped{})
	if len(a.got) != 1 || len(b.got) != 2 {
		t.Errorf("the taps saw %d and %d packets", len(a.got), len(b.got))
	}
}
