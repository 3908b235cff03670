// Package orphan completes the work requests of programs after the death of their service.
package orphan

import (
	"os"

	efa "verbena/driver/efa/ring"
	rxe "verbena/driver/rxe/ring"
	"verbena/internal/queuedir"
)

// Flush completes all outstanding work requests in a file of queues, of any driver, with a flush error. See
// queuedir.Abandon for the requirements and the errors.
func Flush(f *os.File) error { return queuedir.Abandon(f, kinds) }

var kinds = map[queuedir.Kind]queuedir.Flush{queuedir.RXE: rxe.Flush, queuedir.EFA: efa.Flush}
