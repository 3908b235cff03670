package check

import (
	"bytes"
	"errors"

	"verbena/umem"
)

// The limits of the copies of a program's memory.
const (
	maxCopied   = 64 << 10  // longest element, in bytes, that is copied as a whole
	copiedParts = 16        // number of copied parts of a longer element
	maxCopies   = 16 << 20  // total of the copies of one program
	shownBytes  = 16        // number of bytes in a violation
	alwaysSeen  = 64        // the memory of the first requests of a queue is compared
	rarelySeen  = 256       // one later request in so many has its memory compared
	partLen     = sampleLen // length of a part
)

// isSampled reports whether the memory of the n-th request of a queue is compared.
func isSampled(n uint64) bool { return n < alwaysSeen || n%rarelySeen == 0 }

// contents is a copy of an element of a program's work request.
type contents struct {
	of     *memoryRegion
	index  int    // in the list of the request
	addr   uint64 // in the region's addresses
	n      uint64
	at     uint64 // in the program's addresses
	copied []byte // the whole element, or copiedParts parts
	writes uint64 // number of device writes before the copy
	known  uint64 // storedImages: number of bytes from the start that the device has stored
}

// span returns the memory in the program's addresses.
func (c *contents) span() memorySpan { return memorySpan{c.at, c.n} }

// partOffset returns the offset of a part of a long element. The last part ends with the element.
func (c *contents) partOffset(i int) uint64 {
	return (c.n - partLen) * uint64(i) / (copiedParts - 1)
}

// read reads the present contents into b. It waits for the memory of the program.
func (c *contents) read(b []byte) error {
	c.of.reading.RLock()
	defer c.of.reading.RUnlock()
	if c.of.isGone() {
		return errRegionGone
	}
	if c.n <= maxCopied {
		return c.of.memory.ReadV([][]byte{b}, c.addr)
	}
	for i := range copiedParts {
		if err := c.of.memory.ReadV([][]byte{b[i*partLen : (i+1)*partLen]}, c.addr+c.partOffset(i)); err != nil {
			return err
		}
	}
	return nil
}

// isGone reports whether the memory may not be read any more.
func (r *memoryRegion) isGone() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.gone
}

// waitForReads waits until no comparison reads the memory of a program that is gone.
func (r *memoryRegion) waitForReads() {
	r.reading.Lock()
	defer r.reading.Unlock()
}

// errRegionGone means that the region of the memory has been deregistered.
var errRegionGone = errors.New("the region has ended")

// size returns the number of copied bytes.
func (c *contents) size() int {
	if c.n <= maxCopied {
		return int(c.n)
	}
	return copiedParts * partLen
}

// difference returns the difference of the present contents, or nil. A program that has unmapped the memory gets
// unmapped.
func (c *contents) difference() (d *ChangedMemory, unmapped bool) {
	now := make([]byte, c.size())
	if err := c.read(now); err != nil {
		return nil, errors.Is(err, umem.ErrFault)
	}
	if bytes.Equal(now, c.copied) {
		return nil, false
	}
	first, changed := -1, 0
	for i := range now {
		if now[i] != c.copied[i] {
			if changed++; first < 0 {
				first = i
			}
		}
	}
	d = &ChangedMemory{region: c.of.memory.Addr(), Element: c.index, Addr: c.at, Length: c.n, Offset: uint64(first),
		Changed: changed}
	end := min(first+shownBytes, len(now))
	if c.n > maxCopied {
		part := first / partLen
		d.Offset = c.partOffset(part) + uint64(first%partLen)
		end = min(end, (part+1)*partLen)
	}
	d.Before, d.After = bytes.Clone(c.copied[first:end]), now[first:end:end]
	return d, false
}
