package umem

import (
	"fmt"
	"slices"
	"sync"
)

// Range is a part of a Space: Length bytes at Addr. (struct scatterlist)
type Range struct{ Addr, Length uint64 }

// regionRange is one range of a region with several ranges.
type regionRange struct {
	Range
	off uint64 // offset of the first byte in the region
}

// GetList is the equivalent of Get for a list of ranges of space. The ranges are addressed contiguously from iova.
// Ranges may have any alignment and length, including 0. Each range is charged for the pages that it touches. GetList
// may sleep. Mirrors ib_map_mr_sg, with the freedom of IB_MR_TYPE_SG_GAPS.
func GetList(space Space, acct *Account, list []Range, iova uint64, write bool) (*Region, error) {
	list = slices.DeleteFunc(slices.Clone(list), func(r Range) bool { return r.Length == 0 })
	switch len(list) {
	case 0:
		return Get(space, acct, 0, 0, iova, write)
	case 1:
		return Get(space, acct, list[0].Addr, list[0].Length, iova, write)
	}
	fail := func(i int, err error) (*Region, error) {
		return nil, fmt.Errorf("register range %d of %d, %d bytes at %#x: %w", i, len(list), list[i].Length, list[i].Addr,
			err)
	}
	r := &Region{space: lastingSpaceOf(space), acct: acct, addr: list[0].Addr, iova: iova, list: make([]regionRange,
		len(list))}
	var pages uint64
	for i, part := range list {
		addr, n := part.Addr, part.Length
		if addr+n < addr || addr+n+PageSize < addr+n || r.length+n < n || iova+r.length+n < iova {
			return fail(i, ErrRange)
		}
		r.list[i] = regionRange{part, r.length}
		r.length += n
		pages += (addr+n-1)/PageSize - addr/PageSize + 1
	}
	if err := acct.charge(pages); err != nil {
		return nil, fmt.Errorf("register %d ranges of %d pages: %w", len(list), pages, err)
	}
	for i, part := range list {
		if err := r.space.Check(part.Addr, part.Length, write); err != nil {
			acct.uncharge(pages)
			return fail(i, err)
		}
	}
	r.pages = pages
	return r, nil
}

// rangeIndex returns the index of the range that contains the byte at offset off of the region.
func (r *Region) rangeIndex(off uint64) int {
	i, found := slices.BinarySearchFunc(r.list, off, func(s regionRange, off uint64) int {
		switch {
		case s.off < off:
			return -1
		case s.off > off:
			return 1
		}
		return 0
	})
	if !found {
		i--
	}
	return i
}

// eachRange calls f for each part of a region's range that is contiguous in the space.
func (r *Region) eachRange(iova, length uint64, f func(addr, n uint64) error) error {
	if length == 0 {
		return nil
	}
	off := iova - r.iova
	if r.list == nil {
		return f(r.addr+off, length)
	}
	for i := r.rangeIndex(off); length > 0; i++ {
		s := r.list[i]
		n := min(length, s.off+s.Length-off)
		if err := f(s.Addr+off-s.off, n); err != nil {
			return err
		}
		off, length = off+n, length-n
	}
	return nil
}

// vectorPool is a pool of slices for parts of the buffers of one access. It avoids allocations.
var vectorPool = sync.Pool{New: func() any { return new([][]byte) }}

// transferList implements ReadV and WriteV for a region of several ranges. The region must contain all bytes.
func (r *Region) transferList(bufs [][]byte, iova uint64, move func(s Space, bufs [][]byte, addr uint64) error) error {
	kept := vectorPool.Get().(*[][]byte)
	part := *kept
	defer func() {
		clear(part[:cap(part)])
		*kept = part[:0]
		vectorPool.Put(kept)
	}()
	off, left := iova-r.iova, totalLen(bufs)
	if left == 0 {
		return nil
	}
	b, from := 0, 0 // the next byte is bufs[b][from]
	for i := r.rangeIndex(off); left > 0; i++ {
		s := r.list[i]
		n := min(left, s.off+s.Length-off)
		part = part[:0]
		for want := n; want > 0; {
			k := min(want, uint64(len(bufs[b])-from))
			if k > 0 {
				part = append(part, bufs[b][from:from+int(k)])
			}
			want -= k
			if from += int(k); from == len(bufs[b]) {
				b, from = b+1, 0
			}
		}
		if err := move(r.space, part, s.Addr+off-s.off); err != nil {
			return err
		}
		off, left = off+n, left-n
	}
	return nil
}
