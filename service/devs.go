package service

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/ib/slot"
)

// DevReset asks for a reset of a device.
type DevReset struct {
	Name string `json:"name"`
	// Unreachable: the hardware does not answer, until the platform has reset it after Outage; 0: until DevPlug.
	Unreachable bool          `json:"unreachable,omitempty"`
	Outage      time.Duration `json:"outage,omitempty"`
	// AtWR, or At, is the moment of the reset; both zero: now.
	AtWR uint64    `json:"at_wr,omitempty"` // before the device carries out the AtWR-th send work request from now
	At   DevMoment `json:"at,omitempty"`
	// Cancel: no reset; moments of earlier requests that have not come are forgotten.
	Cancel bool `json:"cancel,omitempty"`
}

// DevMoment is a moment that a reset is to hit.
type DevMoment string

const (
	// DevRegistration: the device is reset now, and once more while the recovered one is being registered.
	DevRegistration DevMoment = "registration"
	// DevCompletion: when a completion handler of the device next begins.
	DevCompletion DevMoment = "completion"
)

// DevInfo describes a device, its hardware and its resets.
type DevInfo struct {
	Name     string `json:"name"`
	State    string `json:"state"`    // of the slot: running, recovering, unplugged
	Device   string `json:"device"`   // as consumers see it: active, in error, gone
	Hardware string `json:"hardware"` // running, hung, unreachable
	NodeGUID string `json:"node_guid,omitempty"`
	Contexts int    `json:"contexts"` // user contexts that can work
	Zombies  int    `json:"zombies"`  // user contexts of devices that were there before
	Resets   int    `json:"resets"`
	Plugs    int    `json:"plugs"`
	// Recovery is how long the last reset took, from the fatal event until the device could be used again.
	Recovery time.Duration `json:"recovery_ns"`
	Armed    string        `json:"armed,omitempty"` // the moments that a reset waits for
	Error    string        `json:"error,omitempty"` // why the last recovery failed
}

// link finds a link that a program may rely on to stay as it is configured from now on.
func (s *Service) devLink(name string) (*rxeLink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.find(name)
	if l == nil {
		return nil, s.noLink(name)
	}
	s.configured = true
	return l, nil
}

// DevReset takes a device through a reset, and returns when the recovered one can be used; with a moment, or hardware
// that is unreachable without end, at once. User contexts of the device become zombies. EBUSY while the hardware does not
// answer.
func (s *Service) DevReset(r DevReset) error {
	l, err := s.devLink(r.Name)
	if err != nil {
		return err
	}
	if r.Outage < 0 || r.AtWR != 0 && r.At != "" {
		return fmt.Errorf("dev reset %s: one moment at most, and no negative time: %w", r.Name, syscall.EINVAL)
	}
	if r.Cancel {
		l.slot.Disarm()
		return nil
	}
	if l.slot.Status().State == slot.Recovering && l.hw.State() == rxe.HardwareUnreachable {
		return fmt.Errorf("dev reset %s: a reset waits for its hardware, which does not answer; `verbena dev plug %s` has it answer: %w",
			r.Name, r.Name, syscall.EBUSY)
	}
	if err := l.plugged("dev reset"); err != nil {
		return err
	}
	away := func() {
		if r.Unreachable {
			l.outage.begin(l.hw, r.Outage)
		}
	}
	switch {
	case r.AtWR != 0:
		return l.slot.ResetAt(slot.AtWorkRequest(r.AtWR), away)
	case r.At == DevCompletion:
		return l.slot.ResetAt(slot.InHandler, away)
	case r.At == DevRegistration:
		if err := l.slot.ResetAt(slot.DuringRegistration, away); err != nil {
			return err
		}
	case r.At != "":
		return fmt.Errorf("dev reset %s: no moment %q: it is %s or %s: %w", r.Name, r.At, DevRegistration, DevCompletion, syscall.EINVAL)
	default:
		away()
	}
	if r.Unreachable && r.Outage == 0 {
		go func() {
			if err := s.reset(l); err != nil {
				s.log.Warn("dev reset", "err", err)
			}
		}()
		return nil
	}
	return s.reset(l)
}

// reset takes a link's device through a reset, and returns when that is over.
func (s *Service) reset(l *rxeLink) error {
	s.log.Debug("device reset begins", "dev", l.spec.Name)
	began := time.Now()
	err := l.slot.Reset(s.ended)
	s.log.Debug("device reset ends", "dev", l.spec.Name, "after", time.Since(began), "err", err)
	return err
}

// plugged is nil if there is a device, or will be when what is going on is over.
func (l *rxeLink) plugged(doing string) error {
	if l.slot.Device() != nil || l.slot.Status().State == slot.Recovering {
		return nil
	}
	return fmt.Errorf("%s %s: it is not plugged in; `verbena dev plug %s` plugs it in: %w", doing, l.spec.Name, l.spec.Name, syscall.ENODEV)
}

// outage is the time for which hardware does not answer.
type outage struct {
	mu  sync.Mutex
	end *time.Timer // nil: none, or without end
}

// begin has the hardware not answer for d; 0: until somebody has it return. An earlier outage no longer ends this one.
func (o *outage) begin(hw *rxe.Hardware, d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopLocked()
	hw.Disconnect()
	if d > 0 {
		o.end = time.AfterFunc(d, hw.Return)
	}
}

// over has the hardware answer.
func (o *outage) over(hw *rxe.Hardware) {
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

// DevUnplug takes a device away as if it had been pulled out, until DevPlug.
func (s *Service) DevUnplug(name string) error {
	l, err := s.devLink(name)
	if err != nil {
		return err
	}
	if err := l.plugged("dev unplug"); err != nil {
		return err
	}
	return l.slot.Unplug()
}

// DevPlug plugs a device in again; where a reset waits for the hardware, that answers now, and DevPlug returns when the
// device can be used.
func (s *Service) DevPlug(name string) error {
	l, err := s.devLink(name)
	if err != nil {
		return err
	}
	if l.hw.State() != rxe.HardwareUnreachable {
		if l.slot.Device() == nil {
			return l.slot.Plug()
		}
		if l.hw.State() == rxe.HardwareHung {
			return fmt.Errorf("dev plug %s: it is plugged in, and hangs; `verbena dev reset %s` has it work again: %w", name, name, syscall.EBUSY)
		}
		return fmt.Errorf("dev plug %s: it is plugged in already: %w", name, syscall.EBUSY)
	}
	before := l.slot.Status()
	l.outage.over(l.hw)
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

// DevHang has a device stop: it takes work requests, and carries none out, until it is reset or plugged in anew.
func (s *Service) DevHang(name string) error {
	l, err := s.devLink(name)
	if err != nil {
		return err
	}
	if err := l.plugged("dev hang"); err != nil {
		return err
	}
	if l.slot.Device() == nil || l.hw.State() == rxe.HardwareUnreachable {
		return fmt.Errorf("dev hang %s: a reset of it is going on: %w", name, syscall.EBUSY)
	}
	l.hw.Hang()
	return nil
}

// Devs describes the devices, and counts the contexts of those users that sees is true of.
func (s *Service) Devs(sees func(uid int) bool) []DevInfo {
	contexts, zombies := map[string]int{}, map[string]int{}
	for _, c := range s.uverbs.Resources() {
		if !sees(c.UID) {
			continue
		}
		if c.Zombie {
			zombies[c.Device]++
		} else {
			contexts[c.Device]++
		}
	}
	list := []DevInfo{}
	for _, l := range s.all() {
		st := l.slot.Status()
		name := l.spec.Name
		info := DevInfo{
			Name: name, State: st.State.String(), Device: ib.DeviceGone.String(), Hardware: l.hw.State().String(),
			Contexts: contexts[name], Zombies: zombies[name], Resets: st.Resets, Plugs: st.Plugs,
			Recovery: st.Recovery, Armed: st.Armed,
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
