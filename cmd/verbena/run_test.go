package main

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"verbena/driver/rxe/ring"
	"verbena/internal/shm"
)

// TestAbandonBarsDoorbells: once the service has ended no native doorbell succeeds, whatever else is wrong with the queue files.
func TestAbandonBarsDoorbells(t *testing.T) {
	path, err := os.MkdirTemp("/dev/shm", "verbena-abandon-test-")
	if err != nil {
		t.Skipf("no /dev/shm: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	var programs, queues []*os.File
	for _, name := range []string{"a", "b"} {
		f, err := shm.Create(dir, name, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		program, scratch, err := f.OpenScratch()
		if err != nil {
			t.Fatal(err)
		}
		defer program.Close()
		defer scratch.Close()
		q, err := os.OpenFile(f.Path(), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		programs, queues = append(programs, program), append(queues, q)
	}
	if err := abandon(queues); !errors.Is(err, ring.ErrNotQueues) {
		t.Errorf("abandon: got %v, want ErrNotQueues", err)
	}
	for _, p := range programs {
		if _, err := p.Write(make([]byte, 32)); !errors.Is(err, syscall.EFBIG) {
			t.Errorf("%s: doorbell: got %v, want EFBIG", p.Name(), err)
		}
	}
}
