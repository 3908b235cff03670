package engine

import (
	"net/netip"
	"testing"
	"time"

	"verbena/driver/rxe/layout"
	"verbena/ib"
	"verbena/ib/ibtest"
	"verbena/link/simnet"
	"verbena/netdev"
)

// concurrent are the groups of checks with several threads.
var concurrent = []string{"Reentrant", "Callback", "CQ", "SRQ", "HotPlug", "DeviceError", "Disassociate", "Load"}

// TestContract checks that the driver keeps the midlayer's contract, on both paths of packets. The checks with
// several threads also run while neighbours on the same network keep the engine busy. With the race detector, the
// suite runs on the shortcut, and the checks with several threads run on the wire, under load. With -short, the suite
// runs only on the shortcut; TestModel uses both paths.
func TestContract(t *testing.T) {
	for _, c := range []struct {
		name           string
		shortcut, load bool
	}{
		{"shortcut", true, false},
		{"wire", false, false},
		{"shortcut, under load", true, true},
		{"wire, under load", false, true},
	} {
		if raceEnabled && c.load == c.shortcut || testing.Short() && (c.load || !c.shortcut) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			options := []ibtest.Option{ibtest.Bubble(), ibtest.Seeds(seedsOfContract()), ibtest.Load(1)}
			if c.load { // a bubble would wait until the neighbours block
				options = []ibtest.Option{ibtest.Seeds(-1), ibtest.Load(1), ibtest.Groups(concurrent...)}
			}
			ibtest.Run(t, func(t testing.TB) *ib.DeviceHandle {
				network, fabric := simnet.New(simnet.Config{}), &Fabric{}
				d, err := New(Config{
					Layout:  layout.Layout{},
					Name:    "rxe0",
					Netdev:  netdev.Interface{Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true},
					Addrs:   []netip.Addr{netip.MustParseAddr("10.1.0.1")},
					Network: network,
					Fabric:  fabric,
					Logf:    t.Logf,
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { d.Close() })
				d.SetShortcut(c.shortcut)
				if c.load {
					keepBusy(t, setup{shortcut: c.shortcut, network: network, addrs: [2]netip.Addr{addrA, addrB}, fabric: fabric})
				}
				return d.Handle()
			}, options...)
		})
	}
}

// seedsOfContract returns the number of seeds of the checks Model, which take a few seconds.
func seedsOfContract() int {
	if raceEnabled {
		return 25
	}
	return 100
}

// keepBusy starts two more devices, which write to each other in both directions until the test ends.
func keepBusy(t testing.TB, s setup) {
	b := newBench(t, s)
	b.connect(conn{timeout: 18, retry: 7}) // a peer on an overloaded machine is not lost
	stop, done := make(chan struct{}), make(chan struct{}, 2)
	for _, way := range []struct{ from, to *node }{{b.a, b.b}, {b.b, b.a}} {
		go func() {
			defer func() { done <- struct{}{} }()
			const depth, pause = 4, 50 * time.Microsecond
			wr := ib.SendWR{
				Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, RemoteAddr: way.to.addr, RKey: way.to.mr.RKey(),
				SGList: []ib.SGE{{Addr: way.from.addr, Length: 8192, LKey: way.from.mr.LKey()}},
			}
			wc := make([]ib.WC, depth)
			for outstanding, ending := 0, false; !ending || outstanding > 0; time.Sleep(pause) {
				select {
				case <-stop:
					ending = true
				default:
				}
				for ; !ending && outstanding < depth; outstanding++ {
					if _, err := way.from.qp.PostSend(wr); err != nil {
						t.Error("neighbour: ", err)
						return
					}
				}
				n, _ := way.from.cq.Poll(wc)
				for _, c := range wc[:n] {
					if c.Status != ib.WCSuccess {
						t.Error("neighbour: ", c.Status)
						return
					}
				}
				outstanding -= n
			}
		}()
	}
	t.Cleanup(func() {
		close(stop)
		<-done
		<-done
	})
}
