package service

import (
	"fmt"
	"strings"
	"syscall"

	"verbena/ib"
	"verbena/internal/ctl"
	"verbena/uapi"
)

// eventSubject is the kind of object that an event concerns.
type eventSubject uint8

const (
	subjectDevice eventSubject = iota
	subjectPort
	subjectQP
	subjectCQ
	subjectSRQ
)

// devEvents lists the events that can be raised, in the order of enum ibv_event_type.
var devEvents = []struct {
	name string
	typ  ib.EventType
	of   eventSubject
}{
	{"cq_err", uapi.EventCQErr, subjectCQ},
	{"qp_fatal", uapi.EventQPFatal, subjectQP},
	{"qp_req_err", uapi.EventQPReqErr, subjectQP},
	{"qp_access_err", uapi.EventQPAccessErr, subjectQP},
	{"comm_est", uapi.EventCommEst, subjectQP},
	{"sq_drained", uapi.EventSQDrained, subjectQP},
	{"path_mig", uapi.EventPathMig, subjectQP},
	{"path_mig_err", uapi.EventPathMigErr, subjectQP},
	{"device_fatal", uapi.EventDeviceFatal, subjectDevice},
	{"port_active", uapi.EventPortActive, subjectPort},
	{"port_err", uapi.EventPortErr, subjectPort},
	{"lid_change", uapi.EventLIDChange, subjectPort},
	{"pkey_change", uapi.EventPKeyChange, subjectPort},
	{"sm_change", uapi.EventSMChange, subjectPort},
	{"srq_err", uapi.EventSRQErr, subjectSRQ},
	{"srq_limit_reached", uapi.EventSRQLimitReached, subjectSRQ},
	{"qp_last_wqe_reached", uapi.EventQPLastWQEReached, subjectQP},
	{"client_reregister", uapi.EventClientReregister, subjectPort},
	{"gid_change", uapi.EventGIDChange, subjectPort},
	{"device_speed_change", uapi.EventDeviceSpeedChange, subjectDevice},
}

// EventNames returns the names of the events that raiseDevEvent raises.
func EventNames() (names []string) {
	for _, e := range devEvents {
		names = append(names, e.name)
	}
	return names
}

// raiseDevEvent raises an asynchronous event in the same way as the driver, but without a cause.
func (s *Service) raiseDevEvent(r ctl.DevEvent) error {
	l, err := s.links.findOrError(r.Name)
	if err != nil {
		return err
	}
	fail := func(format string, args ...any) error {
		return fmt.Errorf("dev event %s %s: %w", r.Name, ctl.ClipText(r.Event), fmt.Errorf(format, args...))
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
	given := map[eventSubject]bool{subjectPort: r.Port != 0, subjectQP: r.QP != 0, subjectCQ: r.CQ != 0,
		subjectSRQ: r.SRQ != 0}
	for of, word := range map[eventSubject]string{subjectPort: "port", subjectQP: "queue pair",
		subjectCQ:  "completion queue",
		subjectSRQ: "shared receive queue"} {
		switch {
		case given[of] && e.of != of:
			return fail("the event does not concern a %s: %w", word, syscall.EINVAL)
		case !given[of] && e.of == of && of != subjectPort:
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
	case subjectDevice:
		dev.Handle().DispatchEvent(e.typ, 0)
	case subjectPort:
		dev.Handle().DispatchEvent(e.typ, 1)
	case subjectQP:
		if !dev.RaiseQP(r.QP, e.typ) {
			return fail("no queue pair %d; `verbena qp show` lists them: %w", r.QP, syscall.ENOENT)
		}
	case subjectCQ:
		if err := s.uverbs.WithCQ(dev.Handle().Device(), r.CQ, r.PID, func(cq *ib.CQ) {
			dev.RaiseCQ(cq, e.typ)
		}); err != nil {
			return fail("%w", err)
		}
	case subjectSRQ:
		if err := s.uverbs.WithSRQ(dev.Handle().Device(), r.SRQ, r.PID, func(srq *ib.SRQ) {
			dev.RaiseSRQ(srq, e.typ)
		}); err != nil {
			return fail("%w", err)
		}
	}
	return nil
}
