// Package survivor starts goroutines that remain after Remove.
package survivor

import (
	"time"

	"verbena/ib"
)

// Watch has a goroutine that queries the device for ever.
func Watch() *ib.Client {
	return &ib.Client{
		Name: "watch",
		Add: func(d *ib.Device) (any, error) {
			go func() { // want "life: .* starts a goroutine that uses objects of the device, and Remove neither ends nor awaits it"
				for {
					_, _ = d.QueryPort(1)
					time.Sleep(time.Second)
				}
			}()
			return nil, nil
		},
		Remove: func(*ib.Device, any) {},
	}
}

type poller struct {
	cq *ib.CQ
	wc [1]ib.WC
}

func (p *poller) run() {
	for range time.Tick(time.Millisecond) {
		p.poll()
	}
}

func (p *poller) poll() { _, _ = p.cq.Poll(p.wc[:]) }

func (p *poller) start() { go p.run() } // want "life: .* starts a goroutine"

func add(d *ib.Device) (any, error) {
	cq, err := d.CreateCQ(ib.CQInit{})
	if err != nil {
		return nil, err
	}
	p := &poller{cq: cq}
	p.start()
	return p, nil
}

func remove(_ *ib.Device, data any) { _ = data.(*poller).cq.Destroy() }

// Client polls on a goroutine that it starts in a helper.
func Client() *ib.Client { return &ib.Client{Name: "poller", Add: add, Remove: remove} }

type driver struct {
	qp   *ib.QP
	jobs chan ib.SendWR
}

func (s *driver) serve() {
	for wr := range s.jobs {
		_, _ = s.qp.PostSend(wr)
	}
}

type table struct{ all []*driver }

func (t *table) Add(d *ib.Device) (any, error) {
	s := &driver{jobs: make(chan ib.SendWR, 8)}
	pd, err := d.AllocPD()
	if err != nil {
		return nil, err
	}
	if s.qp, err = pd.CreateQP(ib.QPInitAttr{}); err != nil {
		return nil, err
	}
	go s.serve() // want "life: .* starts a goroutine"
	t.all = append(t.all, s)
	return s, nil
}

func (t *table) Remove(_ *ib.Device, data any) {
	s := data.(*driver)
	pd := s.qp.PD()
	_ = s.qp.Destroy()
	_ = pd.Dealloc()
}

// Register has methods as functions.
func Register(c *ib.Core) error {
	t := &table{}
	return c.RegisterClient(&ib.Client{Name: "table", Add: t.Add, Remove: t.Remove})
}
