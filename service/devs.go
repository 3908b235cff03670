package service

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"verbena/driver"
	"verbena/ib"
	"verbena/ib/slot"
	"verbena/internal/ctl"
	"verbena/internal/quota"
	"verbena/uverbs"
)

// isInManualState reports whether a command has put the device into a state that only another command or an event ends.
// In such a state the device is unplugged, its hardware hangs or does not respond, or a reset is armed.
func (l *rdmaLink) isInManualState() bool {
	st := l.slot.Status()
	return st.State != slot.Running || st.Armed != "" || l.hw.State() != driver.Running
}

// DevReset resets a device, and returns when consumers can use the recovered device. If the reset is armed for a
// moment, or the hardware stays unreachable, DevReset returns at once. The reset turns the user contexts of the
// device into zombies. DevReset returns EBUSY while the hardware does not answer.
func (s *Service) DevReset(r ctl.DevReset) error {
	l, err := s.links.findOrError(r.Name)
	if err != nil {
		return err
	}
	if r.Outage < 0 || r.AtWR != 0 && r.At != "" {
		return fmt.Errorf("dev reset %s: give at most one moment, and no negative time: %w", r.Name, syscall.EINVAL)
	}
	if r.Cancel {
		l.slot.Disarm()
		return nil
	}
	if l.slot.Status().State == slot.Recovering && l.hw.State() == driver.Unreachable {
		return fmt.Errorf("dev reset %s: a reset is waiting for the hardware, which does not respond; `verbena dev plug %s` makes it respond: %w",
			r.Name, r.Name, syscall.EBUSY)
	}
	if err := l.checkNotUnplugged("dev reset"); err != nil {
		return err
	}
	away := func() {
		if r.NoFlush {
			l.hw.Silence()
		}
		if r.Unreachable {
			//verbena:allow nosleep the hardware has a device at that time, so no probe holds its lock
			l.outage.begin(l.hw, r.Outage)
		}
	}
	switch {
	case r.AtWR != 0:
		return l.slot.ResetAt(slot.AtWorkRequest(r.AtWR), away)
	case r.At == ctl.DevCompletion:
		return l.slot.ResetAt(slot.InHandler, away)
	case r.At == ctl.DevRegistration:
		if err := l.slot.ResetAt(slot.DuringRegistration, away); err != nil {
			return err
		}
	case r.At != "":
		return fmt.Errorf("dev reset %s: moment %q is neither %s nor %s: %w", r.Name, r.At, ctl.DevRegistration,
			ctl.DevCompletion, syscall.EINVAL)
	default:
		away()
	}
	if r.Unreachable && r.Outage == 0 {
		go func() {
			if err := s.resetDevice(l); err != nil {
				s.log.Warn("dev reset", "err", err)
			}
		}()
		return nil
	}
	return s.resetDevice(l)
}

// resetDevice resets a link's device, and returns when the reset is complete.
func (s *Service) resetDevice(l *rdmaLink) error {
	s.log.Debug("device reset begins", "dev", l.spec.Name)
	began := time.Now()
	s.reportLoss(l, "being reset")
	err := l.slot.Reset(s.ended)
	s.links.reportDevice(l)
	s.log.Debug("device reset ends", "dev", l.spec.Name, "after", time.Since(began), "err", err)
	return err
}

// checkNotUnplugged returns an error if there is no device and no reset is in progress.
func (l *rdmaLink) checkNotUnplugged(doing string) error {
	if l.slot.Device() != nil || l.slot.Status().State == slot.Recovering {
		return nil
	}
	return fmt.Errorf("%s %s: it is not plugged in; `verbena dev plug %s` plugs it in: %w", doing, l.spec.Name,
		l.spec.Name, syscall.ENODEV)
}

// outage is the duration for which hardware does not answer.
type outage struct {
	mu  sync.Mutex
	end *time.Timer // nil if there is no outage, or an outage without an end
}

// begin makes the hardware unreachable for d. If d is 0, the outage lasts until the caller calls finish. The timer
// of an earlier outage does not end the new outage.
func (o *outage) begin(hw driver.Hardware, d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopLocked()
	hw.Disconnect()
	if d > 0 {
		o.end = time.AfterFunc(d, hw.Return)
	}
}

// finish makes the hardware reachable.
func (o *outage) finish(hw driver.Hardware) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopLocked()
	hw.Return()
}

func (o *outage) stopLocked() {
	if o.end != nil {
		o.end.Stop()
		o.end = nil
	}
}

// DevUnplug removes a device like a hot unplug, until DevPlug adds it again.
func (s *Service) DevUnplug(name string) error {
	l, err := s.links.findOrError(name)
	if err != nil {
		return err
	}
	if err := l.checkNotUnplugged("dev unplug"); err != nil {
		return err
	}
	s.reportLoss(l, "unplugged")
	err = l.slot.UnplugContext(s.ended)
	s.links.reportDevice(l)
	return err
}

// DevPlug plugs a device in again. If a reset is waiting for the hardware, DevPlug makes the hardware respond.
// DevPlug returns when the device is usable.
func (s *Service) DevPlug(name string) error {
	l, err := s.links.findOrError(name)
	if err != nil {
		return err
	}
	defer s.links.reportDevice(l)
	if l.hw.State() != driver.Unreachable {
		if l.slot.Device() == nil {
			return l.slot.Plug()
		}
		if l.hw.State() == driver.Hung {
			return fmt.Errorf("dev plug %s: it is plugged in, and hangs; `verbena dev reset %s` ends that: %w", name, name,
				syscall.EBUSY)
		}
		return fmt.Errorf("dev plug %s: it is plugged in already: %w", name, syscall.EBUSY)
	}
	before := l.slot.Status()
	l.outage.finish(l.hw)
	if before.State == slot.Empty {
		return l.slot.Plug()
	}
	ctx, cancel := context.WithTimeout(s.ended, s.requestTimeout)
	defer cancel()
	if err := l.slot.Settle(ctx); err != nil {
		return fmt.Errorf("dev plug: %w", err)
	}
	return l.slot.Status().Err
}

// hangDevice makes a device hang. The device then accepts work requests and executes none, until it is reset or
// plugged in again.
func (s *Service) hangDevice(name string) error {
	l, err := s.links.findOrError(name)
	if err != nil {
		return err
	}
	if err := l.checkNotUnplugged("dev hang"); err != nil {
		return err
	}
	if l.slot.Device() == nil || l.hw.State() == driver.Unreachable {
		return fmt.Errorf("dev hang %s: a reset is in progress: %w", name, syscall.EBUSY)
	}
	l.hw.Hang()
	s.reportLoss(l, "")
	return nil
}

// Devs describes the devices, and counts the contexts of the users for whom sees returns true.
func (s *Service) Devs(sees func(quota.ID) bool) []ctl.DevInfo {
	contexts, zombies := map[string]int{}, map[string]int{}
	for _, c := range s.uverbs.Resources() {
		if !sees(c.Owner) {
			continue
		}
		if c.Zombie {
			zombies[c.Device]++
		} else {
			contexts[c.Device]++
		}
	}
	files := map[string]*uverbs.Device{}
	for _, d := range s.uverbs.Devices() {
		files[d.IB().Name()] = d
	}
	list := []ctl.DevInfo{}
	for _, l := range s.links.all() {
		st := l.slot.Status()
		name := l.spec.Name
		info := ctl.DevInfo{
			Name: name, State: st.State.String(), Device: ib.DeviceGone.String(), Hardware: l.hw.State().String(),
			Contexts: contexts[name], Zombies: zombies[name], Resets: st.Resets, Plugs: st.Plugs,
			Recovery: st.Recovery, Armed: st.Armed,
		}
		if d := files[name]; d != nil {
			info.Driver, info.ABI = uint32(d.DriverID()), d.DriverABI()
		}
		if st.Err != nil {
			info.Error = st.Err.Error()
		}
		if d := l.slot.Device(); d != nil {
			info.Device = d.Handle().Device().State().String()
			if a, err := d.Handle().Device().QueryDevice(); err == nil {
				info.NodeGUID = fmt.Sprintf("%016x", a.NodeGUID)
			}
		}
		list = append(list, info)
	}
	return list
}
