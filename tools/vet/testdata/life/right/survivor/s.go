// Package survivor ends its goroutines in Remove, or needs no end.
package survivor

import (
	"context"
	"sync"
	"time"

	"verbena/ib"
)

type watch struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup
}

// Watch cancels a context and waits.
func Watch() *ib.Client {
	return &ib.Client{
		Name: "watch",
		Add: func(d *ib.Device) (any, error) {
			ctx, cancel := context.WithCancel(context.Background())
			w := &watch{cancel: cancel}
			w.ended.Go(func() {
				for ctx.Err() == nil {
					_, _ = d.QueryPort(1)
					time.Sleep(time.Second)
				}
			})
			return w, nil
		},
		Remove: func(_ *ib.Device, data any) {
			data.(*watch).cancel()
			data.(*watch).ended.Wait()
		},
	}
}

type poller struct {
	cq   *ib.CQ
	mu   sync.Mutex
	over bool
	wc   [1]ib.WC
}

func (p *poller) run() {
	for range time.Tick(time.Millisecond) {
		if p.poll() {
			return
		}
	}
}

func (p *poller) poll() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return true
	}
	_, _ = p.cq.Poll(p.wc[:])
	return false
}

func (p *poller) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
}

func add(d *ib.Device) (any, error) {
	cq, err := d.CreateCQ(ib.CQInit{})
	if err != nil {
		return nil, err
	}
	p := &poller{cq: cq}
	go p.run()
	return p, nil
}

func remove(_ *ib.Device, data any) {
	data.(*poller).stop()
	_ = data.(*poller).cq.Destroy()
}

// Client sets a flag that the goroutine reads under a mutex.
func Client() *ib.Client { return &ib.Client{Name: "poller", Add: add, Remove: remove} }

// Count has a goroutine that uses no object.
func Count(n chan string) *ib.Client {
	names := make(chan string, 8)
	return &ib.Client{
		Name: "count",
		Add: func(d *ib.Device) (any, error) {
			go func() {
				for s := range names {
					n <- s
				}
			}()
			return nil, nil
		},
		Remove: func(*ib.Device, any) {},
	}
}
