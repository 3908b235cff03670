// Package helper_package: sleeping functions of ib/completion and ib/attach are reported at their callers, and an
// embedded lock has the name of its struct.
package helper_package

import (
	"context"
	"sync"

	"verbena/ib"
	"verbena/ib/attach"
	"verbena/ib/completion"
)

type session struct{ qp *completion.QP }

func open(d *ib.Device, pd *ib.PD) error {
	cq, err := completion.New(d, completion.Init{Entries: 4, Context: completion.Callback})
	if err != nil {
		return err
	}
	s := &session{}
	if s.qp, err = cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC}); err != nil {
		return err
	}
	return s.qp.PostSend(ib.SendWR{Opcode: ib.WRSend}, s.done)
}

func (s *session) done(wc *ib.WC) {
	if wc.Status == ib.WCSuccess {
		return
	}
	if wc.ID == 1 {
		_ = s.qp.Drain(context.Background()) // want "nosleep: .*done.* may sleep: it calls .*completion.QP..Drain"
	}
	s.end()
}

func (s *session) end() {
	_ = s.qp.Close(context.Background()) // want "nosleep: .*done.* may sleep: it calls .*completion.QP..Close"
}

func watch(d *ib.Device, a *attach.Attachment[*ib.QP]) func() {
	return d.OnEvent(func(ib.Event) {
		_, _ = a.Acquire(context.Background()) // want "nosleep: .* may sleep: it calls .*Acquire"
	})
}

type registry struct {
	sync.Mutex
	client *ib.Client
	core   *ib.Core
}

func newRegistry(core *ib.Core) *registry {
	r := &registry{core: core}
	r.client = &ib.Client{Name: "registry", Add: r.add, Remove: r.remove}
	return r
}

func (r *registry) add(*ib.Device) (any, error) {
	r.Lock()
	defer r.Unlock()
	return nil, nil
}

func (r *registry) remove(*ib.Device, any) {}

func (r *registry) close() {
	r.Lock()
	defer r.Unlock()
	r.core.UnregisterClient(r.client) // want "hotplug: .*registry.Mutex held(.|\n)* locks helper_package.registry.Mutex"
}
