package service

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/fault"
	"verbena/netdev"
	"verbena/roce"
)

// linkPort is the state of a link as set by changeLink.
//
//	       down, flap, moment
//	up ------------------------> down
//	  <-------------------------
//	       up, end of the flap
type linkPort struct {
	change sync.Mutex // held during a change of state, for as long as the device needs

	mu    sync.Mutex
	state ctl.LinkState // "" means LinkUp
	// generation counts the changes of state. A flap ends only if no later change has replaced the flap.
	generation uint64
	ended      chan struct{} // closed at the end of the flap, or when a later change replaces it; nil without a flap
	timer      *time.Timer   // ends the flap
	mtu        int           // limit of the active MTU, or 0 for none
	speed      uint64        // rate of the shape in bits per second, or 0 for none
	armed      string        // description of the armed moment
	ofWR       bool          // the armed moment counts work requests, and is cleared when the device is replaced
	moment     uint64        // number of moments armed so far
}

// adjustedInterface returns the interface as changed by changeLink, for the device.
func (p *linkPort) adjustedInterface(host netdev.Interface) netdev.Interface {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isDown() {
		host.Running = false
	}
	if p.mtu > 0 {
		host.MTU = min(host.MTU, p.mtu+roce.MaxOverhead)
	}
	host.Speed = p.speed
	return host
}

func (p *linkPort) isDown() bool { return p.state == ctl.LinkDown || p.state == ctl.LinkFlap }

// setState records a change of state, which replaces a flap.
func (p *linkPort) setState(state ctl.LinkState) (generation uint64, ended <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.generation++
	if p.ended != nil {
		if p.timer != nil {
			p.timer.Stop()
		}
		close(p.ended)
		p.ended = nil
	}
	p.state = state
	if state == ctl.LinkFlap {
		p.ended = make(chan struct{})
	}
	return p.generation, p.ended
}

// disarmMoment clears the armed moment. disarmMoment reports whether the moment was the n-th one; 0: any.
func (p *linkPort) disarmMoment(n uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n != 0 && n != p.moment {
		return false
	}
	p.moment++
	p.armed = ""
	return true
}

// armMoment records an armed moment and returns its number.
func (p *linkPort) armMoment(what string, ofWR bool) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moment++
	p.armed, p.ofWR = what, ofWR
	return p.moment
}

// clearCountedMoment clears a moment that counts work requests, because the replaced device did the counting.
func (p *linkPort) clearCountedMoment() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ofWR {
		p.armed = ""
	}
}

// changeLink changes the link of a device. A flap ends before changeLink returns, unless the flap is armed for a moment
// or another change replaces it.
func (t *linkTable) changeLink(r ctl.LinkSet) error {
	fail := func(err error) error { return fmt.Errorf("link set %s: %w", ctl.ClipText(r.Name), err) }
	l, err := t.findOrError(r.Name)
	if err != nil {
		return err
	}
	if err := t.checkLinkSet(l, &r); err != nil {
		return fail(err)
	}
	if r.Cancel {
		l.cancelMoment()
		return nil
	}
	t.mu.Lock()
	t.configured = true
	t.mu.Unlock()
	if r.Shape != nil {
		if err := l.faults.Shape(*r.Shape); err != nil {
			return fail(err)
		}
	}
	if r.MTU != 0 || r.Shape != nil {
		l.port.mu.Lock()
		if r.MTU != 0 {
			l.port.mtu = max(r.MTU, 0)
		}
		if r.Shape != nil {
			l.port.speed = uint64(r.Shape.Rate)
		}
		l.port.mu.Unlock()
		t.updateLinkState(l)
	}
	switch {
	case r.State == "":
		return nil
	case r.AtWR != 0 || r.AtPacket != 0:
		return t.armLinkChange(l, &r)
	}
	l.cancelMoment()
	ended := t.setLinkState(l, r.State, r.Down)
	if ended == nil {
		return nil
	}
	select {
	case <-ended:
		return nil
	case <-t.ended.Done():
		return fail(fmt.Errorf("the service ends: %w", syscall.ESHUTDOWN))
	}
}

func (t *linkTable) checkLinkSet(l *rdmaLink, r *ctl.LinkSet) error {
	moment := r.AtWR != 0 || r.AtPacket != 0
	switch r.State {
	case "", ctl.LinkUp, ctl.LinkDown, ctl.LinkFlap:
	default:
		return fmt.Errorf("state %q: there are %s, %s and %s: %w", ctl.ClipText(string(r.State)), ctl.LinkUp, ctl.LinkDown,
			ctl.LinkFlap, syscall.EINVAL)
	}
	switch {
	case r.Down < 0 || r.Down > ctl.MaxFlap:
		return fmt.Errorf("a flap of %v is not from 0 to %v: %w", r.Down, ctl.MaxFlap, syscall.EINVAL)
	case r.Down != 0 && r.State != ctl.LinkFlap:
		return fmt.Errorf("a time goes with %s alone: %w", ctl.LinkFlap, syscall.EINVAL)
	case moment && r.State != ctl.LinkDown && r.State != ctl.LinkFlap:
		return fmt.Errorf("a moment is allowed for down and flap only: %w", syscall.EINVAL)
	case r.AtWR != 0 && r.AtPacket != 0:
		return fmt.Errorf("give at most one moment: %w", syscall.EINVAL)
	case r.Cancel && (r.State != "" || moment || r.MTU != 0 || r.Shape != nil):
		return fmt.Errorf("cancel excludes other changes: %w", syscall.EINVAL)
	case !r.Cancel && r.State == "" && r.MTU == 0 && r.Shape == nil:
		return fmt.Errorf("nothing to change: %w", syscall.EINVAL)
	}
	if r.Shape != nil {
		if err := r.Shape.Validate(); err != nil {
			return fmt.Errorf("%w: %w", err, syscall.EINVAL)
		}
	}
	if r.MTU != 0 && r.MTU != ctl.UseInterfaceMTU {
		if !slices.Contains([]int{256, 512, 1024, 2048, 4096}, r.MTU) {
			return fmt.Errorf("mtu %d: must be 256, 512, 1024, 2048 or 4096: %w", r.MTU, syscall.EINVAL)
		}
		t.mu.Lock()
		host := *l.host
		t.mu.Unlock()
		if most := roce.MTUFromLink(host.MTU).Bytes(); r.MTU > most {
			return fmt.Errorf("mtu %d: the MTU of %s is %d, which leaves %d: %w", r.MTU, host.Name, host.MTU, most,
				syscall.EINVAL)
		}
	}
	return nil
}

// setLinkState sets the state of a link. setLinkState returns a channel that is closed at the end of a flap, or nil for
// other states.
func (t *linkTable) setLinkState(l *rdmaLink, state ctl.LinkState, down time.Duration) (ended <-chan struct{}) {
	generation, ended := l.port.setState(state)
	t.applyPortState(l)
	if state != ctl.LinkFlap {
		return nil
	}
	if down == 0 {
		down = ctl.DefaultFlap
	}
	l.port.mu.Lock()
	defer l.port.mu.Unlock()
	if l.port.generation == generation {
		l.port.timer = time.AfterFunc(down, func() { t.endFlap(l, generation) })
	}
	return ended
}

func (t *linkTable) endFlap(l *rdmaLink, generation uint64) {
	p := &l.port
	p.mu.Lock()
	if p.generation != generation {
		p.mu.Unlock()
		return
	}
	p.generation++
	p.state = ctl.LinkUp
	ended := p.ended
	p.ended = nil
	p.mu.Unlock()
	t.applyPortState(l)
	close(ended)
}

// applyPortState applies the state of the port to the network and the device. It may sleep.
func (t *linkTable) applyPortState(l *rdmaLink) {
	l.port.change.Lock()
	defer l.port.change.Unlock()
	l.port.mu.Lock()
	down := l.port.isDown()
	l.port.mu.Unlock()
	l.faults.SetLink(!down)
	t.updateLinkState(l)
	t.log.Debug("link set", "dev", l.spec.Name, "up", !down)
}

// updateLinkState updates the device to its interface as changed by changeLink.
func (t *linkTable) updateLinkState(l *rdmaLink) {
	l.following.Lock()
	t.mu.Lock()
	list := []netdev.Interface{*l.host}
	t.mu.Unlock()
	t.setInterface(l, list)
	l.following.Unlock()
	t.applyInterfaceChanges(l) // applies changes of the interface that arrived in the meantime
}

// armLinkChange arms the change of state for a moment.
func (t *linkTable) armLinkChange(l *rdmaLink, r *ctl.LinkSet) error {
	l.cancelMoment()
	what := fmt.Sprintf("%s at packet %d", r.State, r.AtPacket)
	if r.AtWR != 0 {
		what = fmt.Sprintf("%s at send work request %d", r.State, r.AtWR)
	}
	n := l.port.armMoment(what, r.AtWR != 0)
	hit := func() { // must not sleep
		go func() {
			if l.port.disarmMoment(n) {
				t.setLinkState(l, r.State, r.Down)
			} else {
				t.applyPortState(l) // the moment was cancelled after the network had used it
			}
		}()
	}
	if r.AtPacket != 0 {
		l.faults.AtPacket(r.AtPacket, hit)
		return nil
	}
	if !l.hw.BeforeWorkRequest(r.AtWR, func() {
		l.faults.SetLink(false)
		hit()
	}) {
		l.port.disarmMoment(n)
		return fmt.Errorf("link set %s: there is no device to execute work requests: %w", l.spec.Name, syscall.ENODEV)
	}
	return nil
}

func (l *rdmaLink) cancelMoment() {
	l.port.disarmMoment(0)
	l.faults.AtPacket(0, nil)
	l.hw.BeforeWorkRequest(0, nil)
}

// describeState adds the state set by changeLink to the description of the link.
func (l *rdmaLink) describeState(info *ctl.LinkInfo) {
	l.port.mu.Lock()
	defer l.port.mu.Unlock()
	if info.Link = l.port.state; info.Link == "" {
		info.Link = ctl.LinkUp
	}
	info.MaxMTU, info.Armed = l.port.mtu, l.port.armed
	if shape := l.faults.Shaped(); shape != (fault.Shape{}) {
		info.Shape = &shape
	}
}
