package layout

import (
	"fmt"
	"os"
	"syscall"

	"verbena/driver/rxe/ring"
	"verbena/engine/queue"
	"verbena/ib"
	"verbena/internal/queuedir"
	"verbena/uapi"
)

// The largest queues are one slot shorter than a power of two. The work queues of the kernel's rxe can be longer
// (2^20), but not with all elements in each request; adapters have 2^14 to 2^15. The completion queues of the kernel's
// rxe have at most 2^15 slots, which is too few for libraries that complete all work of a program on one queue;
// adapters have 2^22.
const (
	maxWR    = 1<<16 - 1
	maxCQE   = 1<<20 - 1
	usualCQE = 1<<15 - 1 // RXE_MAX_LOG_CQE

	maxSGE    = 32
	maxInline = maxSGE * sgeSize

	sgeSize        = 16
	maxSendWQESize = uapi.RXESendWQESize + maxInline
	maxRecvWQESize = uapi.RXERecvWQESize + maxSGE*sgeSize

	abiVersion = 2 // RXE_UVERBS_ABI_VERSION
)

// ring.Flush completes the work requests of all such rings.
var (
	_ [ring.MaxSlotBytes - max(maxSendWQESize, maxRecvWQESize)]struct{}
	_ [ring.MaxSlots - (max(maxCQE, maxWR) + 1)]struct{}
)

// Layout is the layout of rxe. It implements queue.Layout.
type Layout struct{}

var _ queue.Layout = Layout{}

// UserABI implements queue.Layout. The numbers are those of the kernel's rxe, whose provider in libibverbs works with
// this layout.
func (Layout) UserABI() (driverID, version uint32) { return uint32(uapi.DriverRXE), abiVersion }

// Limits implements queue.Layout.
func (Layout) Limits() queue.Limits {
	return queue.Limits{WR: maxWR, CQE: maxCQE, UsualCQE: usualCQE, SGE: maxSGE, Inline: maxInline}
}

// Traits implements queue.Layout.
func (Layout) Traits() queue.Traits { return queue.Traits{} }

// Memory implements queue.Layout.
func (Layout) Memory(wr uint32, cqe int) (context, work, completions uint64) {
	work = ringMemory(int(wr), maxSendWQESize) + ringMemory(int(wr), maxRecvWQESize)
	return queuedir.PageSize, work, ringMemory(cqe, uapi.RXECQESize)
}

// ringMemory returns the shared memory of a ring in bytes.
func ringMemory(entries, size int) uint64 {
	page := os.Getpagesize()
	return uint64((ring.Size(entries, size) + page - 1) / page * page)
}

// OpenProgram implements queue.Layout.
func (Layout) OpenProgram(u *ib.Udata) (queue.Program, error) {
	p := &program{alloc: func(size int) (ring.Memory, error) {
		s, err := u.Context.AllocShared(size)
		return ring.Memory(s), err
	}}
	var err error
	if p.dir, err = queuedir.New(queuedir.RXE, p.alloc); err != nil {
		return nil, fmt.Errorf("directory of queue pairs: %w", err)
	}
	return p, nil
}

// program makes the rings of a user context.
type program struct {
	alloc ring.Alloc
	dir   *queuedir.Directory
}

// hasRoom returns EINVAL if the response has no room for an R.
func hasRoom[R any](u *ib.Udata, what string) error {
	if len(u.Out) < uapi.SizeOf[R]() {
		return fmt.Errorf("no room in the response for the location of the %s: %w", what, syscall.EINVAL)
	}
	return nil
}

// CreateQP implements queue.Program. The room for elements and for inline data is the same memory. A larger request for
// one therefore gives more of the other, as the library of rxe expects.
func (p *program) CreateQP(typ ib.QPType, c *ib.QPCap, hasRecv bool, u *ib.Udata) (queue.SendQueue, queue.RecvQueue,
	error,
) {
	if err := hasRoom[uapi.RXECreateQPResp](u, "queues"); err != nil {
		return nil, nil, err
	}
	data := max(c.MaxSendSGE*sgeSize, c.MaxInlineData, atomicLen)
	data = (data + sgeSize - 1) / sgeSize * sgeSize
	c.MaxSendSGE, c.MaxInlineData = data/sgeSize, data
	// The rings are allocated in the order in which libraries map them; see shm.File.
	var rq *recvQueue
	var err error
	if !hasRecv {
		rq, err = newRecv(0, 0, nil)
	} else if rq, err = newRecv(int(c.MaxRecvWR), c.MaxRecvSGE, p.alloc); err == nil {
		c.MaxRecvWR = uint32(rq.Capacity())
	}
	if err != nil {
		return nil, nil, fmt.Errorf("receive %w", err)
	}
	sq, err := newSend(typ, c, p.alloc)
	if err != nil {
		rq.Free()
		return nil, nil, fmt.Errorf("send %w", err)
	}
	c.MaxSendWR = uint32(sq.Capacity())
	u.Respond(uapi.AppendTo(nil, &uapi.RXECreateQPResp{RQMI: rq.ring.Info(), SQMI: sq.ring.Info()}))
	return sq, rq, nil
}

// HasRoomForSRQ implements queue.Program.
func (p *program) HasRoomForSRQ(u *ib.Udata) error { return hasRoom[uapi.RXECreateSRQResp](u, "queue") }

// CreateRecv implements queue.Program.
func (p *program) CreateRecv(entries int, sges uint32) (queue.RecvQueue, error) {
	q, err := newRecv(entries, sges, p.alloc)
	if err != nil {
		return nil, err
	}
	return q, nil
}

// RespondSRQ implements queue.Program.
func (p *program) RespondSRQ(q queue.RecvQueue, num uint32, u *ib.Udata) {
	u.Respond(uapi.AppendTo(nil, &uapi.RXECreateSRQResp{MI: ringOf(q).Info(), SRQNum: num}))
}

// ResizedSRQ implements queue.Program. (rxe_modify_srq)
func (p *program) ResizedSRQ(u *ib.Udata) (addr uint64, err error) {
	cmd, ok := uapi.Decode[uapi.RXEModifySRQCmd](u.In)
	if !ok {
		return 0, fmt.Errorf("no address for the location of the queue: %w", syscall.EINVAL)
	}
	return cmd.MMapInfoAddr, nil
}

// LocationOf implements queue.Program.
func (p *program) LocationOf(q queue.RecvQueue) []byte {
	info := ringOf(q).Info()
	return uapi.AppendTo(nil, &info)
}

// CreateCQ implements queue.Program.
func (p *program) CreateCQ(entries int, u *ib.Udata) (queue.CompletionQueue, error) {
	if err := hasRoom[uapi.RXECreateCQResp](u, "queue"); err != nil {
		return nil, err
	}
	q, err := newCompletion(entries, p.alloc)
	if err != nil {
		return nil, err
	}
	u.Respond(uapi.AppendTo(nil, &uapi.RXECreateCQResp{MI: q.ring.Info()}))
	return q, nil
}

// RespondAH implements queue.Program.
func (p *program) RespondAH(num uint32, u *ib.Udata) {
	u.Respond(uapi.AppendTo(nil, &uapi.RXECreateAHResp{AHNum: num}))
}

// List implements queue.Program.
func (p *program) List(q *queue.Queues) (index int, err error) {
	if index, err = p.dir.Add(entry(q)); err != nil {
		return 0, fmt.Errorf("directory of queue pairs: %w", err)
	}
	return index, nil
}

// Update implements queue.Program.
func (p *program) Update(index int, q *queue.Queues) { p.dir.Set(index, entry(q)) }

// Unlist implements queue.Program.
func (p *program) Unlist(index int) { p.dir.Remove(index) }

// Close implements queue.Program.
func (p *program) Close() { p.dir.Free() }

// entry returns the present locations of the rings.
func entry(q *queue.Queues) queuedir.Entry {
	return queuedir.Entry{
		QPN: q.QPN, SQ: ringOf(q.Send).Location(), RQ: ringOf(q.Recv).Location(),
		SendCQ: ringOf(q.SendCQ).Location(), RecvCQ: ringOf(q.RecvCQ).Location(),
	}
}

// ringOf returns the ring of a queue; nil, which has no location, for a queue of another layout or none.
func ringOf(q any) *ring.Ring {
	if q, ok := q.(interface{ rings() *ring.Ring }); ok {
		return q.rings()
	}
	return nil
}
