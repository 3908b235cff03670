package service

import (
	"fmt"
	"strings"
	"syscall"

	"verbena/ib"
	"verbena/internal/ctl"
	"verbena/uapi"
)

// subject is the kind of object that an event concerns.
type subject uint8

const (
	ofDevice subject = iota
	ofPort
	ofQP
	ofCQ
	ofSRQ
)

// devEvents lists the events that can be raised, in the order of enum ibv_event_type.
var devEvents = []struct {
	name string
	typ  ib.EventType
	of   subject
}{
	{"cq_err", uapi.EventCQErr, ofCQ},
	{"qp_fatal", uapi.EventQPFatal, ofQP},
	{"qp_req_err", uapi.EventQPReqErr, ofQP},
	{"qp_access_err", uapi.EventQPAccessErr, ofQP},
	{"comm_est", uapi.EventCommEst, ofQP},
	{"sq_drained", uapi.EventSQDrained, ofQP},
	{"path_mig", uapi.EventPathMig, ofQP},
	{"path_mig_err", uapi.EventPathMigErr, ofQP},
	{"device_fatal", uapi.EventDeviceFatal, ofDevice},
	{"port_active", uapi.EventPortActive, ofPort},
	{"port_err", uapi.EventPortErr, ofPort},
	{"lid_change", uapi.EventLIDChange, ofPort},
	{"pkey_change", uapi.EventPKeyChange, ofPort},
	{"sm_change", uapi.EventSMChange, ofPort},
	{"srq_err", uapi.EventSRQErr, ofSRQ},
	{"srq_limit_reached", uapi.EventSRQLimitReached, ofSRQ},
	{"qp_last_wqe_reached", uapi.EventQPLastWQEReached, ofQP},
	{"client_reregister", uapi.EventClientReregister, ofPort},
	{"gid_change", uapi.EventGIDChange, ofPort},
	{"device_speed_change", uapi.EventDeviceSpeedChange, ofPort},
}

// EventNames returns the names of the events that devEvent raises.
func EventNames() (names []string) {
	for _, e := range devEvents {
		names = append(names, e.name)
	}
	return names
}

// devEvent raises an asynchronous event in the same way as the driver, but without a cause.
func (s *Service) devEvent(r ctl.DevEvent) error {
	l, err := s.links.get(r.Name)
	if err != nil {
		return err
	}
	fail := func(format string, args ...any) error {
		return fmt.Errorf("dev event %s %s: %w", r.Name, ctl.Clip(r.Event), fmt.Errorf(format, args...))
	}
	name := strings.TrimPrefix(strings.ToLower(r.Event), "ibv_event_")
	i := 0
	for i < len(devEvents) && devEvents[i].name != name {
		i++
	}
	if i == len(devEvents) {
		return fail("there are %s: %w", strings.Join(EventNames(), ", "), syscall.EINVAL)
	}
	e := devEvents[i]
	given := map[subject]bool{ofPort: r.Port != 0, ofQP: r.QP != 0, ofCQ: r.CQ != 0, ofSRQ: r.SRQ != 0}
	for of, word := range map[subject]string{ofPort: "port", ofQP: "queue pair", ofCQ: "completion queue",
		ofSRQ: "shared receive queue"} {
		switch {
		case given[of] && e.of != of:
			return fail("the event does not concern a %s: %w", word, syscall.EINVAL)
		case !given[of] && e.of == of && of != ofPort:
			return fail("the number of the %s is missing: %w", word, syscall.EINVAL)
		}
	}
	if r.Port != 0 && r.Port != 1 {
		return fail("port %d: a device has port 1 only: %w", r.Port, syscall.EINVAL)
	}
	dev := l.hw.Device()
	if dev == nil || l.slot.Device() == nil {
		return fail("there is currently no device: %w", syscall.ENODEV)
	}
	switch e.of {
	case ofDevice:
		dev.Handle().DispatchEvent(e.typ, 0)
	case ofPort:
		dev.Handle().DispatchEvent(e.typ, 1)
	case ofQP:
		if !dev.RaiseQP(r.QP, e.typ) {
			return fail("no queue pair %d; `verbena qp show` lists them: %w", r.QP, syscall.ENOENT)
		}
	case ofCQ:
		if err := s.uverbs.WithCQ(dev.Handle().Device(), r.CQ, r.PID, func(cq *ib.CQ) {
			dev.RaiseCQ(cq, e.typ)
		}); err != nil {
			return fail("%w", err)
		}
	case ofSRQ:
		if err := s.uverbs.WithSRQ(dev.Handle().Device(), r.SRQ, r.PID, func(srq *ib.SRQ) {
			dev.RaiseSRQ(srq, e.typ)
		}); err != nil {
			return fail("%w", err)
		}
	}
	return nil
}
