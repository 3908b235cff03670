package remote

import (
	"os"
	"syscall"
	"testing"

	"verbena/umem"
)

// TestSpaceDirect: what a client shares with the service is there for it to copy from; the rest of its memory is not.
func TestSpaceDirect(t *testing.T) {
	pages := func() []byte {
		b, err := syscall.Mmap(-1, 0, 1<<16, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_ANON)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Munmap(b) })
		return b
	}
	shared, own := pages(), pages()
	s := &space{windows: umem.NewLocal()}
	const addr = 0x5000_0000_0000 // of the client's mapping
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
			t.Errorf("%s: direct: got %t, want %t", c.name, got, c.want)
		}
	}
}
