package right

import (
	"testing"
	"time"

	"verbena/ib"
)

func handleWithCapacity(d *ib.Device, n int) (*ib.CQ, error) {
	done, all := make(chan int, 1), make(chan int, n)
	return d.CreateCQ(ib.CQInit{Entries: 4, Handler: func(cq *ib.CQ) {
		for began := time.Now(); time.Since(began) < time.Millisecond; {
		}
		done <- 1
		all <- 2
	}})
}

func TestNothing(t *testing.T) { _, _ = handleWithCapacity(nil, 4) }
