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

// addressing is the state that a device takes from its interface. A change replaces the whole value, so the data path
// reads the value without a lock.
type addressing struct {
	netdev    netdev.Interface
	gids      []ib.GIDEntry // the entries of the GID table
	endpoints []*endpoint   // the bound endpoints, in the order of the interface's addresses
}

func (a *addressing) addrs() (list []netip.Addr) {
	for _, e := range a.endpoints {
		list = append(list, e.addr)
	}
	return list
}

// addressChanges is the state for changes of the addressing. Its lock serialises the changes.
type addressChanges struct {
	sync.Mutex
	network link.Network
	closed  bool
	// ends holds the endpoints of all addresses that the device has ever had. Paths refer to the endpoints, and work
	// again when an address returns.
	ends   map[netip.Addr]*endpoint
	gone   link.Stats            // sums of all closed endpoints
	warned map[netip.Addr]string // the logged error of each unused address
}

// endpoint represents one address of the device. It is the link.Receiver of the packets that arrive at the address.
type endpoint struct {
	dev  *Device
	addr netip.Addr
	wire atomic.Pointer[boundEndpoint] // nil while the device does not have the address
}

type boundEndpoint struct {
	link.Endpoint
	taker link.Taker       // the Endpoint as a Taker; nil if it is none
	batch link.BatchSender // the Endpoint as a BatchSender; nil if it is none
}

// SetInterface sets the state of the device's interface, and the addresses to use. For an interface that has been
// removed, the caller passes an interface that is down, and no address. The GID table follows (ib.GIDTable.Update).
// Queue pairs and address handles keep their addresses: while the address is missing, or the port is down, their
// packets are lost. Consumers receive EventPortErr and EventPortActive of the port, EventDeviceSpeedChange of the
// device, and EventGIDChange for each changed entry.
//
// SetInterface omits an address that cannot be bound, until the next call, and logs the error with Config.Logf. It
// reports whether any state changed. It may sleep, and must not be called from a callback.
func (d *Device) SetInterface(ifi netdev.Interface, addrs []netip.Addr) (changed bool) {
	c := &d.changes
	c.Lock()
	defer c.Unlock()
	d.hw.follow(ifi, addrs) // also after Close: the next device begins with this state
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
			// An IPv6 address is not available during duplicate address detection. The end of the detection is
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

// bind binds an address and returns its endpoint.
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

// unbind releases the address of an endpoint.
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

// setDatagramMTU sets the path MTU of all datagram queue pairs to the MTU of the port.
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
