package service

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/driver"
	"verbena/explain"
	"verbena/ib/slot"
	"verbena/internal/ctl"
	"verbena/internal/pci"
	"verbena/link"
	"verbena/netdev"
)

// ParseLinkSpec parses NAME=ADDR[,ADDR...], NAME=NETDEV or NAME. ",personality=TYPE" may follow, the type of a driver,
// and then ",pci[=ADDRESS][,OPTION=VALUE...]": see pci.Parse. Without a personality, NAME must begin with the type of
// one of the drivers. The list of drivers must not be empty.
func ParseLinkSpec(s string, drivers []driver.Driver) (ctl.LinkSpec, error) {
	name, rest, _ := strings.Cut(s, "=")
	l := ctl.LinkSpec{Name: name}
	if before, after, ok := strings.Cut(rest, ",personality="); ok {
		var options string
		if l.Personality, options, ok = strings.Cut(after, ","); ok {
			options = "," + options
		}
		if rest = before + options; strings.Contains(rest, ",personality=") {
			return l, fmt.Errorf("link %s: personality is given twice: %w", ctl.ClipText(name), syscall.EINVAL)
		}
	}
	rest, shape, hasPCI := strings.Cut(rest, ",pci")
	if hasPCI {
		where, options, _ := strings.Cut(shape, ",")
		if where != "" && where[0] != '=' {
			return l, fmt.Errorf("link %s: option %q: use pci or pci=ADDRESS: %w", ctl.ClipText(name),
				ctl.ClipText("pci"+where), syscall.EINVAL)
		}
		l.PCI = cmp.Or(strings.TrimPrefix(where, "="), autoPCI)
		if options != "" {
			l.PCI += "," + options
		}
		if _, _, err := pci.Parse(l.PCI, ""); err != nil {
			return l, fmt.Errorf("link %s: %w", ctl.ClipText(name), err)
		}
	}
	if _, err := netip.ParseAddr(strings.Split(rest, ",")[0]); err == nil {
		l.Addrs = strings.Split(rest, ",")
	} else {
		l.Netdev = rest
	}
	_, err := findDriver(&l, drivers)
	return l, err
}

// findDriver returns the driver of a link, or EINVAL if the name or the personality is invalid.
func findDriver(l *ctl.LinkSpec, drivers []driver.Driver) (driver.Driver, error) {
	if l.Personality == "" {
		return driverOfName(l.Name, drivers)
	}
	i := slices.IndexFunc(drivers, func(d driver.Driver) bool { return d.Type() == l.Personality })
	if i < 0 {
		return nil, fmt.Errorf("link %s: personality %q: use %s: %w", ctl.ClipText(l.Name), ctl.ClipText(l.Personality),
			linkTypes(drivers, " or "), syscall.EINVAL)
	}
	d := drivers[i]
	if _, free := d.(driver.PCIDriver); !free || strings.HasPrefix(l.Name, d.Type()) {
		return driverOfName(l.Name, drivers[i:i+1])
	}
	if other, err := driverOfName(l.Name, drivers); err == nil {
		return nil, fmt.Errorf("device name %q: it begins like a name of %s: use %s0, or another name: %w",
			ctl.ClipText(l.Name), other.Type(), d.Type(), syscall.EINVAL)
	}
	if !isDeviceName(l.Name) {
		return nil, fmt.Errorf("device name %q: use up to %d letters, digits or any of \"._-\": %w", ctl.ClipText(l.Name),
			maxDeviceName, syscall.EINVAL)
	}
	return d, nil
}

// isDeviceName reports whether a name has the characters and the length of a device name.
func isDeviceName(name string) bool {
	odd := func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune("._-", r)
	}
	return name != "" && len(name) <= maxDeviceName && !strings.ContainsFunc(name, odd)
}

// driverOfName returns the driver by whose type a device name begins, or EINVAL if the name is invalid.
func driverOfName(name string, drivers []driver.Driver) (driver.Driver, error) {
	i := slices.IndexFunc(drivers, func(d driver.Driver) bool { return strings.HasPrefix(name, d.Type()) })
	if i >= 0 && isDeviceName(name) {
		return drivers[i], nil
	}
	like := drivers[max(i, 0)].Type()
	return nil, fmt.Errorf("device name %q: must be %s followed by up to %d letters, digits or any of \"._-\", such as %s1: libibverbs finds the driver by that name: %w",
		ctl.ClipText(name), linkTypes(drivers, " or "), maxDeviceName-len(like), like, syscall.EINVAL)
}

// maxDeviceName is the maximum length of a device name, IBV_SYSFS_NAME_MAX without the zero byte.
const maxDeviceName = 63

// linkTypes returns the link types of drivers.
func linkTypes(drivers []driver.Driver, separator string) string {
	var list []string
	for _, d := range drivers {
		list = append(list, d.Type())
	}
	return strings.Join(list, separator)
}

// rdmaLink is a device with its configuration and state.
type rdmaLink struct {
	spec   ctl.LinkSpec
	hw     driver.Hardware
	slot   *slot.Slot
	outage outage
	faults *link.Faults
	port   linkPort
	taps   *link.Taps
	addrs  []netip.Addr // addresses of the device, or nil for all addresses of the interface

	following sync.Mutex                         // held while one change of the interface is applied
	news      atomic.Pointer[[]netdev.Interface] // interface changes that are not yet applied to the device

	// linkTable.mu guards the following fields after linkTable.add.
	dev  driver.Device     // the current device
	host *netdev.Interface // last known state of the interface
}

// openLink makes a device and registers it.
func (t *linkTable) openLink(spec ctl.LinkSpec) (*rdmaLink, error) {
	d, err := findDriver(&spec, t.opts.Drivers)
	if err != nil {
		return nil, err
	}
	host, addrs, err := resolveInterface(&spec)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", spec.Name, err)
	}
	return t.openLinkOn(d, spec, host, addrs, len(spec.Addrs) > 0)
}

// openLinkOn makes a device on given addresses of an interface. If fixed is false, the device follows the addresses
// of the interface.
func (t *linkTable) openLinkOn(d driver.Driver, spec ctl.LinkSpec, host *netdev.Interface, addrs []netip.Addr,
	fixed bool) (*rdmaLink, error) {
	for _, a := range addrs {
		if o := t.linkWithAddr(a); o != nil {
			return nil, fmt.Errorf("link %s: %v is an address of link %s: use another, or give %s less with --addr: %w",
				spec.Name, a, o.spec.Name, o.spec.Name, syscall.EADDRINUSE)
		}
	}
	if err := t.functions.add(&spec, d); err != nil {
		return nil, fmt.Errorf("link %s: %w", spec.Name, err)
	}
	made := false
	defer func() {
		if !made {
			t.functions.remove(spec.Name)
		}
	}()
	n := t.made.Add(1)
	l := &rdmaLink{spec: spec, host: host, taps: &link.Taps{}}
	if fixed {
		l.addrs = addrs
	}
	l.faults = link.NewFaults(link.UDP(link.UDPOptions{Taps: l.taps}), rand.NewPCG(t.opts.Seed, 2*n))
	l.faults.NumberBy(&t.faultIDs)
	l.faults.OnImpairment(func(x link.Impairment) {
		now := time.Now()
		t.causes.PacketsImpaired(explain.ImpairedPackets{Time: now, Device: spec.Name, Impairment: x})
		if x.Kind != link.Delayed {
			t.requests.PacketsLost(now, spec.Name, x.QP, x.Packets)
		}
	})
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
		QueueMemory: t.ringBytes,
		Rand:        rand.New(rand.NewPCG(t.opts.Seed, 2*n+1)),
		Logf:        func(format string, args ...any) { t.log.Warn(fmt.Sprintf(format, args...), "dev", spec.Name) },
	}
	cfg.Observer = deviceObserver{t.causes, t.requests, t.log}
	first := true // true in the first call; the slot serialises the calls, and no other goroutine has the link yet
	cfg.Probed = func(dev driver.Device) {
		if first {
			first, l.dev = false, dev
			return
		}
		go t.recordDevice(l, dev)
	}
	l.hw = d.Open(cfg)
	l.slot = slot.New(t.core, spec.Name, l.hw, t.logf)
	if err := l.slot.Plug(); err != nil {
		if a := freeLoopbackAddr(); errors.Is(err, syscall.EADDRINUSE) && a.IsValid() {
			err = fmt.Errorf("%w; %v is free: --link %s=%[2]v, or link add %[3]s --addr %[2]v", err, a, spec.Name)
		}
		return nil, fmt.Errorf("link %s: %w", spec.Name, err)
	}
	t.reportDevice(l)
	made = true
	return l, nil
}

// freeLoopbackAddr returns a loopback address that no RDMA service uses, from 127.0.0.2 on, or the zero Addr if all are
// in use.
func freeLoopbackAddr() netip.Addr {
	for a := netip.AddrFrom4([4]byte{127, 0, 0, 2}); a.Less(netip.AddrFrom4([4]byte{127, 0, 0, 255})); a = a.Next() {
		c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, link.Port)))
		if err == nil {
			c.Close()
			return a
		}
	}
	return netip.Addr{}
}

// recordDevice records the new device of a link after a reset or a plug.
func (t *linkTable) recordDevice(l *rdmaLink, d driver.Device) {
	t.mu.Lock()
	if now := l.hw.Device(); now != nil && now != d {
		t.mu.Unlock()
		return // a later device is already recorded
	}
	l.dev = d
	list := []netdev.Interface{*l.host}
	t.mu.Unlock()
	l.port.clearCountedMoment()
	t.log.Debug("new device after a reset or a plug", "dev", l.spec.Name)
	t.reportDevice(l)
	// The interface may have changed while the link had no device.
	l.news.CompareAndSwap(nil, &list)
	t.applyInterfaceChanges(l)
}

// resolveInterface returns the interface and the addresses for a device.
func resolveInterface(l *ctl.LinkSpec) (host *netdev.Interface, addrs []netip.Addr, err error) {
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

// openDefaultLink makes a device of the first driver, such as rxe0, on the host's first usable interface. If
// another service or the kernel's rdma_rxe uses port 4791 on that interface, openDefaultLink uses the first
// loopback address with a free port. The services of several users, and private services, can therefore run side by
// side and reach each other.
func (t *linkTable) openDefaultLink() (*rdmaLink, error) {
	d := t.opts.Drivers[0]
	spec := ctl.LinkSpec{Name: d.Type() + "0", Wire: t.opts.Wire, NoProbe: t.opts.NoProbe}
	host, addrs, err := resolveInterface(&spec)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", spec.Name, err)
	}
	l, err := t.openLinkOn(d, spec, host, addrs, false)
	if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
		// A link-local address may be unusable for a moment, while the kernel checks for duplicates (DAD).
		t.log.Info("leaving out link-local addresses", "cause", err)
		global := slices.DeleteFunc(slices.Clone(addrs), netip.Addr.IsLinkLocalUnicast)
		if len(global) == 0 || len(global) == len(addrs) {
			return nil, err
		}
		l, err = t.openLinkOn(d, spec, host, global, false)
	}
	if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	t.log.Info("another RDMA service uses the host's address; using a loopback address", "cause", err)
	for a := netip.AddrFrom4([4]byte{127, 0, 0, 1}); a != netip.AddrFrom4([4]byte{127, 0, 0, 255}); a = a.Next() {
		host, err = netdev.ByAddr(a)
		if err != nil {
			return nil, fmt.Errorf("link %s: %w", spec.Name, err)
		}
		if l, err = t.openLinkOn(d, spec, host, []netip.Addr{a}, true); !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return l, err
}

// createLink creates a device and shows it to programs.
func (t *linkTable) createLink(spec ctl.LinkSpec) error {
	if err := t.addLink(spec); err != nil {
		return err
	}
	if err := t.guests.CheckTreesCurrent(); err != nil {
		_ = t.deleteLink(spec.Name)
		return fmt.Errorf("link %s: %w", spec.Name, err)
	}
	return nil
}

func (t *linkTable) addLink(spec ctl.LinkSpec) error {
	if err := t.reserveName(t.ended, spec.Name); err != nil {
		return err
	}
	defer t.releaseName(spec.Name)
	spec.Wire = spec.Wire || t.opts.Wire
	spec.NoProbe = spec.NoProbe || t.opts.NoProbe
	l, err := t.openLink(spec)
	if err != nil {
		return err
	}
	t.add(l)
	return nil
}

// netlinkLinks implements supervisor.Links for programs that change links.
type netlinkLinks struct{ links *linkTable }

func (l netlinkLinks) AddLink(name, linkType, netdev string) error {
	drivers := l.links.opts.Drivers
	i := slices.IndexFunc(drivers, func(d driver.Driver) bool { return d.Type() == linkType })
	if i < 0 {
		return fmt.Errorf("link %s: type %q; there is %s: %w", ctl.ClipText(name), ctl.ClipText(linkType),
			linkTypes(drivers, ", "),
			syscall.EINVAL)
	}
	if _, err := driverOfName(name, drivers[i:i+1]); err != nil {
		return err
	}
	return l.links.createLink(ctl.LinkSpec{Name: name, Netdev: netdev})
}

func (l netlinkLinks) DeleteLink(name string) error { return l.links.deleteLink(name) }

// deleteLink removes a device. Open contexts of programs become zombies.
func (t *linkTable) deleteLink(name string) error {
	t.mu.Lock()
	l := t.find(name)
	if l == nil {
		defer t.mu.Unlock()
		return t.noLinkError(name)
	}
	t.configured = true
	t.removeLink(l)
	t.mu.Unlock()
	t.causes.SetDevice(explain.DeviceState{Name: name, Lost: explain.Removed, Since: time.Now()})
	defer t.functions.remove(name)
	return l.slot.Close()
}

// Links describes the devices.
func (s *Service) Links() ([]ctl.LinkInfo, error) {
	list := []ctl.LinkInfo{}
	for _, l := range s.links.all() {
		dev := l.hw.Device()
		s.links.mu.Lock()
		netdev := l.host.Name
		s.links.mu.Unlock()
		if dev == nil {
			info := ctl.LinkInfo{Name: l.spec.Name, Netdev: netdev, State: l.slot.Status().State.String(), Wire: l.spec.Wire,
				NoProbe: l.spec.NoProbe, PCI: l.spec.PCI}
			l.describeState(&info)
			list = append(list, info)
			continue
		}
		ibdev := dev.Handle().Device()
		port, err := ibdev.QueryPort(1)
		if err != nil {
			return nil, err
		}
		info := ctl.LinkInfo{Name: l.spec.Name, Netdev: netdev, State: port.State.String(), MTU: port.ActiveMTU.Bytes(),
			Wire: l.spec.Wire, NoProbe: l.spec.NoProbe, PCI: l.spec.PCI}
		l.describeState(&info)
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
