package memfault

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"testing"
)

// TestSurvive tests that an access to removed memory returns, and that other panics pass.
func TestSurvive(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, err := syscall.Mmap(int(f.Fd()), 0, os.Getpagesize(), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(mem)
	read := func(mem []byte) (ok bool) {
		defer Survive(debug.SetPanicOnFault(true))
		return mem[0] == 0
	}
	if read(mem) {
		t.Error("memory beyond the file: got a byte, want none")
	}
	if debug.SetPanicOnFault(false) {
		t.Error("after the access: faults still panic")
	}
	defer func() {
		if recover() == nil {
			t.Error("index out of range: got no panic, want one")
		}
	}()
	read(nil)
}
