package service

import (
	"fmt"
	"syscall"

	"verbena/driver/rxe"
)

// QPStatusInfo is the protocol state of a queue pair.
type QPStatusInfo struct {
	Device string `json:"device"`
	rxe.QPStatus
}

// QPTrace asks for the trace of a queue pair, which begins with the first such request.
type QPTrace struct {
	Dev string `json:",omitempty"` // may be left out where there is one device
	Num uint32
	End bool `json:",omitempty"` // end the trace
}

// QPTraceInfo is the answer.
type QPTraceInfo struct {
	Device string `json:"device"`
	Num    uint32 `json:"num"`
	Began  bool   `json:"began"` // by this request: there is nothing to see yet
	rxe.QPTrace
}

// QPs lists the queue pairs of a device, or of all.
func (s *Service) QPs(dev string) ([]QPStatusInfo, error) {
	links, err := s.named(dev)
	if err != nil {
		return nil, err
	}
	list := []QPStatusInfo{}
	for _, l := range links {
		d := s.latest(l)
		if d == nil {
			continue
		}
		for _, q := range d.QPStatuses() {
			list = append(list, QPStatusInfo{Device: l.spec.Name, QPStatus: q})
		}
	}
	return list, nil
}

// QPTrace returns the latest protocol events of a queue pair, and begins or ends its trace.
func (s *Service) QPTrace(r QPTrace) (QPTraceInfo, error) {
	links, err := s.named(r.Dev)
	if err != nil {
		return QPTraceInfo{}, err
	}
	if len(links) > 1 {
		return QPTraceInfo{}, fmt.Errorf("qp trace %d: there are %d devices: say which one (--dev): %w", r.Num, len(links), syscall.EINVAL)
	}
	if len(links) == 0 {
		return QPTraceInfo{}, fmt.Errorf("qp trace %d: there is no device: %w", r.Num, syscall.ENODEV)
	}
	l := links[0]
	d := s.latest(l)
	if d == nil {
		return QPTraceInfo{}, fmt.Errorf("qp trace %d: device %s is not there: %w", r.Num, l.spec.Name, syscall.ENODEV)
	}
	t, err := d.QPTrace(r.Num)
	if err == nil && t.On == r.End {
		err = d.TraceQP(r.Num, !r.End)
	}
	return QPTraceInfo{Device: l.spec.Name, Num: r.Num, Began: err == nil && !t.On && !r.End, QPTrace: t}, err
}

// latest returns a link's device, nil while it has none.
func (s *Service) latest(l *rxeLink) *rxe.Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.dev
}
