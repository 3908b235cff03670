package umem

import (
	"fmt"
	"math"
	"math/bits"
	"os"
	"syscall"
)

// Sentinel errors. Each of these errors wraps the errno that the Linux user ABI reports for the same condition.
var (
	// ErrFault reports that a part of the range is not mapped in the space, or not with the requested rights.
	ErrFault = fmt.Errorf("memory is not mapped with the requested rights: %w", syscall.EFAULT)
	// ErrLimit reports that the pages would exceed the account's limit (RLIMIT_MEMLOCK).
	ErrLimit = fmt.Errorf("locked memory limit (RLIMIT_MEMLOCK, ulimit -l) exceeded: %w", syscall.ENOMEM)
	// ErrNoLock reports that the account may not lock any memory (RLIMIT_MEMLOCK is 0). The account can therefore not
	// register memory. (can_do_mlock)
	ErrNoLock = fmt.Errorf("locking memory is not permitted: the limit (RLIMIT_MEMLOCK, ulimit -l) is 0: %w",
		syscall.EPERM)
	// ErrRange reports that the range wraps around or lies outside the region.
	ErrRange = fmt.Errorf("address range outside the registered memory: %w", syscall.EINVAL)
)

// PageSize is the unit in which registrations are charged, in bytes.
var PageSize = uint64(os.Getpagesize())

// Space is an address space from which memory is registered. Implementations must be safe for concurrent use.
//
// ReadV and WriteV are on the data path. These methods must not allocate, and must not wait for anything other than the
// memory itself.
type Space interface {
	// Check returns nil if the whole range is mapped readable, and writable if write is set. Otherwise it returns
	// ErrFault. Check may sleep.
	Check(addr, length uint64, write bool) error
	// ReadV fills the buffers of dst, in order, from consecutive addresses starting at addr. After an error the
	// contents of dst are undefined.
	ReadV(dst [][]byte, addr uint64) error
	// WriteV stores the buffers of src, in order, at consecutive addresses starting at addr. After an error, a part of
	// the data at the start may have been stored.
	WriteV(src [][]byte, addr uint64) error
}

// lastingSpace is implemented by a Space that is valid for one call only. A Region exists longer than the call and uses
// the Space that Lasting returns.
type lastingSpace interface{ Lasting() Space }

func lastingSpaceOf(s Space) Space {
	if l, ok := s.(lastingSpace); ok {
		return l.Lasting()
	}
	return s
}

// windowedSpace is implemented by a Space that has a Local as a part of its memory. This Local is searched first.
type windowedSpace interface{ Windows() *Local }

func localPartOf(s Space) *Local {
	switch s := s.(type) {
	case *Local:
		return s
	case windowedSpace:
		return s.Windows()
	}
	return nil
}

// Region is a registration of memory of a Space. The memory is a contiguous range, or a list of ranges with contiguous
// addresses. A Region is immutable and safe for concurrent use. Release ends the registration.
type Region struct {
	space  Space
	acct   *Account
	addr   uint64 // address of the first range
	length uint64
	iova   uint64
	pages  uint64
	list   []regionRange // nil: one range
	local  *Local        // the Local of the space, or nil

	onDemand bool
	onWrite  func(addr, n uint64, data [][]byte) // nil: not observed
}

// Get registers length bytes at addr of space, addressed from iova. Get charges the pages of the range to acct; a nil
// acct means no charge. A second registration of the same pages is charged again, as in the kernel. write states
// whether the device may store to the range. A length of zero is allowed and touches no pages. Get may sleep. Mirrors
// ib_umem_get.
func Get(space Space, acct *Account, addr, length, iova uint64, write bool) (*Region, error) {
	if addr+length < addr || iova+length < iova || addr+length+PageSize < addr+length {
		return nil, fmt.Errorf("register %d bytes at %#x: %w", length, addr, ErrRange)
	}
	space = lastingSpaceOf(space)
	r := &Region{space: space, acct: acct, addr: addr, length: length, iova: iova, local: localPartOf(space)}
	if length == 0 {
		return r, nil
	}
	first, last := addr/PageSize, (addr+length-1)/PageSize
	pages := last - first + 1
	if err := acct.charge(pages); err != nil {
		return nil, fmt.Errorf("register %d bytes at %#x: %w", length, addr, err)
	}
	if err := space.Check(addr, length, write); err != nil {
		acct.uncharge(pages)
		return nil, fmt.Errorf("register %d bytes at %#x: %w", length, addr, err)
	}
	r.pages = pages
	return r, nil
}

// OnDemand registers a range without a charge or a check. Each access uses the pages that are mapped at that time, with
// their rights. Address 0 with length ImplicitLength registers the whole address space (an implicit region). IOVA and
// address are then equal. OnDemand does not sleep. Mirrors ib_umem_odp_get.
func OnDemand(space Space, addr, length, iova uint64) (*Region, error) {
	if addr+length < addr || iova+length < iova {
		return nil, fmt.Errorf("register %d bytes at %#x on demand: %w", length, addr, ErrRange)
	}
	space = lastingSpaceOf(space)
	return &Region{space: space, addr: addr, length: length, iova: iova, local: localPartOf(space), onDemand: true}, nil
}

// ImplicitLength is the length of an implicit region.
const ImplicitLength = math.MaxUint64

// OnDemand reports whether the region was created by OnDemand.
func (r *Region) OnDemand() bool { return r.onDemand }

// Prefetch reads a range of the region, which brings the range into memory. The first use then need not wait. Prefetch
// returns ErrFault if the range is not mapped readable, or not writable although write is set. Prefetch may sleep.
func (r *Region) Prefetch(iova, length uint64, write bool) error {
	if !r.Contains(iova, length) {
		return ErrRange
	}
	if length == 0 {
		return nil
	}
	if err := r.eachRange(iova, length, func(addr, n uint64) error { return r.space.Check(addr, n, write) }); err != nil {
		return err
	}
	buf := [][]byte{make([]byte, min(length, prefetchChunk))}
	for length > 0 {
		buf[0] = buf[0][:min(length, prefetchChunk)]
		if err := r.ReadV(buf, iova); err != nil {
			return err
		}
		iova += uint64(len(buf[0]))
		length -= uint64(len(buf[0]))
	}
	return nil
}

const prefetchChunk = 64 << 10

// Release returns the pages to the account. No ReadV or WriteV may be in flight, and the region must not be used
// afterwards. Mirrors ib_umem_release.
func (r *Region) Release() {
	if r.pages != 0 {
		r.acct.uncharge(r.pages)
		r.pages = 0
	}
}

// ObserveWrites makes WriteV call f before and after each store, with the address of the range in the space. data is
// nil before a store, and after a failed one. Otherwise it holds the stored bytes, which f must not retain. f may not
// sleep. ObserveWrites must be called before the region is used.
func (r *Region) ObserveWrites(f func(addr, n uint64, data [][]byte)) { r.onWrite = f }

// reportWrite calls the observer for each part of a range.
func (r *Region) reportWrite(iova, length uint64, data [][]byte) {
	_ = r.eachRange(iova, length, func(addr, n uint64) error {
		var part [][]byte
		part, data = cutVector(data, n)
		r.onWrite(addr, n, part)
		return nil
	})
}

// cutVector returns the first n bytes of v, and the rest.
func cutVector(v [][]byte, n uint64) (part, rest [][]byte) {
	for i, b := range v {
		if uint64(len(b)) > n {
			part = append(part, v[:i]...)
			rest = append(rest, b[n:])
			return append(part, b[:n]), append(rest, v[i+1:]...)
		}
		if n -= uint64(len(b)); n == 0 {
			return v[:i+1], v[i+1:]
		}
	}
	return v, nil
}

// Check reports whether the memory is still mapped, and writable if write is set. The errors are those of Space.Check.
// Check may sleep.
func (r *Region) Check(write bool) error { return r.CheckRange(r.iova, r.length, write) }

// CheckRange is Check for a range of the region. It returns ErrRange for a range outside the region.
func (r *Region) CheckRange(iova, length uint64, write bool) error {
	if !r.Contains(iova, length) {
		return ErrRange
	}
	return r.eachRange(iova, length, func(addr, n uint64) error { return r.space.Check(addr, n, write) })
}

// SpaceGone reports whether the space is known to have ended, because its process has exited or executed another
// program. SpaceGone may sleep.
func (r *Region) SpaceGone() bool {
	s, ok := r.space.(interface{ SpaceGone() bool })
	return ok && s.SpaceGone()
}

// IOVA returns the address that work requests and peers use for the first byte of the region.
func (r *Region) IOVA() uint64 { return r.iova }

// Addr returns the address of the first byte in the space. For a list it is the address of the first range.
func (r *Region) Addr() uint64 { return r.addr }

// Contiguous reports whether the region is one range of addresses.
func (r *Region) Contiguous() bool { return r.list == nil }

// Len returns the length in bytes.
func (r *Region) Len() uint64 { return r.length }

// Pages returns the number of pages charged for this region.
func (r *Region) Pages() uint64 { return r.pages }

// Contains reports whether the whole range of IOVAs lies within the region. An empty range at any address is contained.
func (r *Region) Contains(iova, length uint64) bool {
	if length == 0 {
		return true
	}
	off, borrow := bits.Sub64(iova, r.iova, 0)
	return borrow == 0 && off <= r.length && length <= r.length-off
}

// ReadV fills dst from the region at iova. ReadV returns ErrRange for an access outside the region, and ErrFault if the
// memory has been unmapped. ReadV may be used on the data path.
func (r *Region) ReadV(dst [][]byte, iova uint64) error {
	if !r.Contains(iova, totalLen(dst)) {
		return ErrRange
	}
	if r.list != nil {
		return r.transferList(dst, iova, Space.ReadV)
	}
	return r.space.ReadV(dst, iova-r.iova+r.addr)
}

// WriteV stores src in the region at iova. The errors are those of ReadV. The driver must check the access rights of
// the registration.
func (r *Region) WriteV(src [][]byte, iova uint64) error {
	n := totalLen(src)
	if !r.Contains(iova, n) {
		return ErrRange
	}
	if r.onWrite != nil {
		return r.writeObserved(src, iova, n)
	}
	return r.write(src, iova)
}

func (r *Region) writeObserved(src [][]byte, iova, n uint64) error {
	r.reportWrite(iova, n, nil)
	err := r.write(src, iova)
	if err != nil {
		src = nil
	}
	r.reportWrite(iova, n, src)
	return err
}

func (r *Region) write(src [][]byte, iova uint64) error {
	if r.list != nil {
		return r.transferList(src, iova, Space.WriteV)
	}
	return r.space.WriteV(src, iova-r.iova+r.addr)
}

// Direct returns the memory of a range of the region if the range lies in one buffer of a Local. Otherwise it returns
// nil. A copy from or to this memory does not wait for a program. A use of this memory counts as an access and must end
// before Release.
func (r *Region) Direct(iova, length uint64) []byte {
	if r.local == nil || r.list != nil || length == 0 || !r.Contains(iova, length) {
		return nil
	}
	mem, _ := r.local.rangeMemory(iova-r.iova+r.addr, length)
	return mem
}

func totalLen(v [][]byte) (n uint64) {
	for _, b := range v {
		n += uint64(len(b))
	}
	return n
}
