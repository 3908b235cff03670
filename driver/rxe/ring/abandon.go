package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"verbena/uapi"
)

// ErrNotQueues is the error of [Abandon] for a file that does not hold the queues of a program.
var ErrNotQueues = errors.New("not a file of rxe queues")

// Abandon completes all outstanding work requests in the queues of a file with a flush error, as far as the completion
// queues have room. A program that polls then gets errors instead of waiting for ever. Abandon must only be called
// after the service that owned the queues has died. The caller has opened the file for reading and writing, has checked
// that the file belongs to the program, and closes it. The program can still be running. Abandon trusts no data in the
// file, and the memory of the file limits its work. Abandon may sleep in system calls on the file.
//
// If the first page of a file is empty, the file has no queues, and Abandon does not change it. The error is
// ErrNotQueues if the file holds other data, or lists more queues than fit into its memory. Requests that are completed
// by then stay completed. Other errors are those of fstat and mmap.
func Abandon(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("abandon queues: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("abandon queues: %s: %w", f.Name(), ErrNotQueues)
	}
	a := abandoned{file: f, size: fi.Size()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		memory := st.Blocks * 512 // a queue pair takes at least a page, and a work request a slot
		a.qps, a.requests = memory/int64(os.Getpagesize()), memory/minSlot
	}
	if err := a.run(); err != nil {
		return fmt.Errorf("abandon queues: %s: %w", f.Name(), err)
	}
	return nil
}

// abandoned is a file of a service that has died.
type abandoned struct {
	file *os.File
	size int64
	// The remaining numbers of queue pairs and work requests to process. A program can make the directory a cycle, or
	// list a ring any number of times.
	qps, requests int64
}

func (a *abandoned) run() error {
	if a.size == 0 {
		return nil
	}
	next := uint64(0)
	for n := 0; n == 0 || next != 0; n++ {
		if n == maxDirPages {
			return ErrNotQueues
		}
		var err error
		if next, err = a.page(next); err != nil {
			return err
		}
	}
	return nil
}

// page completes the outstanding requests of the queue pairs in a page of the directory, and returns the offset of the
// next page.
func (a *abandoned) page(at uint64) (next uint64, err error) {
	mem, err := a.mmap(at, DirectoryPageSize)
	if err != nil {
		return 0, err
	}
	defer munmap(mem)
	h, ok := readShared[dirHeader](mem, 0)
	if ok && at == 0 && h.Magic == 0 {
		return 0, nil
	}
	if !ok || h.Magic != dirMagic {
		return 0, ErrNotQueues
	}
	for i := range dirPerPage {
		e, ok := readShared[dirEntry](mem, entryOffset(i))
		if !ok || e.Live != 1 {
			continue
		}
		if a.qps--; a.qps < 0 {
			return 0, ErrNotQueues
		}
		a.flush(e.SQ, e.SendCQ, uapi.WCSend, e.QPN)
		a.flush(e.RQ, e.RecvCQ, uapi.WCRecv, e.QPN)
		if a.requests == 0 {
			return 0, ErrNotQueues
		}
	}
	return h.Next, nil
}

// flush completes the outstanding requests in a work queue of a queue pair.
func (a *abandoned) flush(queue, completions Location, opcode uapi.WCOpcode, qpn uint32) {
	work, err := a.ring(queue)
	if err != nil {
		return
	}
	defer munmap(work.mem)
	cq, err := a.ring(completions)
	if err != nil {
		return
	}
	defer munmap(cq.mem)
	cons, ok1 := work.Consumer()
	prod, ok2 := cq.Producer()
	if !ok1 || !ok2 {
		return
	}
	for range work.Capacity() {
		var id [8]byte // the first field of both kinds of work requests
		if filled, ok := work.Peek(cons, id[:]); !filled || !ok {
			return
		}
		if a.requests <= 0 {
			return
		}
		a.requests--
		wr := binary.NativeEndian.Uint64(id[:])
		slot := make([]byte, uapi.RXECQESize)
		uapi.Encode(slot, &uapi.WC{WRID: wr, Status: uapi.WCWRFlushErr, Opcode: opcode, QPNum: qpn})
		if pushed, ok := cq.Push(prod, slot); !pushed || !ok {
			return
		}
		prod, cons = cq.Next(prod), work.Next(cons)
		work.SetConsumer(cons)
	}
}

// ring maps the ring at a location in the file. The caller unmaps its memory.
func (a *abandoned) ring(at Location) (*Ring, error) {
	slots := uint64(at.Mask) + 1
	if slots&(slots-1) != 0 || slots > MaxSlots || at.Shift < minShift || at.Shift > maxShift {
		return nil, ErrNotQueues
	}
	r := &Ring{shift: uint8(at.Shift), mask: at.Mask, shared: true, offset: at.Offset}
	mem, err := a.mmap(at.Offset, uapi.RXEQueueDataOffset+int(slots)<<at.Shift)
	if err != nil {
		return nil, err
	}
	r.mem = mem
	r.attach()
	return r, nil
}

func (a *abandoned) mmap(offset uint64, n int) ([]byte, error) {
	if offset%uint64(os.Getpagesize()) != 0 || offset > uint64(a.size) || uint64(n) > uint64(a.size)-offset {
		return nil, ErrNotQueues
	}
	m, err := syscall.Mmap(int(a.file.Fd()), int64(offset), n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func munmap(m []byte) { _ = syscall.Munmap(m) }
