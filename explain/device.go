package explain

import (
	"net/netip"
	"time"

	"verbena/internal/qpinfo"
)

// deviceFacts are the state of a device, and the last time at which it was lost.
type deviceFacts struct {
	DeviceState
	loss   string // "": it was never lost
	lostAt time.Time
	// The port was down from downAt to upAt because of down; upAt is zero while it is.
	down         string
	downAt, upAt time.Time
	messages     []ImpairedPackets // impaired messages of the connection manager, the oldest first; at most maxMessages
}

// wasDown reports whether the port was down at a time.
func (d *deviceFacts) wasDown(at time.Time) bool {
	return d != nil && d.down != "" && !at.Before(d.downAt) && (d.upAt.IsZero() || at.Before(d.upAt))
}

// DeviceState is the state of a device of this service.
type DeviceState struct {
	Name  string
	Addrs []netip.Addr
	// Down is the name of the device, or of its interface, while it is down; "" if the port is up.
	Down string
	// Lost describes the state in which the device does not work, such as "unplugged"; "" if it works.
	Lost  string
	Since time.Time // when the port went down, or the device was lost
	// Programs are the programs that have opened the device, if it is lost now.
	Programs []Program
}

// SetDevice reports the state of a device. A device that is lost, or removed, has no addresses. SetDevice keeps its
// former ones.
func (r *Recorder) SetDevice(s DeviceState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := &deviceFacts{DeviceState: s}
	if old := r.devices[s.Name]; old != nil {
		for _, a := range old.Addrs {
			if r.byAddr[a] == old {
				delete(r.byAddr, a)
			}
		}
		if s.Lost != "" && len(s.Addrs) == 0 {
			d.Addrs = old.Addrs
		}
		if s.Down == old.Down && s.Lost == old.Lost {
			d.Since = old.Since
		}
		d.loss, d.lostAt = old.loss, old.lostAt
		d.down, d.downAt, d.upAt, d.messages = old.down, old.downAt, old.upAt, old.messages
		if s.Down == "" && old.Down != "" {
			d.upAt = s.Since
		}
		if s.Lost != "" && s.Lost != old.Lost {
			d.loss, d.lostAt = s.Lost, s.Since
			r.deviceLost(d)
		}
	} else if len(r.devices) >= maxDevices {
		r.forgetDevice()
	}
	if d.Down != "" {
		d.down, d.downAt, d.upAt = d.Down, d.Since, time.Time{}
	}
	r.devices[s.Name] = d
	for _, a := range d.Addrs {
		r.byAddr[a] = d
	}
}

// Values of DeviceState.Lost.
const (
	Removed        = "removed"                  // the device no longer exists
	ServiceStopped = "stopped with the service" // the service is ending
)

// maxDevices is the number of devices from which on removed ones are discarded.
const maxDevices = 1024

// forgetDevice discards one removed device.
//
//verbena:held mu
func (r *Recorder) forgetDevice() {
	for name, d := range r.devices {
		if d.Lost == Removed {
			delete(r.devices, name)
			for _, a := range d.Addrs {
				if r.byAddr[a] == d {
					delete(r.byAddr, a)
				}
			}
			return
		}
	}
}

// deviceLost adds a cause for each program that has opened a device that is lost.
//
//verbena:held mu
func (r *Recorder) deviceLost(d *deviceFacts) {
	told := map[Program]bool{}
	for _, p := range d.Programs {
		if told[p] {
			continue
		}
		told[p] = true
		v := judge(lossRow("device-lost", d.loss), &values{device: d.Name, reason: d.loss, since: d.lostAt}, FaultRequester)
		r.add(p, qpinfo.Cause{
			Time: d.lostAt, Row: v.row.Name, What: "device " + d.Name + " lost", Why: v.why, Clause: v.clause, Fault: v.fault,
			Remedy: v.remedy, Since: v.since, Device: d.Name,
		}, nil)
	}
	d.Programs = nil
}
