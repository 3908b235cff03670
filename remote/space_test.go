package remote

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"verbena/umem"
)

// TestOnlySharedMemoryIsDirect checks that the service can access a client's shared memory directly, but not the rest
// of the client's memory.
func TestOnlySharedMemoryIsDirect(t *testing.T) {
	pages := func() []byte {
		b, err := syscall.Mmap(-1, 0, 1<<16, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_ANON)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Munmap(b) })
		return b
	}
	shared, own := pages(), pages()
	s := &clientSpace{windows: umem.NewLocal()}
	const addr = 0x5000_0000_0000 // address of the client's mapping
	if err := s.windows.AddAt(addr, shared); err != nil {
		t.Fatal(err)
	}
	p, err := umem.OpenProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s.process.Store(p)
	at, err := umem.NewLocal().Add(own)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		addr uint64
		want bool
	}{{"shared", addr, true}, {"its own", at, false}} {
		r, err := umem.Get(s, nil, c.addr, 1<<16, c.addr, true)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Direct(c.addr, 1<<16) != nil; got != c.want {
			t.Errorf("Direct %s: got %t, want %t", c.name, got, c.want)
		}
	}
}

// TestSpaceCheckLimitsMemory tests the limits of the memory that commands can address. These are the shared buffers
// and, once passed to the service, the process's own memory with the access rights of its mappings.
func TestSpaceCheckLimitsMemory(t *testing.T) {
	page := uint64(umem.PageSize)
	pages := func(prot int) uint64 { // three pages, of which the outer two are inaccessible
		b, err := syscall.Mmap(-1, 0, int(3*page), syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Munmap(b) })
		if err := syscall.Mprotect(b[page:2*page], prot); err != nil {
			t.Fatal(err)
		}
		at, err := umem.NewLocal().Add(b)
		if err != nil {
			t.Fatal(err)
		}
		return at + page
	}
	s := &clientSpace{windows: umem.NewLocal()}
	const shared = 0x5000_0000_0000
	if err := s.windows.AddAt(shared, make([]byte, page)); err != nil {
		t.Fatal(err)
	}
	own, constant := pages(syscall.PROT_READ|syscall.PROT_WRITE), pages(syscall.PROT_READ)
	p, err := umem.OpenProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, handed := range []bool{false, true} {
		if handed {
			s.process.Store(p)
		}
		for _, tt := range []struct {
			name         string
			addr, length uint64
			write        bool
			want         bool
		}{
			{"the whole buffer", shared, page, true, true},
			{"the end of the buffer", shared + page - 1, 1, true, true},
			{"beyond the end of the buffer", shared + page - 1, 2, true, false},
			{"behind the buffer", shared + page, 1, false, false},
			{"before the buffer", shared - 1, 1, false, false},
			{"the whole page", own, page, true, handed},
			{"the end of the page", own + page - 1, 1, true, handed},
			{"beyond the end of the page", own + page - 1, 2, true, false},
			{"before the page", own - 1, 2, false, false},
			{"read a constant", constant, page, false, handed},
			{"write a constant", constant, page, true, false},
			{"across the end of the address space", -page, 2 * page, false, false},
		} {
			err := s.Check(tt.addr, tt.length, tt.write)
			refused := errors.Is(err, umem.ErrFault) || errors.Is(err, umem.ErrRange)
			if (err == nil) != tt.want || refused == tt.want {
				t.Errorf("passed memory %v: %s: got %v, want success %v, or ErrFault or ErrRange", handed, tt.name, err, tt.want)
			}
		}
	}
}
