package service

import (
	"cmp"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"verbena/driver"
	"verbena/internal/ctl"
	"verbena/internal/pci"
	"verbena/supervisor"
)

// autoPCI is the address of a PCI function for which the service chooses an address.
const autoPCI = "auto"

// pciFunctions holds the PCI functions as which programs see the devices, by the names of the devices. A device keeps
// its function across a reset or an unplug.
type pciFunctions struct {
	mu       sync.Mutex
	byName   map[string]*pci.Function
	reserved map[string]pci.Address // addresses of links that are about to be made, by their names
}

// reserve keeps the addresses that links name from links for which the service chooses an address, until release.
func (p *pciFunctions) reserve(specs []ctl.LinkSpec) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved = map[string]pci.Address{}
	for _, l := range specs {
		if f, auto, err := pci.Parse(l.PCI, ""); l.PCI != "" && err == nil && !auto {
			p.reserved[l.Name] = f.Address
		}
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.reserved = nil
	}
}

// add adds the function of a new link, if the link has one, and replaces the text of spec.PCI by the complete
// description. A driver.PCIDriver d has a function in any case; the options of spec precede those of d.
func (p *pciFunctions) add(spec *ctl.LinkSpec, d driver.Driver) error {
	text := spec.PCI
	if d, ok := d.(driver.PCIDriver); ok {
		where, options, _ := strings.Cut(d.PCI(), ",")
		text = cmp.Or(text, where)
		for _, o := range strings.Split(options, ",") {
			if name, _, _ := strings.Cut(o, "="); !strings.Contains(text, ","+name+"=") {
				text += "," + o
			}
		}
	}
	if text == "" {
		return nil
	}
	f, auto, err := pci.Parse(text, d.Type())
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byName[spec.Name] != nil {
		return fmt.Errorf("the link exists already: %w", syscall.EEXIST)
	}
	if auto {
		err = f.Place(func(a pci.Address) bool { return p.user(a, "") != "" || supervisor.HasPCIRoot(a) })
	} else if name := p.user(f.Address, spec.Name); name != "" {
		err = fmt.Errorf("pci %v: the address is in use by link %s: %w", f.Address, name, syscall.EADDRINUSE)
	}
	if err == nil {
		err = supervisor.CheckPCI(&f)
	}
	if err != nil {
		return err
	}
	if p.byName == nil {
		p.byName = map[string]*pci.Function{}
	}
	p.byName[spec.Name], spec.PCI = &f, f.String()
	return nil
}

// user returns a link other than self with a function, or a bridge, at an address, or "".
//
//verbena:held p.mu
func (p *pciFunctions) user(a pci.Address, self string) string {
	overlaps := func(b pci.Address) bool {
		bridge, _ := b.Bridge()
		own, _ := a.Bridge()
		return b == a || bridge == a || own == b
	}
	for name, f := range p.byName {
		if overlaps(f.Address) {
			return name
		}
	}
	for name, b := range p.reserved {
		if name != self && overlaps(b) {
			return name
		}
	}
	return ""
}

func (p *pciFunctions) remove(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byName, name)
}

// find returns the function of a device, or nil.
func (p *pciFunctions) find(name string) *pci.Function {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byName[name]
}
