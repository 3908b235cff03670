package deferred_wait

import (
	"sync"
	"syscall"

	"verbena/ib"
)

type srq struct {
	ib.DriverSRQ
	busy sync.WaitGroup
}

func (s *srq) quiesce() { s.busy.Wait() } // want "nosleep: .*may sleep: it calls .*sync.WaitGroup.*Wait"

func (s *srq) PostRecv(wrs []ib.RecvWR) (n int, err error) {
	defer func() {
		if err != nil {
			defer s.quiesce()
		}
	}()
	return len(wrs), syscall.ENOMEM
}
