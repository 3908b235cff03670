package service

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/driver"
	"verbena/explain"
	"verbena/ib"
	"verbena/internal/ctl"
	"verbena/reqtrace"
	"verbena/supervisor"
)

// linkTable holds the links of a service, and makes, changes and removes them.
type linkTable struct {
	// mu also guards the device, the interface and the addresses of each link. mu is never held during an operation
	// that can block on a program's memory, such as a reset, the removal of a device, a change of its addresses, or an
	// inspection of contexts.
	mu         sync.Mutex
	list       []*rdmaLink
	names      map[string]bool // names reserved for links in creation
	making     sync.WaitGroup  // counts links in creation; only a holder of mu adds to it, and only until the service ends
	recordings map[*packetRecording]struct{}
	deciders   []*faultDecisions
	configured bool // links were changed by hand, and the end of the service would lose the changes

	opts      *Options
	log       *slog.Logger
	core      *ib.Core
	ended     context.Context        // done when the service begins to stop
	causes    *explain.Recorder      // explains failures
	requests  *reqtrace.Recorder     // traces work requests
	guests    *supervisor.Supervisor // shows the devices to programs
	functions pciFunctions           // PCI functions of the devices
	ringBytes uint64                 // maximum of the queues of one user, in bytes
	faultIDs  atomic.Int64           // last number of a fault rule
	made      atomic.Uint64          // number of devices made so far; each device gets a different random seed from it
}

// reserveName reserves a name for a new link, and release frees the name.
func (t *linkTable) reserveName(ended context.Context, name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.find(name) != nil:
		return fmt.Errorf("link %s exists already: %w", name, syscall.EEXIST)
	case t.names[name]:
		return fmt.Errorf("link %s is being made already: %w", name, syscall.EEXIST)
	case ended.Err() != nil:
		return fmt.Errorf("link %s: the service ends: %w", ctl.ClipText(name), syscall.ESHUTDOWN)
	}
	t.names[name] = true
	t.making.Add(1)
	return nil
}

func (t *linkTable) releaseName(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.names, name)
	t.making.Done()
}

// add adds the link to the service's list.
func (t *linkTable) add(l *rdmaLink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.configured = true
	t.list = append(t.list, l)
	for r := range t.recordings {
		r.addTap(l)
	}
	for _, f := range t.deciders {
		f.addTo(l)
	}
}

// removeLink removes the link from the service's list.
//
//verbena:held t.mu
func (t *linkTable) removeLink(l *rdmaLink) {
	t.list = slices.DeleteFunc(slices.Clone(t.list), func(o *rdmaLink) bool { return o == l })
	for r := range t.recordings {
		r.removeTap(l)
	}
}

// all returns the current links.
func (t *linkTable) all() []*rdmaLink {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.list)
}

// find returns the link with a name, or nil.
//
//verbena:held t.mu
func (t *linkTable) find(name string) *rdmaLink {
	for _, l := range t.list {
		if l.spec.Name == name {
			return l
		}
	}
	return nil
}

func (t *linkTable) noLinkError(name string) error {
	names := "none"
	if len(t.list) > 0 {
		var n []string
		for _, l := range t.list {
			n = append(n, l.spec.Name)
		}
		names = strings.Join(n, ", ")
	}
	return fmt.Errorf("no device named %q (there are: %s): %w", ctl.ClipText(name), names, syscall.ENODEV)
}

// findOrError returns the link with a name.
func (t *linkTable) findOrError(name string) (*rdmaLink, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.find(name)
	if l == nil {
		return nil, t.noLinkError(name)
	}
	return l, nil
}

// linksNamed returns the link of that name, or all links if the name is empty.
func (t *linkTable) linksNamed(dev string) ([]*rdmaLink, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if dev == "" {
		return slices.Clone(t.list), nil
	}
	l := t.find(dev)
	if l == nil {
		return nil, t.noLinkError(dev)
	}
	return []*rdmaLink{l}, nil
}

// currentDevice returns a link's current device, or nil if the link has none.
func (t *linkTable) currentDevice(l *rdmaLink) driver.Device {
	t.mu.Lock()
	defer t.mu.Unlock()
	return l.dev
}

// linkWithAddr returns the link that uses an address, or nil.
func (t *linkTable) linkWithAddr(a netip.Addr) *rdmaLink {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.list {
		for _, e := range l.dev.Endpoints() {
			if e.Addr() == a {
				return l
			}
		}
	}
	return nil
}

func (t *linkTable) logf(format string, args ...any) { t.log.Warn(fmt.Sprintf(format, args...)) }

// createFirstLinks makes the devices of the options, or the default device. After an error, the caller closes the
// service.
func (t *linkTable) createFirstLinks() error {
	if t.opts.Links == nil {
		l, err := t.openDefaultLink()
		if err != nil {
			return err
		}
		t.add(l)
		if err := t.guests.CheckTreesCurrent(); err != nil {
			return err
		}
	}
	if err := t.createAll(t.opts.Links); err != nil {
		return err
	}
	t.configured = false
	return nil
}

// createAll makes several devices, and updates the programs' files once. After an error, the caller closes the
// service.
func (t *linkTable) createAll(specs []ctl.LinkSpec) error {
	if len(specs) == 0 {
		return nil
	}
	defer t.functions.reserve(specs)()
	release := t.guests.HoldTrees()
	for _, spec := range specs {
		if err := t.addLink(spec); err != nil {
			return err
		}
	}
	release()
	if err := t.guests.CheckTreesCurrent(); err != nil {
		return fmt.Errorf("make %d devices: %w", len(specs), err)
	}
	return nil
}
