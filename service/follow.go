package service

import (
	"net/netip"
	"slices"
	"time"

	"verbena/netdev"
)

// Interfaces are the host's network interfaces, which devices follow.
type Interfaces interface {
	// All lists them, by index.
	All() ([]netdev.Interface, error)
	// Wait sleeps until something may have changed since it returned last, and fails when it is over.
	Wait() error
	// Close ends Wait.
	Close() error
}

// hostInterfaces are those of this network namespace.
type hostInterfaces struct{ *netdev.Watcher }

func (hostInterfaces) All() ([]netdev.Interface, error) { return netdev.All() }

// follow updates the devices to the interfaces until from is closed.
func (s *Service) follow(from Interfaces) {
	for {
		s.refresh(from)
		if err := from.Wait(); err != nil {
			if s.ended.Err() == nil {
				s.log.Warn("devices do not follow their interfaces any more", "err", err)
			}
			return
		}
	}
}

// refresh brings the devices up to the interfaces.
func (s *Service) refresh(from Interfaces) {
	list, err := from.All()
	if err != nil {
		s.log.Warn("devices are not brought up to their interfaces", "err", err)
		return
	}
	for _, l := range s.all() { // in order, so that an address may go from one to another
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.news.Store(&list)
			s.bringUp(l)
		}()
		timer := time.NewTimer(followTimeout)
		select {
		case <-done:
		case <-timer.C: // what it receives is for a program whose memory does not answer
			s.log.Warn("a device is not brought up to its interface yet", "dev", l.spec.Name)
		}
		timer.Stop()
	}
}

// followTimeout bounds the time for which one device keeps the next from following its interface.
const followTimeout = 2 * time.Second

// bringUp brings a device up to its news, or leaves it to the call that is at it.
func (s *Service) bringUp(l *rdmaLink) {
	for l.news.Load() != nil && l.following.TryLock() {
		if news := l.news.Swap(nil); news != nil {
			s.setInterface(l, *news)
		}
		l.following.Unlock()
	}
}

// setInterface updates the device to its interface; l.following is held.
func (s *Service) setInterface(l *rdmaLink, list []netdev.Interface) {
	s.mu.Lock()
	host, addrs := l.now(list)
	dev := l.dev
	l.host = &host
	s.mu.Unlock()
	addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool {
		o := s.owner(a)
		return o != nil && o != l
	})
	if dev.SetInterface(l.port.shown(host), addrs) {
		s.log.Info("the interface has changed", "dev", l.spec.Name, "netdev", host.Name,
			"up", host.Up && host.Running, "addrs", addrs)
		s.guests.Refresh()
	}
}

// now finds the link's interface and the addresses that it is to use. An interface that has gone is down.
func (l *rdmaLink) now(list []netdev.Interface) (netdev.Interface, []netip.Addr) {
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

// owner returns the link that uses an address, nil if none does.
func (s *Service) owner(a netip.Addr) *rdmaLink {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.links {
		for _, e := range l.dev.Endpoints() {
			if e.Addr() == a {
				return l
			}
		}
	}
	return nil
}
