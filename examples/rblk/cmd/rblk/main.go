// Command rblk is a disk over RDMA, in user space on both sides. A target exports files, and a disk presents one of
// them to local programs by the network block device protocol. Each side embeds its own software RDMA device. See
// package verbena/examples/rblk.
//
//	rblk target --addr 127.0.0.2 data=/tmp/disk.img
//	rblk disk   --addr 127.0.0.3 --target 127.0.0.2:10810 --export data --nbd /tmp/disk.sock
//	nbdinfo nbd+unix:///?socket=/tmp/disk.sock
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"verbena/examples/rblk"
	"verbena/examples/rblk/nbd"
)

type cli struct {
	Target targetCmd `cmd:"" help:"Export files."`
	Disk   diskCmd   `cmd:"" help:"Present a target's export on a socket, by the network block device protocol (NBD)."`
}

// deviceFlags holds the flags of the software RDMA device.
type deviceFlags struct {
	Addr       netip.Addr    `required:"" placeholder:"IP" help:"Address of the RDMA device on this host; UDP port 4791 must be free. The other end must use another address."`
	ResetEvery time.Duration `placeholder:"TIME" help:"Reset the device repeatedly, after random times up to twice this time, to show that no data is lost."`
	Quiet      bool          `short:"q" help:"Do not log sessions."`
}

func (d *deviceFlags) logFunc() func(string, ...any) {
	if d.Quiet {
		return nil
	}
	return log.Printf
}

type targetCmd struct {
	deviceFlags
	Port    uint16            `default:"10810" help:"Port of the connection manager at which disks log in; 0: any free port. Any client that reaches the device may read and write: use an address in a trusted network."`
	Exports map[string]string `arg:"" name:"name=file" help:"Existing files or block devices to export."`
}

func (c *targetCmd) Run(ctx context.Context) error {
	exports := map[string]rblk.Store{}
	for name, path := range c.Exports {
		f, err := rblk.OpenFile(path)
		if err != nil {
			return err
		}
		defer f.Close()
		exports[name] = f
	}
	host, err := newHost(c.Addr)
	if err != nil {
		return err
	}
	defer host.close()
	t, err := rblk.NewTarget(&host.core, rblk.TargetConfig{Exports: exports, Logf: c.logFunc()})
	if err != nil {
		return err
	}
	defer t.Close()
	l, err := host.manager.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), c.Port), 0)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	stop := host.startResets(c.ResetEvery)
	defer stop()
	fmt.Printf("exporting %d disks, log in at %v\n", len(exports), netip.AddrPortFrom(c.Addr, l.Addr().Port()))
	return t.Serve(l)
}

type diskCmd struct {
	deviceFlags
	Target   netip.AddrPort `required:"" placeholder:"IP:PORT" help:"Address of the target's RDMA device, and its port."`
	Export   string         `required:"" placeholder:"NAME" help:"Name of the export."`
	NBD      string         `required:"" name:"nbd" placeholder:"PATH" help:"Unix socket to create. The permissions of its directory control access to the disk."`
	Patience time.Duration  `default:"60s" help:"Time for which reads and writes wait for a lost target or device before they fail; negative: no limit."`
	Wait     time.Duration  `default:"10s" help:"Time to wait for the target at the start."`
}

func (c *diskCmd) Run(ctx context.Context) error {
	host, err := newHost(c.Addr)
	if err != nil {
		return err
	}
	defer host.close()
	opening, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	d, err := rblk.Open(opening, &host.core, rblk.DiskConfig{
		Manager: host.manager, Target: c.Target, Export: c.Export, Patience: c.Patience, Logf: c.logFunc(),
	})
	if err != nil {
		return err
	}
	defer d.Close()
	// At the end the command does not wait for requests without a response.
	defer context.AfterFunc(ctx, func() { d.Close() })()
	l, err := net.Listen("unix", c.NBD)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: another disk uses this socket, or a killed disk has left it behind: then remove it", err)
	}
	if err != nil {
		return err
	}
	stop := host.startResets(c.ResetEvery)
	defer func() {
		resets := stop()
		s := d.Stats()
		fmt.Printf("%d resets, %d sessions, %d requests posted again, %d failed, %v without a session\n",
			resets, s.Sessions, s.Replayed, s.Failed, s.Held.Round(time.Millisecond))
	}()
	fmt.Printf("%s: %d bytes, at nbd+unix:///?socket=%s\n", c.Export, d.Size(), c.NBD)
	s := nbd.Server{Exports: map[string]nbd.Disk{c.Export: d}, Logf: c.logFunc()}
	return s.Serve(ctx, l)
}

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	k := kong.Parse(&cli{}, kong.Name("rblk"), kong.Description("A disk over RDMA, in user space at both ends."),
		kong.UsageOnError(), kong.BindTo(ctx, (*context.Context)(nil)))
	k.FatalIfErrorf(k.Run())
}
