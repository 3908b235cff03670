package hooks_slice

import (
	"fmt"
	"os"

	"verbena/ib"
)

type hooks struct {
	list []func(ib.EventType)
}

func (h *hooks) add(f func(ib.EventType)) { h.list = append(h.list, f) }

func (h *hooks) run(e ib.EventType) {
	for _, f := range h.list {
		f(e)
	}
}

func Make(pd *ib.PD) {
	h := &hooks{}
	h.add(func(e ib.EventType) {
		os.WriteFile("/var/log/events", []byte(fmt.Sprint(e)), 0o600) // want "nosleep: .*may sleep: it calls os.WriteFile"
	})
	pd.CreateQP(ib.QPInitAttr{Event: func(_ *ib.QP, e ib.EventType) { h.run(e) }})
}
