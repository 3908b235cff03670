package rblk_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"verbena/driver/rxe"
	"verbena/examples/rblk"
	"verbena/ib"
	"verbena/ib/slot"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/rdmacm"
)

// The example exports a disk in memory, and reads and writes it over RDMA, in one process and on one device.
func Example() {
	var core ib.Core
	addr := netip.MustParseAddr("10.0.0.1")
	device := slot.New(&core, "rxe0", rxe.NewHardware(rxe.Config{
		Name: "rxe0", Addrs: []netip.Addr{addr}, Network: simnet.New(simnet.Config{}), Fabric: &rxe.Fabric{},
		Netdev: netdev.Interface{Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true},
	}), nil)
	if err := device.Plug(); err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	manager, err := rdmacm.New(&core, rdmacm.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()
	target, err := rblk.NewTarget(&core,
		rblk.TargetConfig{Exports: map[string]rblk.Store{"disk": rblk.NewMemory(1 << 20)}})
	if err != nil {
		log.Fatal(err)
	}
	l, err := manager.Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), 0), 0)
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- target.Serve(l) }()

	disk, err := rblk.Open(context.Background(), &core, rblk.DiskConfig{
		Manager: manager, Target: netip.AddrPortFrom(addr, l.Addr().Port()), Export: "disk",
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := disk.WriteAt([]byte("by RDMA"), 4096); err != nil {
		log.Fatal(err)
	}
	got := make([]byte, 7)
	if _, err := disk.ReadAt(got, 4096); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s from %d bytes\n", got, disk.Size())
	fmt.Println(disk.Close(), target.Close(), <-served)
	// Output:
	// by RDMA from 1048576 bytes
	// <nil> <nil> <nil>
}
