package main

import (
	"net/netip"
	"testing"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/verbs/embed"
)

func TestCount(t *testing.T) {
	soft, err := rxe.New(rxe.Config{
		Name: "rxe0", Netdev: netdev.Interface{Name: "lo", Index: 1, MTU: 65536, Up: true, Running: true},
		Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Network: simnet.New(simnet.Config{}), Fabric: &rxe.Fabric{},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer soft.Close()
	var core ib.Core
	if err := core.Register(soft.Handle()); err != nil {
		t.Fatal(err)
	}
	defer core.Unregister(soft.Handle())
	stack, err := embed.New(&core)
	if err != nil {
		t.Fatal(err)
	}
	defer stack.Close()
	dev, err := stack.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if n, err := count(dev, 4, 200); err != nil || n != 800 {
		t.Errorf("count: got %d, %v, want 800", n, err)
	}
}
