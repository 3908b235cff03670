package queuedir

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"verbena/uapi"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// process is a file that a service and its process share.
type process struct {
	t     testing.TB
	file  *os.File
	end   int
	freed int
}

func newProcess(t testing.TB) *process {
	f, err := os.Create(filepath.Join(t.TempDir(), "queues"))
	check(t, err)
	t.Cleanup(func() { f.Close() })
	return &process{t: t, file: f}
}

// alloc implements Alloc.
func (p *process) alloc(size int) (Memory, error) {
	at := p.end
	p.end += size
	check(p.t, syscall.Fallocate(int(p.file.Fd()), 0, int64(at), int64(size)))
	m, err := syscall.Mmap(int(p.file.Fd()), int64(at), size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	check(p.t, err)
	p.t.Cleanup(func() { check(p.t, syscall.Munmap(m)) })
	return Memory{Mem: m, Offset: uint64(at), Free: func() { p.freed++ }}, nil
}

// found returns the numbers of the queue pairs that Abandon finds.
func (p *process) found(kind Kind) (all []uint32, err error) {
	err = Abandon(p.file, map[Kind]Flush{kind: func(_ *File, e *Entry) { all = append(all, e.QPN) }})
	slices.Sort(all)
	return all, err
}

// TestDirectory adds, changes and removes entries on several pages.
func TestDirectory(t *testing.T) {
	p := newProcess(t)
	d, err := New(EFA, p.alloc)
	check(t, err)
	if got := d.pages[0].Offset; got != 0 {
		t.Fatalf("first page: got offset %d, want 0", got)
	}
	listed := map[uint32]int{}
	used := map[int]bool{}
	add := func(qpn uint32) {
		t.Helper()
		i, err := d.Add(Entry{QPN: qpn})
		check(t, err)
		if used[i] {
			t.Fatalf("Add: got index %d, which is in use", i)
		}
		listed[qpn], used[i] = i, true
	}
	remove := func(qpn uint32) {
		d.Remove(listed[qpn])
		delete(used, listed[qpn])
		delete(listed, qpn)
	}
	want := func(after string) {
		t.Helper()
		_, err := p.alloc(1 << 20) // memory of queues, which limits the number of queue pairs
		check(t, err)
		got, err := p.found(EFA)
		check(t, err)
		if want := slices.Sorted(maps.Keys(listed)); !slices.Equal(got, want) {
			t.Errorf("Abandon after %s: found %v, want %v", after, got, want)
		}
		if len(d.pages) != 3 {
			t.Errorf("%s: got %d pages, want 3", after, len(d.pages))
		}
	}
	for qpn := range uint32(2*dirPerPage + 3) {
		add(qpn)
	}
	want("Add")
	for qpn := uint32(0); qpn < 2*dirPerPage; qpn += 3 {
		remove(qpn)
	}
	want("Remove")
	for qpn := range uint32(dirPerPage / 3) {
		add(1000 + qpn)
	}
	d.Set(listed[1001], Entry{QPN: 2000})
	listed[2000] = listed[1001]
	delete(listed, 1001)
	want("Set")
	if _, err := p.found(RXE); !errors.Is(err, ErrNotQueues) {
		t.Errorf("Abandon of another kind: got %v, want ErrNotQueues", err)
	}
	d.Free()
	if p.freed != 3 {
		t.Errorf("Free: got %d calls of Memory.Free, want 3", p.freed)
	}
	remove(1000) // a queue pair that is removed after the directory
	d.Free()
	if p.freed != 3 {
		t.Errorf("second Free: got %d calls of Memory.Free, want 3", p.freed)
	}
}

func TestDirectoryErrors(t *testing.T) {
	full := fmt.Errorf("full: %w", syscall.ENOMEM)
	if d, err := New(RXE, func(int) (Memory, error) { return Memory{}, full }); d != nil || !errors.Is(err, full) {
		t.Errorf("New: got %v, %v, want %v", d, err, full)
	}
	p := newProcess(t)
	left := 1
	d, err := New(RXE, func(size int) (Memory, error) {
		if left--; left < 0 {
			return Memory{}, full
		}
		return p.alloc(size)
	})
	check(t, err)
	for range dirPerPage {
		_, err := d.Add(Entry{})
		check(t, err)
	}
	if _, err := d.Add(Entry{}); !errors.Is(err, full) {
		t.Errorf("Add without memory: got %v, want %v", err, full)
	}
	d.Remove(3)
	if i, err := d.Add(Entry{}); i != 3 || err != nil {
		t.Errorf("Add: got %d, %v, want the free entry 3", i, err)
	}
	check(t, p.file.Truncate(0))
	d.Set(3, Entry{QPN: 17}) // no effect, and no fault
	d.Remove(3)
	if _, err := d.Add(Entry{}); err != nil {
		t.Errorf("Add to memory that is gone: got %v, want none", err)
	}
}

// TestAbandonBounded tests that Abandon rejects a directory that lists more than the memory of the file can hold,
// whatever the size of the file.
func TestAbandonBounded(t *testing.T) {
	p := newProcess(t)
	d, err := New(RXE, p.alloc)
	check(t, err)
	for qpn := range uint32(10) {
		_, err := d.Add(Entry{QPN: qpn})
		check(t, err)
	}
	check(t, p.file.Truncate(1<<40))
	if got, err := p.found(RXE); !errors.Is(err, ErrNotQueues) || len(got) != 1 {
		t.Errorf("10 queue pairs in a page: got %d, %v, want 1 and ErrNotQueues", len(got), err)
	}
	_, err = p.alloc(15 * PageSize)
	check(t, err)
	charged := 0
	err = Abandon(p.file, map[Kind]Flush{RXE: func(f *File, _ *Entry) {
		for range 4000 {
			if !f.Charge() {
				return
			}
			charged++
		}
	}})
	if want := 16 * PageSize / minSlot; !errors.Is(err, ErrNotQueues) || charged != want {
		t.Errorf("work requests in 16 pages: got %d, %v, want %d and ErrNotQueues", charged, err, want)
	}
	uapi.Encode(d.pages[0].Mem, &dirHeader{Magic: uint64(RXE), Next: PageSize}) // the pages behind are empty
	if _, err := p.found(RXE); !errors.Is(err, ErrNotQueues) {
		t.Errorf("page without a magic: got %v, want ErrNotQueues", err)
	}
}

// TestAbandonDistrusts runs Abandon on damaged directories, and on files that are none.
func TestAbandonDistrusts(t *testing.T) {
	p := newProcess(t)
	d, err := New(RXE, p.alloc)
	check(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	for qpn := range uint32(3) {
		_, err := d.Add(Entry{QPN: qpn})
		check(t, err)
	}
	for range 500 {
		d.pages[0].Mem[r.IntN(300)] = byte(r.Uint32())
		_, _ = p.found(RXE) // must end, and must not crash
		d.pages[0].Mem[0] = "v"[0]
	}
	for _, path := range []string{t.TempDir(), os.DevNull} {
		f, err := os.Open(path)
		check(t, err)
		defer f.Close()
		if Abandon(f, nil) == nil {
			t.Errorf("Abandon of %s: got success, want an error", path)
		}
	}
	empty := newProcess(t)
	for range 2 {
		if got, err := empty.found(RXE); err != nil || got != nil {
			t.Errorf("Abandon of a file without queues: got %v, %v, want none", got, err)
		}
		_, err := empty.alloc(PageSize)
		check(t, err)
	}
}
