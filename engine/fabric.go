package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/link"
)

// Fabric is a set of devices in one process that reach each other without the network. The thread that builds a
// packet hands it to the other device in memory. The bytes and their processing are the same as on the wire, except
// for the ICRC. The zero Fabric is ready for use and safe for concurrent use.
type Fabric struct {
	mu   sync.Mutex                 // serialises changes
	view atomic.Pointer[fabricView] // replaced, not changed
}

type fabricView struct {
	byAddr map[netip.Addr]*Device
	byGID  map[ib.GID]*Device // default GIDs
}

func (f *Fabric) load() *fabricView {
	if f == nil {
		return &noFabric
	}
	if v := f.view.Load(); v != nil {
		return v
	}
	return &noFabric
}

var noFabric fabricView

// join enters the device under its addresses and its default GID.
func (f *Fabric) join(d *Device) error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.copyView(nil)
	for _, e := range d.at.Load().endpoints {
		if o := v.byAddr[e.addr]; o != nil {
			return fmt.Errorf("address %v belongs to device %s: %w", e.addr, o.name, syscall.EADDRINUSE)
		}
	}
	v.add(d)
	f.view.Store(v)
	return nil
}

// add enters a device under its addresses and its default GID. It skips keys that another device has.
func (v *fabricView) add(d *Device) {
	at := d.at.Load()
	for _, e := range at.endpoints {
		if _, taken := v.byAddr[e.addr]; !taken {
			v.byAddr[e.addr] = d
		}
	}
	if _, taken := v.byGID[at.gids[0].GID]; !taken {
		v.byGID[at.gids[0].GID] = d
	}
}

// update replaces the addresses of a device by its present ones.
func (f *Fabric) update(d *Device) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.copyView(d)
	v.add(d)
	f.view.Store(v)
}

// leave removes the device.
func (f *Fabric) leave(d *Device) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.view.Store(f.copyView(d))
}

func (f *Fabric) copyView(without *Device) *fabricView {
	v := &fabricView{byAddr: map[netip.Addr]*Device{}, byGID: map[ib.GID]*Device{}}
	old := f.load()
	for a, d := range old.byAddr {
		if d != without {
			v.byAddr[a] = d
		}
	}
	for g, d := range old.byGID {
		if d != without {
			v.byGID[g] = d
		}
	}
	return v
}

// peer returns the device of the Fabric at the end of the path, or nil.
func (p *path) peer() *Device { return p.lookUp().peer }

func (p *path) lookUp() *resolved {
	v := p.from.dev.fabric.load()
	r := p.resolved.Load()
	if r == nil || r.in != v {
		r = &resolved{in: v, peer: v.byAddr[p.dst]}
		if r.peer != nil {
			for _, e := range r.peer.at.Load().endpoints {
				if e.addr == p.dst {
					r.to = e
				}
			}
		}
		p.resolved.Store(r)
	}
	return r
}

// direct reports whether a train that is built now will probably be handed to a device of the Fabric.
func (p *path) direct() bool {
	d, peer := p.from.dev, p.peer()
	return peer != nil && d.allowsShortcut() && peer.allowsShortcut() && !d.taps.On() && !peer.taps.On()
}

// resolved is the cached destination of a path. It is valid until the Fabric changes.
type resolved struct {
	in   *fabricView
	peer *Device   // nil: the path leads to the network
	to   *endpoint // endpoint of peer; nil if peer no longer has the address
}

// allowsShortcut reports whether packets may skip the network. Fault rules apply only to packets on the wire.
func (d *Device) allowsShortcut() bool { return d.direct.Load() && !d.faults.Active() }

// SetShortcut sets whether packets to and from other devices of the Fabric may skip the network. Packets skip the
// network if both devices allow it and neither has fault rules. A new device allows the shortcut. The setting also
// applies to all later devices of the same hardware.
func (d *Device) SetShortcut(on bool) {
	d.hw.travels.Store(!on)
	d.direct.Store(on)
}

// intrudes reports whether a train of a queue pair would reach a connection with another peer. A packet does not
// identify its sender; without this check any program could inject into another's connection. The Q_Key guards
// datagrams. to may be nil.
func intrudes(qp, to *QP) bool {
	return to != nil && !qp.datagram && !to.datagram && to.peer.Load() != qp.num
}

// ready reports whether packets can leave: the address is bound, and the port is active.
func (e *endpoint) ready() bool { return e.wire.Load() != nil && e.dev.at.Load().up() }

// up reports whether the port is active: the interface is up, and has a carrier.
func (a *addressing) up() bool { return a.netdev.Up && a.netdev.Running }

// send sends a train through the bound endpoint. The error is link.ErrNoRoute if the address is not bound.
func (e *endpoint) send(t *link.Train) error {
	if w := e.wire.Load(); w != nil {
		return w.Send(t)
	}
	return link.ErrNoRoute
}

// transmitAll sends trains to one queue pair, at most len(p.batch). It returns the number of trains that are sent or
// lost, and false if the socket is full.
func (e *endpoint) transmitAll(p *pass, qp *QP, list []*train) (n int, ok bool) {
	for n < len(list) {
		if w := e.wire.Load(); w != nil && w.batch != nil && len(list)-n > 1 {
			batch := p.batch[:0]
			for _, t := range list[n:] {
				batch = append(batch, &t.Train)
			}
			if sent := w.batch.SendSome(batch); sent > 0 {
				for _, t := range list[n : n+sent] {
					e.dev.countSent(&t.Train, t.packets)
				}
				n += sent
				continue
			}
		}
		if !e.transmit(qp, &list[n].Train, list[n].packets) {
			return n, false
		}
		n++
	}
	return n, true
}

// transmit sends packets to the network, and counts them. It reports false if the socket is full.
func (e *endpoint) transmit(qp *QP, t *link.Train, packets int) bool {
	switch err := e.send(t); {
	case err == nil:
		e.dev.countSent(t, packets)
	case errors.Is(err, link.ErrAgain):
		return false
	default:
		e.dev.counters.add(cntSendErr, packets)
		qp.report().sendError(t, packets, err)
	}
	return true
}
