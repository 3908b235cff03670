package stepnet_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"verbena/internal/clock"
	"verbena/link"
	"verbena/link/stepnet"
	"verbena/roce"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
)

// log records the PSNs of the received packets, with a slice for each batch.
type log struct{ batches [][]roce.PSN }

func (l *log) Receive(a *link.Arrival) {
	var psns []roce.PSN
	for _, p := range a.Packets {
		psns = append(psns, roce.BTH(p).PSN())
	}
	l.batches = append(l.batches, psns)
}

func TestNet(t *testing.T) {
	for _, c := range []struct {
		name  string
		route func(p *stepnet.Packet)
		want  [][]roce.PSN
		icrc  int
	}{
		{"nothing happens", nil, [][]roce.PSN{{0, 1, 2}}, 0},
		{"delayed", func(p *stepnet.Packet) { p.Arrive(time.Second) }, [][]roce.PSN{{0, 1, 2}}, 0},
		{"lost", func(p *stepnet.Packet) {
			if roce.BTH(p.Data).PSN() != 1 {
				p.Arrive(0)
			}
		}, [][]roce.PSN{{0, 2}}, 0},
		{"duplicated", func(p *stepnet.Packet) { p.Arrive(0); p.Arrive(time.Second) }, [][]roce.PSN{{0, 1, 2}, {0, 1, 2}}, 0},
		{"reversed", func(p *stepnet.Packet) { p.Arrive(time.Second - time.Duration(roce.BTH(p.Data).PSN())) }, [][]roce.PSN{{2}, {1}, {0}}, 0},
		{"damaged", func(p *stepnet.Packet) {
			if roce.BTH(p.Data).PSN() == 2 {
				p.Data[9] ^= 4
			}
			p.Arrive(0)
		}, [][]roce.PSN{{0, 1}}, 1},
	} {
		v := clock.NewVirtual(time.Unix(0, 0))
		n := stepnet.New(v)
		n.Route = c.route
		var got log
		a, err := n.Listen(addrA, &log{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := n.Listen(addrB, &got)
		if err != nil {
			t.Fatal(err)
		}
		const size = roce.BTHLen + link.ICRCLen
		train := link.Train{Dst: addrB, Buf: make([]byte, 3*size), Size: size}
		for i := range 3 {
			roce.BTH(train.Packet(i)).Encode(&roce.BTHFields{PSN: roce.PSN(i)})
		}
		if err := a.Send(&train); err != nil {
			t.Fatal(err)
		}
		for v.Step() {
		}
		if !slices.EqualFunc(got.batches, c.want, slices.Equal) || n.LostICRC != c.icrc || n.Sent != 3 {
			t.Errorf("%s: %v, want %v; %d with a wrong ICRC", c.name, got.batches, c.want, n.LostICRC)
		}
		n.Full = func(netip.Addr) bool { return true }
		if err := a.Send(&train); !errors.Is(err, link.ErrAgain) {
			t.Errorf("a full socket: %v", err)
		}
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Fatal(err)
		}
		if err := a.Send(&train); !errors.Is(err, link.ErrClosed) {
			t.Errorf("a closed socket: %v", err)
		}
	}
}

func TestInject(t *testing.T) {
	v := clock.NewVirtual(time.Unix(0, 0))
	n := stepnet.New(v)
	var got log
	if _, err := n.Listen(addrB, &got); err != nil {
		t.Fatal(err)
	}
	pkt := make([]byte, roce.BTHLen+link.ICRCLen)
	n.Inject(addrA, addrB, pkt)
	stepnet.Seal(addrA, addrB, pkt)
	n.Inject(addrA, addrB, pkt)
	for v.Step() {
	}
	if len(got.batches) != 1 || len(got.batches[0]) != 1 || n.LostICRC != 1 {
		t.Errorf("%v, %d with a wrong ICRC", got.batches, n.LostICRC)
	}
}

// TestMulticast: a packet to a group arrives at the members, with the address of the group.
func TestMulticast(t *testing.T) {
	group := netip.MustParseAddr("239.1.2.3")
	v := clock.NewVirtual(time.Unix(0, 0))
	n := stepnet.New(v)
	var got []netip.Addr
	e, err := n.Listen(addrB, receiver(func(a *link.Arrival) { got = append(got, a.Dst) }))
	if err != nil {
		t.Fatal(err)
	}
	pkt := make([]byte, roce.BTHLen+link.ICRCLen)
	stepnet.Seal(addrA, group, pkt)
	inject := func() {
		n.Inject(addrA, group, pkt)
		for v.Step() {
		}
	}
	inject()
	if err := errors.Join(link.Join(e, group), link.Join(e, group)); err != nil {
		t.Fatal(err)
	}
	inject()
	if err := link.Leave(e, group); err != nil {
		t.Fatal(err)
	}
	inject()
	if !slices.Equal(got, []netip.Addr{group}) {
		t.Errorf("destinations: got %v, want the group", got)
	}
}

type receiver func(*link.Arrival)

func (f receiver) Receive(a *link.Arrival) { f(a) }
