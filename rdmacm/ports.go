package rdmacm

import (
	"fmt"
	"slices"
	"syscall"

	"verbena/rdmacm/msg"
)

// portKey identifies a port.
type portKey struct {
	space msg.PortSpace
	port  uint16
}

// portTable holds the IDs of each port. Manager.mu guards it.
type portTable map[portKey][]*ID

// firstFreePort is the first unprivileged port. (PROT_SOCK)
const firstFreePort = 1024

// assignPort gives an ID a port. Port 0 stands for a free port between the Config's limits.
func (t portTable) assignPort(id *ID, port uint16, cfg *Config) error {
	space := id.opts.Space
	if port != 0 {
		if port < firstFreePort && !id.opts.MayUseLowPorts {
			return syscall.EACCES
		}
		if err := t.checkNoConflict(id, portKey{space, port}, id.reuseAddr); err != nil {
			return err
		}
		t.addOwner(id, portKey{space, port})
		return nil
	}
	n := int(cfg.LastPort) - int(cfg.FirstPort) + 1
	first := cfg.Rand.IntN(n)
	for i := range n {
		k := portKey{space, cfg.FirstPort + uint16((first+i)%n)}
		if len(t[k]) == 0 {
			t.addOwner(id, k)
			return nil
		}
	}
	return syscall.EADDRNOTAVAIL
}

// addOwner adds an ID to the owners of a port.
func (t portTable) addOwner(id *ID, k portKey) {
	id.port = k
	t[k] = append(t[k], id)
}

// removeOwner removes an ID from the owners of its port.
func (t portTable) removeOwner(id *ID) {
	if id.port.port == 0 {
		return
	}
	left := slices.DeleteFunc(t[id.port], func(o *ID) bool { return o == id })
	if t[id.port] = left; len(left) == 0 {
		delete(t, id.port)
	}
	id.port = portKey{}
}

// checkNoConflict returns an error if other IDs have the port. (cma_check_port)
func (t portTable) checkNoConflict(id *ID, k portKey, reuse bool) error {
	for _, o := range t[k] {
		a, b := id.src.Addr(), o.src.Addr()
		switch {
		case o == id, reuse && o.reuseAddr:
		case id.afOnly && o.afOnly && a.Is4() != b.Is4():
		case id.usesAnyAddress() || o.usesAnyAddress():
			return fmt.Errorf("port %d of all addresses is in use: %w", k.port, syscall.EADDRNOTAVAIL)
		case a == b:
			return fmt.Errorf("port %d of the address is in use: %w", k.port, syscall.EADDRINUSE)
		}
	}
	return nil
}
