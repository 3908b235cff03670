package service

import (
	"net/netip"
	"slices"

	"verbena/driver/rxe/wire/netdev"
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

// follow has the devices follow the interfaces until that is closed.
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
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := from.All()
	if err != nil {
		s.log.Warn("devices are not brought up to their interfaces", "err", err)
		return
	}
	changed := false
	for _, l := range s.links {
		host, addrs := l.now(list)
		addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool {
			o := s.owner(a)
			return o != nil && o != l
		})
		if l.dev.SetInterface(host, addrs) {
			changed = true
			s.log.Info("the interface has changed", "dev", l.spec.Name, "netdev", host.Name, "up", host.Up && host.Running, "addrs", addrs)
		}
		l.host = &host
	}
	if changed {
		s.guests.Refresh()
	}
}

// now finds the link's interface and the addresses that it is to use. An interface that has gone is down.
func (l *link) now(list []netdev.Interface) (netdev.Interface, []netip.Addr) {
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

// owner is the link that uses an address, nil if none does.
func (s *Service) owner(a netip.Addr) *link {
	for _, l := range s.links {
		for _, e := range l.dev.Endpoints() {
			if e.Addr() == a {
				return l
			}
		}
	}
	return nil
}
