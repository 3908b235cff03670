package queuedir

import (
	"encoding/binary"
	"runtime/debug"

	"verbena/internal/memfault"
)

// Memory is memory that is shared with a user process. The process may write any data into it at any time, and may
// remove its pages.
type Memory struct {
	// Mem is zeroed, and aligned to a page.
	Mem []byte
	// Offset is the offset for mmap in the process.
	Offset uint64
	// Free returns the memory. The mappings of the process stay valid.
	Free func()
}

// Alloc allocates memory of at least size bytes that is shared with a user process. It may sleep. The memory belongs to
// the caller until Memory.Free.
type Alloc func(size int) (Memory, error)

// Kind is the layout of the queues of a directory.
type Kind uint64

// The kinds. A value is the magic at the start of a page.
const (
	RXE Kind = 0x31726964_65787276 // "vrxedir1"
	EFA Kind = 0x31726964_61666576 // "vefadir1"
)

// Directory lists the locations of the queues of all queue pairs, for [Abandon], in memory that is shared with a user
// process. The service writes the directory and never reads it. Its first page is the first memory that the process
// shares, at offset 0. Each page holds the offset of the next page.
//
// A Directory has no lock: calls must not overlap.
type Directory struct {
	kind  Kind
	alloc Alloc
	pages []Memory
	free  []int // free entries, used from the end
}

// Entry describes the queues of a queue pair. A queue that is not shared has the zero Location.
type Entry struct {
	QPN                    uint32
	SQ, RQ, SendCQ, RecvCQ Location
}

// Location describes a queue in the shared memory of its process.
type Location struct {
	Offset uint64 // offset for mmap
	Mask   uint32 // slots - 1
	Shift  uint32 // log2 of the bytes per slot
}

// dirHeader is at the start of a page of the directory. The rest of the page is an array of dirEntry.
type dirHeader struct {
	Magic uint64
	Next  uint64 // offset of the next page, 0 for none
}

type dirEntry struct {
	Live                   uint32 // 1 for a used entry
	QPN                    uint32
	SQ, RQ, SendCQ, RecvCQ Location
}

const (
	// PageSize is the size of each page of a Directory, in bytes.
	PageSize = 4096
	// MaxEntries is the largest number of entries that [Abandon] processes.
	MaxEntries = 1 << 17

	dirPerPage  = (PageSize - 16) / 72
	maxDirPages = MaxEntries/dirPerPage + 1
)

// New makes an empty directory, with one page of memory from alloc. The caller owns the directory until Free. New may
// sleep if alloc may. The error is that of alloc.
func New(kind Kind, alloc Alloc) (*Directory, error) {
	d := &Directory{kind: kind, alloc: alloc}
	if err := d.grow(); err != nil {
		return nil, err
	}
	return d, nil
}

// Free returns the memory to its allocator. Afterwards Set and Remove have no effect, and Add must not be called. Free
// sleeps if Memory.Free does.
func (d *Directory) Free() {
	for _, m := range d.pages {
		m.Free()
	}
	d.pages = nil
}

func (d *Directory) grow() error {
	m, err := d.alloc(PageSize)
	if err != nil {
		return err
	}
	n := len(d.pages)
	write(m.Mem, 0, &dirHeader{Magic: uint64(d.kind)}) // before the link, since the service can die in between
	if n > 0 {
		write(d.pages[n-1].Mem, 0, &dirHeader{Magic: uint64(d.kind), Next: m.Offset})
	}
	d.pages = append(d.pages, m)
	for i := range dirPerPage {
		d.free = append(d.free, (n+1)*dirPerPage-1-i)
	}
	return nil
}

// Add adds a queue pair and returns the index of its entry, for Set and Remove. Indices are small, and reused. If there
// is no free entry, Add allocates a page, for which it may sleep. The error is that of the allocator.
func (d *Directory) Add(e Entry) (i int, err error) {
	if len(d.free) == 0 {
		if err := d.grow(); err != nil {
			return 0, err
		}
	}
	last := len(d.free) - 1
	i = d.free[last]
	d.free = d.free[:last]
	d.Set(i, e)
	return i, nil
}

// Set replaces entry i, returned by Add, if the location of a queue has changed. It does not sleep.
func (d *Directory) Set(i int, e Entry) {
	d.write(i, dirEntry{Live: 1, QPN: e.QPN, SQ: e.SQ, RQ: e.RQ, SendCQ: e.SendCQ, RecvCQ: e.RecvCQ})
}

// Remove frees entry i, returned by Add. It does not sleep.
func (d *Directory) Remove(i int) {
	d.write(i, dirEntry{})
	d.free = append(d.free, i)
}

func (d *Directory) write(i int, e dirEntry) {
	if d.pages != nil {
		write(d.pages[i/dirPerPage].Mem, entryOffset(i%dirPerPage), &e)
	}
}

// entryOffset returns the offset of an entry in its page.
func entryOffset(i int) int { return binary.Size(dirHeader{}) + i*binary.Size(dirEntry{}) }

// write encodes v into shared memory, unless the memory is gone.
func write[T any](mem []byte, at int, v *T) {
	defer memfault.Survive(debug.SetPanicOnFault(true))
	_, _ = binary.Encode(mem[at:], binary.NativeEndian, v)
}
