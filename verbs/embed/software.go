package embed

import (
	"fmt"
	"net/netip"

	"verbena/driver/efa"
	"verbena/driver/rxe"
	"verbena/engine"
	"verbena/ib"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/netdev"
)

// Software describes a software device. Only devices of the same Stack can reach the zero Software.
type Software struct {
	Name string // "" means rxe0 or efa0 for the first device, rxe1 or efa1 for the second, and so on
	// Addr is an address of this host at which UDP port 4791 is free. Other processes and hosts reach the device at
	// this address. The zero Addr means a network in memory.
	Addr netip.Addr
	// Wire makes the device send every packet over the network. Without Wire, messages between devices of the Stack are
	// copied.
	Wire bool
}

// NewSoftware creates a Stack with new software RoCEv2 devices. Without arguments it creates one device from the zero
// [Software]. The caller must close the Stack after closing the devices opened on it. NewSoftware may sleep.
func NewSoftware(devices ...Software) (*Stack, error) { return newSoftware("rxe", rxe.New, devices) }

// NewEFA is NewSoftware for EFA devices, with queue pairs of type SRD and UD. NewEFA may sleep.
func NewEFA(devices ...Software) (*Stack, error) { return newSoftware("efa", efa.New, devices) }

// newSoftware creates a Stack with devices of one kind.
func newSoftware(kind string, create func(engine.Config) (*engine.Device, error), devices []Software) (*Stack, error) {
	if len(devices) == 0 {
		devices = make([]Software, 1)
	}
	var core ib.Core
	s, err := New(&core)
	if err != nil {
		return nil, err
	}
	var fabric engine.Fabric
	memory := simnet.New(simnet.Config{})
	for i, d := range devices {
		if d.Name == "" {
			d.Name = fmt.Sprint(kind, i)
		}
		host := &netdev.Interface{Name: "lo", Index: 1, MTU: 65536, Up: true, Running: true}
		var network link.Network = memory
		if d.Addr.IsValid() {
			network = link.UDP(link.UDPOptions{})
			host, err = netdev.ByAddr(d.Addr)
		} else {
			d.Addr = netip.AddrFrom4([4]byte{127, 0, byte(i >> 8), byte(i + 1)})
		}
		if err == nil {
			c := engine.Config{Name: d.Name, Netdev: *host, Addrs: []netip.Addr{d.Addr}, Network: network, Fabric: &fabric}
			err = s.addDevice(&core, create, c, d.Wire)
		}
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("verbs: embed: make %s: %w", d.Name, err)
		}
	}
	return s, nil
}

// addDevice creates a device.
func (s *Stack) addDevice(core *ib.Core, create func(engine.Config) (*engine.Device, error), c engine.Config,
	wire bool) error {
	dev, err := create(c)
	if err != nil {
		return err
	}
	dev.SetShortcut(!wire)
	if err := core.Register(dev.Handle()); err != nil {
		dev.Close()
		return err
	}
	s.own = append(s.own, func() {
		_ = core.Unregister(dev.Handle())
		dev.Close()
	})
	return nil
}
