package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"verbena/internal/queuedir"
	"verbena/internal/quota"
	"verbena/internal/shm"
)

// TestAbandonFailsDoorbells tests that each native doorbell fails after the end of the service, even if the queue
// files are damaged.
func TestAbandonFailsDoorbells(t *testing.T) {
	var programs, queues []*os.File
	for _, name := range []string{"a", "b"} {
		f, err := shm.Create(name, quota.RingBytes, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r, err := f.Alloc(1)
		if err != nil {
			t.Fatal(err)
		}
		r.Mem[0] = 1 // a file without queues
		program, scratch, err := f.OpenScratch()
		if err != nil {
			t.Fatal(err)
		}
		defer program.Close()
		defer scratch.Close()
		q, err := shm.OpenLink(fmt.Sprintf("/proc/self/fd/%d", program.Fd()), name)
		if err != nil {
			t.Fatal(err)
		}
		programs, queues = append(programs, program), append(queues, q)
	}
	if err := abandonQueueFiles(queues); !errors.Is(err, queuedir.ErrNotQueues) {
		t.Errorf("abandon: got %v, want ErrNotQueues", err)
	}
	for _, p := range programs {
		if _, err := p.Write(make([]byte, 32)); !errors.Is(err, syscall.EFBIG) {
			t.Errorf("%s: doorbell: got %v, want EFBIG", p.Name(), err)
		}
	}
}
