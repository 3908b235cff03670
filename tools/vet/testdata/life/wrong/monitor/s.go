// Package monitor starts a goroutine that Remove does not end, although Remove updates a map.
package monitor

import (
	"sync"
	"time"

	"verbena/ib"
)

type history struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func (h *history) record(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last[name] = time.Now()
}

func (h *history) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.last, name)
}

func watch(core *ib.Core) error {
	h := &history{last: map[string]time.Time{}}
	return core.RegisterClient(&ib.Client{
		Name: "watch",
		Add: func(d *ib.Device) (any, error) {
			go func() { // want "life: .* starts a goroutine that uses objects of the device"
				for range time.Tick(time.Second) {
					if _, err := d.QueryPort(1); err == nil {
						h.record(d.Name())
					}
				}
			}()
			return nil, nil
		},
		Remove: func(d *ib.Device, _ any) { h.forget(d.Name()) },
	})
}

// drain arms last, in a generic function.
func drain[S interface{ accept(*ib.WC) }](cq *ib.CQ, wcs []ib.WC, s S) {
	for {
		n, _ := cq.Poll(wcs)
		if n == 0 {
			break
		}
		for i := range wcs[:n] {
			s.accept(&wcs[i])
		}
	}
	cq.ReqNotify(ib.NotifyNextComp) // want "arm: .*drain.* arms a completion queue after its last poll"
}

type counter struct{ wcs [4]ib.WC }

func (c *counter) accept(*ib.WC) {}

func (c *counter) handle(cq *ib.CQ) { drain(cq, c.wcs[:], c) }

func open(d *ib.Device) (*ib.CQ, error) {
	c := &counter{}
	return d.CreateCQ(ib.CQInit{Entries: 4, Handler: c.handle})
}
