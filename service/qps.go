package service

import (
	"fmt"
	"syscall"

	"verbena/driver/rxe"
	"verbena/internal/ctl"
	"verbena/roce"
)

// QPs lists the queue pairs of a device, or of all, but for the one of general services, which is the connection manager's.
func (s *Service) QPs(dev string) ([]ctl.QPStatusInfo, error) {
	links, err := s.named(dev)
	if err != nil {
		return nil, err
	}
	list := []ctl.QPStatusInfo{}
	for _, l := range links {
		d := s.latest(l)
		if d == nil {
			continue
		}
		for _, q := range d.QPStatuses() {
			if q.Num == roce.QPNGSI {
				continue
			}
			list = append(list, ctl.QPStatusInfo{Device: l.spec.Name, QPStatus: ctl.QPStatus(q)})
		}
	}
	return list, nil
}

// QPTrace returns the latest protocol events of a queue pair, and begins or ends its trace.
func (s *Service) QPTrace(r ctl.QPTrace) (ctl.QPTraceInfo, error) {
	links, err := s.named(r.Dev)
	if err != nil {
		return ctl.QPTraceInfo{}, err
	}
	if len(links) > 1 {
		return ctl.QPTraceInfo{}, fmt.Errorf("qp trace %d: there are %d devices: say which one (--dev): %w", r.Num, len(links), syscall.EINVAL)
	}
	if len(links) == 0 {
		return ctl.QPTraceInfo{}, fmt.Errorf("qp trace %d: there is no device: %w", r.Num, syscall.ENODEV)
	}
	l := links[0]
	d := s.latest(l)
	if d == nil {
		return ctl.QPTraceInfo{}, fmt.Errorf("qp trace %d: device %s is not there: %w", r.Num, l.spec.Name, syscall.ENODEV)
	}
	t, err := d.QPTrace(r.Num)
	if err == nil && t.On == r.End {
		err = d.TraceQP(r.Num, !r.End)
	}
	info := ctl.QPTraceInfo{Device: l.spec.Name, Num: r.Num, Began: err == nil && !t.On && !r.End, On: t.On, Lost: t.Lost,
		Events: []ctl.TraceEvent{}}
	for _, e := range t.Events {
		info.Events = append(info.Events, ctl.TraceEvent(e))
	}
	return info, err
}

// latest returns a link's device, nil while it has none.
func (s *Service) latest(l *rxeLink) *rxe.Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.dev
}
