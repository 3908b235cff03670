package awaited_group

import (
	"golang.org/x/sync/errgroup"

	"verbena/ib"
)

type awaiter interface{ Wait() error }

func all(fs ...func() error) awaiter {
	var g errgroup.Group
	for _, f := range fs {
		g.Go(f)
	}
	return &g
}

func handler(cq *ib.CQ) {
	a := all(func() error { return nil })
	_ = a.Wait() // want "nosleep: .*may sleep: it calls .*errgroup.Group.*Wait"
}

func Make(d *ib.Device) { d.CreateCQ(ib.CQInit{Handler: handler}) }
