package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/driver"
	"verbena/ib/slot"
	"verbena/internal/ctl"
	"verbena/internal/quota"
	"verbena/link"
	"verbena/netdev"
)

// ParseLinkSpec reads NAME=ADDR[,ADDR...] or NAME=NETDEV, or NAME alone. NAME must be for a device of one of the
// drivers; there is at least one.
func ParseLinkSpec(s string, drivers []driver.Driver) (ctl.LinkSpec, error) {
	name, rest, _ := strings.Cut(s, "=")
	l := ctl.LinkSpec{Name: name}
	if _, err := netip.ParseAddr(strings.Split(rest, ",")[0]); err == nil {
		l.Addrs = strings.Split(rest, ",")
	} else {
		l.Netdev = rest
	}
	_, err := driverOf(l.Name, drivers)
	return l, err
}

// driverOf returns the driver of a device's name. It returns EINVAL for a name that no device can have.
func driverOf(name string, drivers []driver.Driver) (driver.Driver, error) {
	odd := func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune("._-", r)
	}
	i := slices.IndexFunc(drivers, func(d driver.Driver) bool { return strings.HasPrefix(name, d.Type()) })
	if i >= 0 && len(name) <= maxName && !strings.ContainsFunc(name, odd) {
		return drivers[i], nil
	}
	like := drivers[max(i, 0)].Type()
	return nil, fmt.Errorf("device name %q: must be %s followed by up to %d letters, digits or any of \"._-\", such as %s1: libibverbs finds the driver by that name: %w",
		ctl.Clip(name), types(drivers, " or "), maxName-len(like), like, syscall.EINVAL)
}

// maxName is the longest name of a device: IBV_SYSFS_NAME_MAX without its zero byte.
const maxName = 63

// types returns the link types of drivers.
func types(drivers []driver.Driver, separator string) string {
	var list []string
	for _, d := range drivers {
		list = append(list, d.Type())
	}
	return strings.Join(list, separator)
}

// rdmaLink is a device with what belongs to it.
type rdmaLink struct {
	spec   ctl.LinkSpec
	hw     driver.Hardware
	slot   *slot.Slot
	outage outage
	faults *link.Faults
	port   port
	taps   *link.Taps
	addrs  []netip.Addr // of the device; nil: all that the interface has

	following sync.Mutex                         // one change of interface at a time
	news      atomic.Pointer[[]netdev.Interface] // that it has not been brought up to

	// Under Service.mu, once the link is known.
	dev  driver.Device     // the latest
	host *netdev.Interface // as last seen
}

// openLink makes a device and registers it.
func (s *Service) openLink(spec ctl.LinkSpec) (*rdmaLink, error) {
	d, err := driverOf(spec.Name, s.opts.Drivers)
	if err != nil {
		return nil, err
	}
	host, addrs, err := resolve(&spec)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", spec.Name, err)
	}
	return s.openLinkOn(d, spec, host, addrs, len(spec.Addrs) > 0)
}

// openLinkOn makes a device on addresses of an interface: on these alone if they are fixed, else they will be followed
// by whatever others the interface gets.
func (s *Service) openLinkOn(d driver.Driver, spec ctl.LinkSpec, host *netdev.Interface, addrs []netip.Addr,
	fixed bool) (*rdmaLink, error) {
	for _, a := range addrs {
		if o := s.owner(a); o != nil {
			return nil, fmt.Errorf("link %s: %v is an address of link %s: use another, or give %s less with --addr: %w",
				spec.Name, a, o.spec.Name, o.spec.Name, syscall.EADDRINUSE)
		}
	}
	n := s.made.Add(1)
	l := &rdmaLink{spec: spec, host: host, taps: &link.Taps{}}
	if fixed {
		l.addrs = addrs
	}
	l.faults = link.NewFaults(link.UDP(link.UDPOptions{Taps: l.taps}), rand.NewPCG(s.opts.Seed, 2*n))
	l.faults.NumberBy(&s.faultIDs)
	l.faults.Precise()
	cfg := driver.Config{
		Name:        spec.Name,
		Netdev:      *host,
		Addrs:       addrs,
		Network:     l.faults,
		Faults:      l.faults,
		Taps:        l.taps,
		Wire:        spec.Wire,
		NoProbe:     spec.NoProbe,
		QueueMemory: s.quota.Limits()[quota.RingBytes].Most(),
		Rand:        rand.New(rand.NewPCG(s.opts.Seed, 2*n+1)),
		Logf:        func(format string, args ...any) { s.log.Warn(fmt.Sprintf(format, args...), "dev", spec.Name) },
	}
	if s.log.Enabled(context.Background(), slog.LevelDebug) {
		// It is called with locks held; records at this level are written by a goroutine of their own.
		cfg.QPFailed = func(num uint32, why string) {
			//verbena:allow nosleep a goroutine of the log's writes what has this level
			s.log.Debug("queue pair enters ERR", "dev", spec.Name, "qp", num, "why", why)
		}
	}
	first := true // of the calls, which the slot serialises; nobody else has the link yet
	cfg.Probed = func(dev driver.Device) {
		if first {
			first, l.dev = false, dev
			return
		}
		go s.probed(l, dev)
	}
	l.hw = d.Open(cfg)
	l.slot = slot.New(s.core, spec.Name, l.hw, s.logf)
	if err := l.slot.Plug(); err != nil {
		if a := freeLoopback(); errors.Is(err, syscall.EADDRINUSE) && a.IsValid() {
			err = fmt.Errorf("%w; %v is free: --link %s=%[2]v, or link add %[3]s --addr %[2]v", err, a, spec.Name)
		}
		return nil, fmt.Errorf("link %s: %w", spec.Name, err)
	}
	return l, nil
}

// freeLoopback returns a loopback address on which no RDMA device listens, from 127.0.0.2 on; the zero Addr if there is
// none.
func freeLoopback() netip.Addr {
	for a := netip.AddrFrom4([4]byte{127, 0, 0, 2}); a.Less(netip.AddrFrom4([4]byte{127, 0, 0, 255})); a = a.Next() {
		c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, link.Port)))
		if err == nil {
			c.Close()
			return a
		}
	}
	return netip.Addr{}
}

// probed notes that a link has a new device, after a reset or a plug.
func (s *Service) probed(l *rdmaLink, d driver.Device) {
	s.mu.Lock()
	if now := l.hw.Device(); now != nil && now != d {
		s.mu.Unlock()
		return // there is a later one already
	}
	l.dev = d
	list := []netdev.Interface{*l.host}
	s.mu.Unlock()
	l.port.renewed()
	s.log.Debug("device made anew, by a reset or a plug", "dev", l.spec.Name)
	// The interface may have changed while there was no device.
	l.news.CompareAndSwap(nil, &list)
	s.bringUp(l)
}

// resolve finds the interface and the addresses of a device.
func resolve(l *ctl.LinkSpec) (host *netdev.Interface, addrs []netip.Addr, err error) {
	if len(l.Addrs) == 0 {
		if l.Netdev != "" {
			host, err = netdev.ByName(l.Netdev)
		} else {
			host, err = netdev.FirstUsable()
		}
		if err != nil {
			return host, nil, err
		}
		if len(host.Addrs) == 0 {
			return host, nil, fmt.Errorf("interface %s has no address: %w", host.Name, syscall.EADDRNOTAVAIL)
		}
		return host, host.Addrs, nil
	}
	for _, text := range l.Addrs {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return host, nil, fmt.Errorf("address %q: %w: %w", text, err, syscall.EINVAL)
		}
		h, err := netdev.ByAddr(a)
		if err != nil {
			return host, nil, err
		}
		if len(addrs) > 0 && h.Index != host.Index {
			return host, nil, fmt.Errorf("%s is an address of %s, %s of %s: a device has one interface: %w", l.Addrs[0],
				host.Name, text, h.Name, syscall.EINVAL)
		}
		host, addrs = h, append(addrs, a)
	}
	return host, addrs, nil
}

// openDefaultLink makes a device of the first driver, such as rxe0, on the host's first usable interface. Where another
// service, or the kernel's rdma_rxe, has port 4791 there, it takes the first loopback address on which the port is
// free, so that services of several users, and private ones, can live side by side and reach each other.
func (s *Service) openDefaultLink() (*rdmaLink, error) {
	d := s.opts.Drivers[0]
	spec := ctl.LinkSpec{Name: d.Type() + "0", Wire: s.opts.Wire, NoProbe: s.opts.NoProbe}
	host, addrs, err := resolve(&spec)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", spec.Name, err)
	}
	l, err := s.openLinkOn(d, spec, host, addrs, false)
	if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
		// A link-local address may be unusable for a moment, while the kernel verifies that it is the only one.
		s.log.Info("leaving out link-local addresses", "cause", err)
		global := slices.DeleteFunc(slices.Clone(addrs), netip.Addr.IsLinkLocalUnicast)
		if len(global) == 0 || len(global) == len(addrs) {
			return nil, err
		}
		l, err = s.openLinkOn(d, spec, host, global, false)
	}
	if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	s.log.Info("another RDMA service has the host's address; using a loopback address", "cause", err)
	for a := netip.AddrFrom4([4]byte{127, 0, 0, 1}); a != netip.AddrFrom4([4]byte{127, 0, 0, 255}); a = a.Next() {
		host, err = netdev.ByAddr(a)
		if err != nil {
			return nil, fmt.Errorf("link %s: %w", spec.Name, err)
		}
		if l, err = s.openLinkOn(d, spec, host, []netip.Addr{a}, true); !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return l, err
}

// LinkAdd makes a device and shows it to programs.
func (s *Service) LinkAdd(spec ctl.LinkSpec) error {
	if err := s.linkAdd(spec); err != nil {
		return err
	}
	if err := s.guests.Shown(); err != nil {
		_ = s.LinkDel(spec.Name)
		return fmt.Errorf("link %s: %w", spec.Name, err)
	}
	return nil
}

func (s *Service) linkAdd(spec ctl.LinkSpec) error {
	if err := s.reserve(spec.Name); err != nil {
		return err
	}
	defer s.release(spec.Name)
	spec.Wire = spec.Wire || s.opts.Wire
	spec.NoProbe = spec.NoProbe || s.opts.NoProbe
	l, err := s.openLink(spec)
	if err != nil {
		return err
	}
	s.addLink(l)
	return nil
}

// linksOf changes links for programs (supervisor.Links).
type linksOf struct{ s *Service }

func (l linksOf) AddLink(name, linkType, netdev string) error {
	drivers := l.s.opts.Drivers
	i := slices.IndexFunc(drivers, func(d driver.Driver) bool { return d.Type() == linkType })
	if i < 0 {
		return fmt.Errorf("link %s: type %q; there is %s: %w", ctl.Clip(name), ctl.Clip(linkType), types(drivers, ", "),
			syscall.EINVAL)
	}
	if _, err := driverOf(name, drivers[i:i+1]); err != nil {
		return err
	}
	return l.s.LinkAdd(ctl.LinkSpec{Name: name, Netdev: netdev})
}

func (l linksOf) DeleteLink(name string) error { return l.s.LinkDel(name) }

// reserve takes a name for a link that is going to be made, and release gives it back.
func (s *Service) reserve(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.find(name) != nil:
		return fmt.Errorf("link %s exists already: %w", name, syscall.EEXIST)
	case s.names[name]:
		return fmt.Errorf("link %s is being made already: %w", name, syscall.EEXIST)
	case s.ended.Err() != nil:
		return fmt.Errorf("link %s: the service ends: %w", ctl.Clip(name), syscall.ESHUTDOWN)
	}
	s.names[name] = true
	s.making.Add(1)
	return nil
}

func (s *Service) release(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, name)
	s.making.Done()
}

// addLink makes the link known.
func (s *Service) addLink(l *rdmaLink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.configured = true
	s.links = append(s.links, l)
	for r := range s.recordings {
		r.put(l)
	}
}

// LinkDel takes a device away. Programs that have it open find it gone: their contexts become zombies.
func (s *Service) LinkDel(name string) error {
	s.mu.Lock()
	l := s.find(name)
	if l == nil {
		defer s.mu.Unlock()
		return s.noLink(name)
	}
	s.configured = true
	s.forgetLink(l)
	s.mu.Unlock()
	return l.slot.Close()
}

// forgetLink makes the link unknown.
//
//verbena:held s.mu
func (s *Service) forgetLink(l *rdmaLink) {
	s.links = slices.DeleteFunc(slices.Clone(s.links), func(o *rdmaLink) bool { return o == l })
	for r := range s.recordings {
		r.remove(l)
	}
}

// all returns the present links.
func (s *Service) all() []*rdmaLink {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.links)
}

// find returns the link of a name, nil if there is none.
//
//verbena:held s.mu
func (s *Service) find(name string) *rdmaLink {
	for _, l := range s.links {
		if l.spec.Name == name {
			return l
		}
	}
	return nil
}

func (s *Service) noLink(name string) error {
	names := "none"
	if len(s.links) > 0 {
		var n []string
		for _, l := range s.links {
			n = append(n, l.spec.Name)
		}
		names = strings.Join(n, ", ")
	}
	return fmt.Errorf("no device named %q (there are: %s): %w", ctl.Clip(name), names, syscall.ENODEV)
}

// Links describes the devices.
func (s *Service) Links() ([]ctl.LinkInfo, error) {
	list := []ctl.LinkInfo{}
	for _, l := range s.all() {
		dev := l.hw.Device()
		s.mu.Lock()
		netdev := l.host.Name
		s.mu.Unlock()
		if dev == nil {
			info := ctl.LinkInfo{Name: l.spec.Name, Netdev: netdev, State: l.slot.Status().State.String(), Wire: l.spec.Wire,
				NoProbe: l.spec.NoProbe}
			l.describe(&info)
			list = append(list, info)
			continue
		}
		ibdev := dev.Handle().Device()
		port, err := ibdev.QueryPort(1)
		if err != nil {
			return nil, err
		}
		info := ctl.LinkInfo{Name: l.spec.Name, Netdev: netdev, State: port.State.String(), MTU: port.ActiveMTU.Bytes(),
			Wire: l.spec.Wire, NoProbe: l.spec.NoProbe}
		l.describe(&info)
		for _, d := range s.uverbs.Devices() {
			if d.IB().Same(ibdev) {
				info.Uverbs = d.Name()
			}
		}
		for i := range port.GIDTableLen {
			g, err := ibdev.QueryGID(1, i)
			if err != nil {
				return nil, err
			}
			if !g.GID.IsZero() {
				info.GIDs = append(info.GIDs, ctl.GIDInfo{Index: i, GID: g.GID.String(), Addr: g.GID.Addr().String()})
			}
		}
		list = append(list, info)
	}
	return list, nil
}
