package service

import (
	"net/netip"
	"slices"
	"time"

	"verbena/netdev"
)

// interfaceSource provides the host's network interfaces, which the devices follow.
type interfaceSource interface {
	// All returns the interfaces, ordered by index.
	All() ([]netdev.Interface, error)
	// Wait blocks until an interface may have changed since Wait last returned. Wait returns an error after Close.
	Wait() error
	// Close ends Wait.
	Close() error
}

// hostInterfaces provides the interfaces of this network namespace.
type hostInterfaces struct{ *netdev.Watcher }

func (hostInterfaces) All() ([]netdev.Interface, error) { return netdev.All() }

// followInterfaces updates the devices to the state of their interfaces until from is closed.
func (t *linkTable) followInterfaces(from interfaceSource) {
	for {
		t.updateDevices(from)
		if err := from.Wait(); err != nil {
			if t.ended.Err() == nil {
				t.log.Warn("devices no longer follow their interfaces", "err", err)
			}
			return
		}
	}
}

// updateDevices updates all devices to the state of their interfaces.
func (t *linkTable) updateDevices(from interfaceSource) {
	list, err := from.All()
	if err != nil {
		t.log.Warn("read the interfaces of the devices", "err", err)
		return
	}
	for _, l := range t.all() { // in order, so an address can move from one device to another
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.news.Store(&list)
			t.applyInterfaceChanges(l)
		}()
		timer := time.NewTimer(followTimeout)
		select {
		case <-done:
		case <-timer.C: // the receive path of the device is waiting for the memory of a program
			t.log.Warn("the update of a device to its interface is delayed", "dev", l.spec.Name)
		}
		timer.Stop()
	}
}

// followTimeout limits the time for which the update of one device delays the update of the next device.
const followTimeout = 2 * time.Second

// applyInterfaceChanges applies pending interface changes to a device. If another call is already applying the changes,
// applyInterfaceChanges leaves them to that call.
func (t *linkTable) applyInterfaceChanges(l *rdmaLink) {
	for l.news.Load() != nil && l.following.TryLock() {
		if news := l.news.Swap(nil); news != nil {
			t.setInterface(l, *news)
		}
		l.following.Unlock()
	}
}

// setInterface updates the device to the state of its interface. The caller holds l.following.
func (t *linkTable) setInterface(l *rdmaLink, list []netdev.Interface) {
	t.mu.Lock()
	host, addrs := l.currentInterface(list)
	dev := l.dev
	l.host = &host
	t.mu.Unlock()
	addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool {
		o := t.linkWithAddr(a)
		return o != nil && o != l
	})
	changed := dev.SetInterface(l.port.adjustedInterface(host), addrs)
	t.reportDevice(l)
	if changed {
		t.log.Info("the interface has changed", "dev", l.spec.Name, "netdev", host.Name,
			"up", host.Up && host.Running, "addrs", addrs)
		t.guests.Refresh()
	}
}

// currentInterface returns the link's interface and the addresses to use. A missing interface counts as down.
func (l *rdmaLink) currentInterface(list []netdev.Interface) (netdev.Interface, []netip.Addr) {
	i := slices.IndexFunc(list, func(i netdev.Interface) bool { return i.Index == l.host.Index })
	if i < 0 {
		i = slices.IndexFunc(list, func(i netdev.Interface) bool { return i.Name == l.host.Name })
	}
	if i < 0 {
		gone := *l.host
		gone.Up, gone.Running, gone.Addrs = false, false, nil
		return gone, nil
	}
	host := list[i]
	if l.addrs == nil {
		return host, slices.Clone(host.Addrs)
	}
	return host, slices.DeleteFunc(slices.Clone(l.addrs), func(a netip.Addr) bool { return !host.Has(a) })
}
