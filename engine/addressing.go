package engine

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/link"
	"verbena/netdev"
)

// addressing is what a device has from its interface. It is replaced, not changed, so that the data path reads it without
// a lock.
type addressing struct {
	netdev    netdev.Interface
	gids      []ib.GIDEntry // of the table
	endpoints []*endpoint   // those bound, in the order of the interface's addresses
}

func (a *addressing) addrs() (list []netip.Addr) {
	for _, e := range a.endpoints {
		list = append(list, e.addr)
	}
	return list
}

// addressChanges is what a change of the addressing needs.
type addressChanges struct {
	sync.Mutex
	network link.Network
	closed  bool
	// ends are the endpoints of all addresses that the device has ever had: paths refer to them, and work again when
	// the address returns.
	ends   map[netip.Addr]*endpoint
	gone   link.Stats            // of endpoints that were closed
	warned map[netip.Addr]string // why an address is not used, as logged
}

// endpoint is one of the device's addresses. It is the Receiver of what arrives there.
type endpoint struct {
	dev  *Device
	addr netip.Addr
	wire atomic.Pointer[boundEndpoint] // nil while the address is not the device's
}

type boundEndpoint struct {
	link.Endpoint
	taker link.Taker       // the same; nil where it is none
	batch link.BatchSender // the same; nil where it is none
}

// SetInterface tells the device what its interface is like now, and which of its addresses the device is to use; an
// interface that has gone is one that is down and has no address. The GID table follows (ib.GIDTable.Update). Queue pairs
// and address handles keep the addresses that they were given: while one is
// not there, or the port is down, what they send is lost. Consumers hear EventPortErr and EventPortActive of the port,
// EventDeviceSpeedChange of the device, and EventGIDChange of each entry that changed.
//
// An address that cannot be bound is left out, until the next call; Config.Logf tells why. SetInterface reports whether
// anything changed. It may sleep, and must not be called from a callback.
func (d *Device) SetInterface(ifi netdev.Interface, addrs []netip.Addr) (changed bool) {
	c := &d.changes
	c.Lock()
	defer c.Unlock()
	d.hw.follow(ifi, addrs) // also of a device that has gone: the next one begins with it
	if c.closed {
		return false
	}
	old := d.at.Load()
	now := &addressing{netdev: ifi}
	for _, e := range old.endpoints {
		if !slices.Contains(addrs, e.addr) {
			d.unbind(e)
		}
	}
	for _, a := range addrs {
		e, err := d.bind(a)
		if err != nil {
			// An IPv6 address is not available while the kernel verifies that it is the only one. When it is, that is
			// another change.
			if why := err.Error(); c.warned[a] != why && !errors.Is(err, syscall.EADDRNOTAVAIL) {
				c.warned[a] = why
				d.logf("address not used: %v", err)
			}
			continue
		}
		delete(c.warned, a)
		if !slices.Contains(now.endpoints, e) {
			now.endpoints = append(now.endpoints, e)
		}
	}
	entries := d.gids.Update(ifi, now.addrs())
	now.gids = d.gids.Entries()
	d.at.Store(now)
	d.fabric.update(d)
	rejoinGroups(d)
	if now.netdev.MTU != old.netdev.MTU {
		setDatagramMTU(d)
	}
	switch {
	case old.up() && !now.up():
		d.counters.add(cntLinkDowned, 1)
		d.obj.DispatchEvent(ib.EventPortErr, 1)
	case !old.up() && now.up():
		d.obj.DispatchEvent(ib.EventPortActive, 1)
	}
	if now.netdev.Speed != old.netdev.Speed {
		d.obj.DispatchEvent(ib.EventDeviceSpeedChange, 0) // an event of the device, without a port
	}
	for range entries {
		d.obj.DispatchEvent(ib.EventGIDChange, 1)
	}
	was, is := old.netdev, now.netdev
	return entries > 0 || was.Speed != is.Speed ||
		was.Up != is.Up || was.Running != is.Running || was.MTU != is.MTU || was.Name != is.Name
}

// bind claims an address.
//
//verbena:held changes.Mutex
func (d *Device) bind(a netip.Addr) (*endpoint, error) {
	e := d.changes.ends[a]
	if e == nil {
		e = &endpoint{dev: d, addr: a}
	}
	if e.wire.Load() != nil {
		return e, nil
	}
	w, err := d.changes.network.Listen(a, e)
	if err != nil {
		return nil, err
	}
	taker, _ := w.(link.Taker)
	batch, _ := w.(link.BatchSender)
	e.wire.Store(&boundEndpoint{w, taker, batch})
	d.changes.ends[a] = e
	return e, nil
}

// unbind gives an address up.
//
//verbena:held changes.Mutex
func (d *Device) unbind(e *endpoint) error {
	w := e.wire.Swap(nil)
	if w == nil {
		return nil
	}
	err := w.Close()
	d.changes.gone.Add(statsOf(w.Endpoint))
	return err
}

// setDatagramMTU gives datagram queue pairs the port's MTU.
func setDatagramMTU(d *Device) {
	mtu := d.activeMTU()
	p := d.begin(false)
	defer p.endElsewhere()
	for qp := range d.qps.all() {
		if !qp.datagram {
			continue
		}
		p.post(qp, func(*pass) {
			qp.pathMTU, qp.mtu = mtu, mtu.Bytes()
			qp.attr.PathMTU = mtu
		})
	}
}
