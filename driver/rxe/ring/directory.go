package ring

import "verbena/uapi"

// Directory lists, in memory that is shared with a user process, where the rings of its queue pairs are, for [Abandon].
// The service writes it and never reads it. Its first page is the first memory that its process shares, at offset 0;
// each page names the next.
//
// A Directory has no lock: one call at a time.
type Directory struct {
	alloc Alloc
	pages []Memory
	free  []int // entries; the last is used first
}

// Entry describes the rings of a queue pair. The location of a ring that is not shared is zero.
type Entry struct {
	QPN                    uint32
	SQ, RQ, SendCQ, RecvCQ Location
}

// Location describes a ring in the memory that its process shares.
type Location struct {
	Offset uint64 // as for mmap
	Mask   uint32 // slots - 1
	Shift  uint32 // log2 of the bytes per slot
}

// Location returns the location of the ring; zero if it is not shared.
func (r *Ring) Location() Location {
	if r == nil || !r.shared {
		return Location{}
	}
	return Location{Offset: r.offset, Mask: r.mask, Shift: uint32(r.shift)}
}

// dirHeader starts a page of the directory, dirEntry follows up to its end.
type dirHeader struct {
	Magic uint64
	Next  uint64 // offset of the next page, 0 for none
}

type dirEntry struct {
	Live                   uint32 // 1
	QPN                    uint32
	SQ, RQ, SendCQ, RecvCQ Location
}

const (
	// DirectoryPageSize is the size of each page of a Directory, in bytes.
	DirectoryPageSize = 4096
	// MaxEntries is the largest number of entries that [Abandon] completes work requests of.
	MaxEntries = 1 << 17

	dirMagic    = 0x31726964_65787276 // "vrxedir1"
	dirPerPage  = (DirectoryPageSize - 16) / 72
	maxDirPages = MaxEntries/dirPerPage + 1
)

// NewDirectory makes an empty directory, with one page of memory from alloc. The caller owns it until Free. It may
// sleep, as alloc may. The error is that of alloc.
func NewDirectory(alloc Alloc) (*Directory, error) {
	d := &Directory{alloc: alloc}
	if err := d.grow(); err != nil {
		return nil, err
	}
	return d, nil
}

// Free returns the memory to its allocator. Afterwards Set and Remove have no effect, and Add must not be called. It
// sleeps if Memory.Free does.
func (d *Directory) Free() {
	for _, m := range d.pages {
		m.Free()
	}
	d.pages = nil
}

func (d *Directory) grow() error {
	m, err := d.alloc(DirectoryPageSize)
	if err != nil {
		return err
	}
	n := len(d.pages)
	writeShared(m.Mem, 0, &dirHeader{Magic: dirMagic}) // first: the service may die before the page is linked, and after it
	if n > 0 {
		writeShared(d.pages[n-1].Mem, 0, &dirHeader{Magic: dirMagic, Next: m.Offset})
	}
	d.pages = append(d.pages, m)
	for i := range dirPerPage {
		d.free = append(d.free, (n+1)*dirPerPage-1-i)
	}
	return nil
}

// Add lists a queue pair and returns the index of its entry, for Set and Remove; indices are small, and used again. If
// there is no free entry, Add allocates a page, for which it may sleep. The error is that of the allocator.
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

// Set replaces entry i, which Add has returned: a ring has another location. It does not sleep.
func (d *Directory) Set(i int, e Entry) {
	d.write(i, dirEntry{Live: 1, QPN: e.QPN, SQ: e.SQ, RQ: e.RQ, SendCQ: e.SendCQ, RecvCQ: e.RecvCQ})
}

// Remove frees entry i, which Add has returned. It does not sleep.
func (d *Directory) Remove(i int) {
	d.write(i, dirEntry{})
	d.free = append(d.free, i)
}

func (d *Directory) write(i int, e dirEntry) {
	if d.pages != nil {
		writeShared(d.pages[i/dirPerPage].Mem, entryOffset(i%dirPerPage), &e)
	}
}

// entryOffset returns the offset of an entry in its page.
func entryOffset(i int) int { return uapi.SizeOf[dirHeader]() + i*uapi.SizeOf[dirEntry]() }
