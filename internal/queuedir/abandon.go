package queuedir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"

	"verbena/internal/memfault"
)

// ErrNotQueues is the error of [Abandon] for a file that does not hold the queues of a program.
var ErrNotQueues = errors.New("not a file of queues")

// Flush completes the outstanding work requests of a queue pair, as far as the completion queues have room. It may stop
// at any access to the memory of the file.
type Flush func(f *File, e *Entry)

// Abandon completes all outstanding work requests in the queues of a file with a flush error, as far as the completion
// queues have room. A program that polls then gets errors instead of waiting for ever. Abandon must only be called
// after the service that owned the queues has died. The caller has opened the file for reading and writing, has checked
// that the file belongs to the program, and closes it. The program can still be running. Abandon trusts no data in the
// file, and the memory of the file limits its work. Abandon may sleep in system calls on the file.
//
// If the first page of a file is empty, the file has no queues, and Abandon does not change it. The error is
// ErrNotQueues if the file holds other data, or lists more queues than fit into its memory. Requests that are completed
// by then stay completed. Other errors are those of fstat and mmap.
func Abandon(f *os.File, kinds map[Kind]Flush) error {
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("abandon queues: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("abandon queues: %s: %w", f.Name(), ErrNotQueues)
	}
	a := &File{file: f, size: fi.Size()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		memory := st.Blocks * 512 // a queue pair takes at least a page, and a work request a slot
		a.qps, a.requests = memory/int64(os.Getpagesize()), memory/minSlot
	}
	if err := a.run(kinds); err != nil {
		return fmt.Errorf("abandon queues: %s: %w", f.Name(), err)
	}
	return nil
}

// minSlot is the size of the smallest slot of a queue, in bytes.
const minSlot = 16

// File is the shared memory of a program without a service.
type File struct {
	file *os.File
	size int64
	// The remaining numbers of queue pairs and work requests to process. A program can make the directory a cycle, or
	// list a queue any number of times.
	qps, requests int64
}

func (a *File) run(kinds map[Kind]Flush) error {
	if a.size == 0 {
		return nil
	}
	next := uint64(0)
	for n := 0; n == 0 || next != 0; n++ {
		if n == maxDirPages {
			return ErrNotQueues
		}
		var err error
		if next, err = a.page(next, kinds); err != nil {
			return err
		}
	}
	return nil
}

// page completes the outstanding requests of the queue pairs in a page of the directory, and returns the offset of the
// next page.
func (a *File) page(at uint64, kinds map[Kind]Flush) (next uint64, err error) {
	mem, err := a.Map(at, PageSize)
	if err != nil {
		return 0, err
	}
	defer Unmap(mem)
	h, ok := read[dirHeader](mem, 0)
	if ok && at == 0 && h.Magic == 0 {
		return 0, nil
	}
	flush := kinds[Kind(h.Magic)]
	if !ok || flush == nil {
		return 0, ErrNotQueues
	}
	for i := range dirPerPage {
		e, ok := read[dirEntry](mem, entryOffset(i))
		if !ok || e.Live != 1 {
			continue
		}
		if a.qps--; a.qps < 0 {
			return 0, ErrNotQueues
		}
		a.flush(flush, &Entry{QPN: e.QPN, SQ: e.SQ, RQ: e.RQ, SendCQ: e.SendCQ, RecvCQ: e.RecvCQ})
		if a.requests == 0 {
			return 0, ErrNotQueues
		}
	}
	return h.Next, nil
}

// flush completes the outstanding requests of a queue pair. It ends at memory that the program has taken away.
func (a *File) flush(flush Flush, e *Entry) {
	defer memfault.Survive(debug.SetPanicOnFault(true))
	flush(a, e)
}

// Charge counts a work request that a Flush is going to complete. It returns false at the limit.
func (a *File) Charge() bool {
	if a.requests <= 0 {
		return false
	}
	a.requests--
	return true
}

// Map maps a part of the file, which the caller unmaps. The error is ErrNotQueues for a part beyond the end.
func (a *File) Map(offset uint64, n int) ([]byte, error) {
	if n <= 0 || offset%uint64(os.Getpagesize()) != 0 || offset > uint64(a.size) || uint64(n) > uint64(a.size)-offset {
		return nil, ErrNotQueues
	}
	m, err := syscall.Mmap(int(a.file.Fd()), int64(offset), n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Unmap unmaps memory from [File.Map].
func Unmap(m []byte) { _ = syscall.Munmap(m) }

// read decodes a T from shared memory. ok is false if the memory is gone or too short.
func read[T any](mem []byte, at int) (v T, ok bool) {
	defer memfault.Survive(debug.SetPanicOnFault(true))
	_, err := binary.Decode(mem[at:], binary.NativeEndian, &v)
	return v, err == nil
}
