// Command counter increments a number in registered memory from several goroutines, with FETCH_ADD over connected
// queue pairs. The command uses the first RDMA device of the kernel or of its service, or with -embedded a software
// device in this process.
//
//	verbena run --private -- counter
//	counter -embedded
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"sync"

	"verbena/verbs"
	"verbena/verbs/embed"
)

func main() {
	log.SetFlags(0)
	embedded := flag.Bool("embedded", false, "use a software device in this process")
	flag.Parse()
	open := func() (*verbs.Device, error) { return verbs.Open("") }
	if *embedded {
		open = newEmbeddedDevice
	}
	dev, err := open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	n, err := runCounter(dev, 4, 1000)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s counted to %d\n", dev.Name(), n)
}

// runCounter starts goroutines that add 1 to a counter, times times each, and returns the final value.
func runCounter(dev *verbs.Device, goroutines, times int) (uint64, error) {
	pd, err := dev.AllocPD()
	if err != nil {
		return 0, err
	}
	number, err := pd.Alloc(8, verbs.LocalWrite|verbs.RemoteAtomic)
	if err != nil {
		return 0, err
	}
	var wg sync.WaitGroup
	errs := make([]error, goroutines)
	for i := range goroutines {
		wg.Go(func() { errs[i] = addRemotely(pd, number, times) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return binary.NativeEndian.Uint64(number.Bytes()), nil
}

// addRemotely adds 1 to the counter, over a queue pair that is connected to itself.
func addRemotely(pd *verbs.PD, number *verbs.MR, times int) error {
	cq, err := pd.Device().CreateCQ(16, nil)
	if err != nil {
		return err
	}
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq})
	if err != nil {
		return err
	}
	here, err := qp.Local()
	if err != nil {
		return err
	}
	if err := qp.Connect(here); err != nil {
		return err
	}
	before, err := pd.Alloc(8, verbs.LocalWrite)
	if err != nil {
		return err
	}
	wr := verbs.SendWR{Opcode: verbs.FetchAdd, Flags: verbs.Signaled, Local: before.SGE(0, 8), CompareAdd: 1,
		Remote: number.Remote(0)}
	var wc [1]verbs.WC
	for range times {
		if err := qp.PostSend(&wr); err != nil {
			return err
		}
		if _, err := cq.Wait(context.Background(), wc[:]); err != nil {
			return err
		}
		if err := verbs.CompletionError(&wc[0]); err != nil {
			return err
		}
	}
	return nil
}

// newEmbeddedDevice returns a software device, which exists until the process ends.
func newEmbeddedDevice() (*verbs.Device, error) {
	stack, err := embed.NewSoftware()
	if err != nil {
		return nil, err
	}
	return stack.Open("")
}
