package rblk_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ulp/rblk"
)

// A disk in memory is exported, and read and written through RDMA, all in one process and on one device.
func Example() {
	var core ib.Core
	drv := loopback.New("loop0", nil)
	if err := core.Register(drv.Handle()); err != nil {
		log.Fatal(err)
	}
	defer core.Unregister(drv.Handle())
	target, err := rblk.NewTarget(&core, rblk.TargetConfig{Exports: map[string]rblk.Store{"disk": rblk.NewMemory(1 << 20)}})
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- target.Serve(l) }()

	disk, err := rblk.Open(context.Background(), &core, rblk.DiskConfig{
		Export: "disk",
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		},
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
