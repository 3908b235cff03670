package service

import (
	"fmt"
	"syscall"

	"verbena/internal/ctl"
	"verbena/internal/qpinfo"
	"verbena/roce"
)

// listQPs lists the queue pairs of a device, or of all devices. listQPs omits the general services queue pair (QP 1),
// which belongs to the connection manager.
func (s *Service) listQPs(dev string) ([]ctl.QPStatusInfo, error) {
	links, err := s.links.linksNamed(dev)
	if err != nil {
		return nil, err
	}
	list := []ctl.QPStatusInfo{}
	for _, l := range links {
		d := s.links.currentDevice(l)
		if d == nil {
			continue
		}
		for _, q := range d.QPStatuses() {
			if q.Num == roce.QPNGSI {
				continue
			}
			list = append(list, ctl.QPStatusInfo{Device: l.spec.Name, Status: q})
		}
	}
	return list, nil
}

// traceQP returns the latest protocol events of a queue pair, and starts or stops the recording of events.
func (s *Service) traceQP(r ctl.QPTrace) (ctl.QPTraceInfo, error) {
	links, err := s.links.linksNamed(r.Dev)
	if err != nil {
		return ctl.QPTraceInfo{}, err
	}
	if len(links) > 1 {
		return ctl.QPTraceInfo{}, fmt.Errorf("qp trace %d: there are %d devices: choose one with --dev: %w", r.Num,
			len(links), syscall.EINVAL)
	}
	if len(links) == 0 {
		return ctl.QPTraceInfo{}, fmt.Errorf("qp trace %d: no device: %w", r.Num, syscall.ENODEV)
	}
	l := links[0]
	d := s.links.currentDevice(l)
	if d == nil {
		return ctl.QPTraceInfo{}, fmt.Errorf("qp trace %d: device %s is unplugged: %w", r.Num, l.spec.Name, syscall.ENODEV)
	}
	t, err := d.QPTrace(r.Num)
	if err == nil && t.On == r.End {
		err = d.TraceQP(r.Num, !r.End)
	}
	began := err == nil && !t.On && !r.End
	if t.Events == nil { // after an error the list is nil, but JSON needs a list
		t.Events = []qpinfo.Event{}
	}
	return ctl.QPTraceInfo{Device: l.spec.Name, Num: r.Num, Began: began, Trace: t}, err
}
