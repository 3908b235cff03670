package prints

import (
	"fmt"

	"verbena/ib"
)

// Open makes a queue whose handler prints.
func Open(dev *ib.Device) (*ib.CQ, error) {
	return dev.CreateCQ(ib.CQInit{Entries: 1, Handler: func(cq *ib.CQ) {
		fmt.Println("completed") // want "nosleep: .*ib.CQInit.Handler.* may sleep: it calls fmt.Println"
	}})
}
