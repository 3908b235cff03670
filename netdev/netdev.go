// Package netdev finds the network interfaces of RDMA devices.
//
// An RDMA device over Ethernet belongs to one network interface. The device's port follows the state of the interface,
// its path MTU depends on the MTU of the interface, and its GID table lists the addresses of the interface. A user
// names the interface or an address, or uses the default: see [ByName], [ByAddr] and [FirstUsable].
//
// The results are snapshots. A [Watcher] reports when they may have changed. If no interface matches, the error wraps
// ENODEV, or EADDRNOTAVAIL for an address. The error lists the available interfaces.
package netdev

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Interface is a network interface with its addresses.
type Interface struct {
	Name     string
	Index    int
	MAC      net.HardwareAddr // empty for loopback interfaces and tunnels
	MTU      int              // maximum size of an IP packet, in bytes
	Up       bool             // administrative state
	Running  bool             // up and with a carrier
	Loopback bool
	// Speed is the transmission rate of the interface in bits per second. 0 means that the rate is unknown. This package
	// leaves it 0.
	Speed uint64
	// Addrs contains IPv4 addresses first, then IPv6 addresses, then link-local IPv6 addresses with the interface's
	// name as the zone. Within each kind the addresses are in the order of the kernel.
	Addrs []netip.Addr
}

// Has reports whether a is an address of the interface. Zones are ignored. Every address in 127.0.0.0/8 belongs to a
// loopback interface that is up.
func (i *Interface) Has(a netip.Addr) bool {
	a = a.Unmap()
	return i.Loopback && i.Up && a.Is4() && a.IsLoopback() || slices.ContainsFunc(i.Addrs, func(b netip.Addr) bool {
		return a.WithZone("") == b.WithZone("")
	})
}

// isUsable reports whether an RDMA device can use i.
func (i *Interface) isUsable() bool { return i.Up && i.Running }

// All lists the interfaces of this network namespace by index.
func All() ([]Interface, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	// If the file does not exist, the host has no IPv6 or no /proc. All addresses then count as usable.
	pending := unusableAddrs(readProcTable("/proc/thread-self/net/if_inet6"))
	list := make([]Interface, 0, len(ifs))
	for _, ifi := range ifs {
		addrs, err := ifi.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", ifi.Name, err)
		}
		i := makeInterface(ifi, addrs)
		i.Addrs = slices.DeleteFunc(i.Addrs, func(a netip.Addr) bool {
			return pending[interfaceAddr{i.Index,
				a.WithZone("")}]
		})
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b Interface) int { return a.Index - b.Index })
	return list, nil
}

// readProcTable returns the content of a file, or "" if it cannot be read. readProcTable does not follow symbolic
// links, because the seccomp filter of a confined process forbids them.
func readProcTable(path string) string {
	f, err := os.OpenFile(path, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NOCTTY, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(f)
	return string(b)
}

// interfaceAddr is an address with the index of its interface.
type interfaceAddr struct {
	index int
	addr  netip.Addr
}

// unusableAddrs returns the addresses to which no socket can be bound. An address is tentative during duplicate address
// detection (RFC 4862, 5.4). The address is permanently unusable if the detection fails. table is the text of
// /proc/net/if_inet6. The fields of a line are address, index, prefix length, scope and flags, in hexadecimal. The
// kernel announces an address again when the address is no longer tentative.
func unusableAddrs(table string) map[interfaceAddr]bool {
	set := map[interfaceAddr]bool{}
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		b, err := hex.DecodeString(f[0])
		index, err2 := strconv.ParseInt(f[1], 16, 32)
		flags, err3 := strconv.ParseUint(f[4], 16, 32)
		addr, ok := netip.AddrFromSlice(b)
		if err != nil || err2 != nil || err3 != nil || !ok {
			continue
		}
		const optimistic, failed, tentative = 0x04, 0x08, 0x40 // IFA_F_OPTIMISTIC, IFA_F_DADFAILED, IFA_F_TENTATIVE
		if flags&failed != 0 || flags&(tentative|optimistic) == tentative {
			set[interfaceAddr{int(index), addr}] = true
		}
	}
	return set
}

func makeInterface(ifi net.Interface, addrs []net.Addr) Interface {
	i := Interface{
		Name:     ifi.Name,
		Index:    ifi.Index,
		MAC:      ifi.HardwareAddr,
		MTU:      ifi.MTU,
		Up:       ifi.Flags&net.FlagUp != 0,
		Running:  ifi.Flags&net.FlagRunning != 0,
		Loopback: ifi.Flags&net.FlagLoopback != 0,
	}
	for _, a := range addrs {
		ipnet, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		addr, ok := netip.AddrFromSlice(ipnet.IP)
		if !ok {
			continue
		}
		addr = addr.Unmap()
		if preferenceRank(addr) == rankLinkLocal {
			addr = addr.WithZone(ifi.Name)
		}
		i.Addrs = append(i.Addrs, addr)
	}
	slices.SortStableFunc(i.Addrs, func(a, b netip.Addr) int { return preferenceRank(a) - preferenceRank(b) })
	return i
}

// The next constants define the order of addresses.
const (
	rankIPv4 = iota
	rankIPv6
	rankLinkLocal
)

func preferenceRank(a netip.Addr) int {
	switch {
	case a.Is4():
		return rankIPv4
	case a.IsLinkLocalUnicast():
		return rankLinkLocal
	}
	return rankIPv6
}

// FirstUsable returns the default interface. The default is the first interface, by index, that is up and has a carrier
// and a global unicast address. IPv4 is preferred to IPv6. If there is no such interface, it returns the loopback
// interface.
func FirstUsable() (*Interface, error) {
	list, err := All()
	if err != nil {
		return nil, err
	}
	return firstUsable(list)
}

func firstUsable(list []Interface) (*Interface, error) {
	for _, want4 := range []bool{true, false} {
		for n := range list {
			i := &list[n]
			if i.isUsable() && !i.Loopback && slices.ContainsFunc(i.Addrs, func(a netip.Addr) bool {
				return a.IsGlobalUnicast() && a.Is4() == want4
			}) {
				return i, nil
			}
		}
	}
	for n := range list {
		i := &list[n]
		if i.Up && i.Loopback && len(i.Addrs) > 0 {
			return i, nil
		}
	}
	return nil, fmt.Errorf("no network interface is up and has an address, not even loopback (%s): %w",
		describeInterfaces(list),
		syscall.ENODEV)
}

// ByName returns the interface with the given name. The interface may be down or have no address.
func ByName(name string) (*Interface, error) {
	list, err := All()
	if err != nil {
		return nil, err
	}
	return findByName(list, name)
}

func findByName(list []Interface, name string) (*Interface, error) {
	for n := range list {
		if list[n].Name == name {
			return &list[n], nil
		}
	}
	return nil, fmt.Errorf("no network interface is called %q (%s): %w", name, describeInterfaces(list), syscall.ENODEV)
}

// ByAddr returns the interface that has address a. For a link-local IPv6 address, the zone selects the link by name or
// index. The zone is optional if only one link has the address. Every address in 127.0.0.0/8 belongs to the loopback
// interface.
func ByAddr(a netip.Addr) (*Interface, error) {
	list, err := All()
	if err != nil {
		return nil, err
	}
	return findByAddr(list, a)
}

func findByAddr(list []Interface, a netip.Addr) (*Interface, error) {
	a = a.Unmap()
	var found []*Interface
	for n := range list {
		i := &list[n]
		if z := a.Zone(); z != "" && z != i.Name && z != fmt.Sprint(i.Index) {
			continue
		}
		if i.Has(a) {
			found = append(found, i)
		}
	}
	switch {
	case len(found) == 1, len(found) > 1 && !a.IsLinkLocalUnicast():
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("address %v is on %s and %s: name one, as in %v%%%s: %w",
			a, found[0].Name, found[1].Name, a, found[0].Name, syscall.EADDRNOTAVAIL)
	}
	return nil, fmt.Errorf("no network interface has the address %v (%s): %w", a, describeInterfaces(list),
		syscall.EADDRNOTAVAIL)
}

// describeInterfaces lists the available interfaces, for error messages.
func describeInterfaces(list []Interface) string {
	if len(list) == 0 {
		return "there are no interfaces"
	}
	var b strings.Builder
	b.WriteString("there are")
	for n, i := range list {
		if n > 0 {
			b.WriteByte(',')
		}
		b.WriteString(" " + i.Name)
		switch {
		case !i.Up:
			b.WriteString(" (down)")
		case !i.Running:
			b.WriteString(" (no carrier)")
		}
		for _, a := range i.Addrs {
			b.WriteString(" " + a.String())
		}
	}
	return b.String()
}
