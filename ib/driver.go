package ib

import (
	"time"

	"verbena/uapi"
	"verbena/uapi/verb"
	"verbena/umem"
)

// Driver is the method table of a low-level driver (struct ib_device_ops). One value serves one device.
//
// Every method is fully reentrant: the midlayer serialises nothing. A method may sleep unless its comment says
// that it may not; those that may not are called from any context, completion handlers included, and must not
// block on anything that a consumer, a peer or the kernel may hold up without bound (see the package comment).
// No method calls back into a consumer from its callchain: it reports through [CQHandle.Completed],
// [QPHandle.Raise] and [DeviceHandle.DispatchEvent], which defer.
//
// Create methods get a handle of the midlayer's object, for what only a driver may do to it, and the driver's own side of
// what the object is made of; they return the driver's side of it. The
// midlayer has checked what is device independent (that the objects belong to this device, that it is active)
// and holds a use count on every object that a new one refers to, so none of them goes away under the driver.
//
// What not every driver can do is in interfaces of its own: [AHDriver], [SRQDriver], [MRAdviser], [MWDriver],
// [FastRegDriver], [XRCDriver], [Disassociator], [UserContexter], [MethodDriver], [NumberReuser]; and, on the objects' side, [ReregMR],
// [CQResizer], [CQModerator], [CQCounter], [McastQP], [UserQP], [QPPeeker]. Without them the midlayer answers EOPNOTSUPP; so do the methods
// themselves for types and opcodes that they do not know. The midlayer finds them by [As], so that a driver, or an object
// of one, that wraps another has all abilities of the other.
type Driver interface {
	// QueryDevice reports the device's attributes and limits. It may sleep.
	QueryDevice() (DeviceAttr, error)
	// QueryPort reports the state of a port; ports are numbered from 1. It may sleep.
	QueryPort(port int) (PortAttr, error)
	// QueryGID reports one entry of a port's GID table, EINVAL outside of it. An empty entry has the zero GID.
	// It may sleep.
	QueryGID(port, index int) (GIDEntry, error)
	// QueryPKey reports one entry of a port's P_Key table, EINVAL outside of it. It may sleep.
	QueryPKey(port, index int) (uint16, error)

	// AllocPD makes a protection domain. Its result must compare unequal to every other domain; pointers to a type of size
	// zero may be equal. It may sleep.
	AllocPD(u *Udata) (DriverPD, error)
	// RegMR makes a memory region of r, which the midlayer has checked, charged, and releases after
	// DriverMR.Dereg; with AccessZeroBased its IOVA is 0. access makes sense in itself (no remote write without local
	// write), and may have rights for abilities that the driver lacks: it refuses them. AccessOnDemand comes only if
	// DeviceAttr.ODP has it. The driver sets the keys with mr.SetKeys. It may sleep.
	RegMR(mr MRHandle, pd DriverPD, r *umem.Region, access AccessFlags, u *Udata) (DriverMR, error)
	// CreateCQ makes a completion queue of at least attr.Entries entries, and tells how many by cq.SetEntries. attr.Vector is
	// a hint; EOPNOTSUPP for flags that it does not know. It may sleep.
	CreateCQ(cq CQHandle, attr CQAttr, u *Udata) (DriverCQ, error)
	// CreateQP makes a queue pair in state RESET. The driver stores the number by qp.SetNum and the capacities
	// that it granted, at least those asked for, in init.Cap. The queues and domains in init are what the Create methods
	// have returned, or what wraps it: find your own with As. It may sleep.
	CreateQP(qp QPHandle, init *DriverQPInit, u *Udata) (DriverQP, error)

	// EnterError is called once, when the device goes into the error state, whoever called [DeviceHandle.SetError]: no new
	// work request is to be processed, and what is in flight completes with a flush error. Queue pairs on which that is so
	// are in ERR afterwards; those in RESET stay there. The midlayer refuses what is called later, but a call that has begun
	// may still be inside the driver, so that it looks again under its lock. It may not sleep.
	EnterError()
}

// DriverPD is a driver's side of a protection domain.
type DriverPD interface {
	// Dealloc frees it. The midlayer calls it only when nothing uses the domain any more. It may sleep.
	Dealloc() error
}

// DriverMR is a driver's side of a memory region.
type DriverMR interface {
	// Dereg invalidates the keys and returns when no access through them is in flight. It may sleep.
	Dereg() error
}

// DriverCQ is a driver's side of a completion queue.
type DriverCQ interface {
	// Poll moves up to len(wc) completions, oldest first, into wc and returns how many. It writes each of them whole: the
	// caller may have used wc before. It may not sleep.
	// Concurrent calls are allowed: no completion is lost or returned twice. (struct ib_device_ops.poll_cq)
	Poll(wc []WC) (int, error)
	// ReqNotify arms the queue: the next completion (or, with NotifySolicited, the next solicited or failed one)
	// is reported once by CQHandle.Completed. With NotifyReportMissed it returns true when completions are already
	// waiting that may never be reported, so that the caller must poll again. It may not sleep.
	// (req_notify_cq)
	// EOVERFLOW, if the driver says so, of a queue that is empty and has lost a completion.
	ReqNotify(flags NotifyFlags) (missed bool, err error)
	// Destroy frees the queue and what is left in it. It may sleep.
	Destroy() error
}

// CQResizer is implemented by a DriverCQ that can change its size. (resize_cq)
type CQResizer interface {
	// Resize changes the capacity to at least entries, EINVAL if more completions are waiting than would fit. The driver
	// stores the capacity by CQHandle.SetEntries under the lock under which it changes. It may sleep.
	Resize(entries int, u *Udata) error
}

// CQCounter is implemented by a DriverCQ that knows how many completions are in it. Checked mode asks it when a handler has returned.
type CQCounter interface {
	// Waiting returns the number of completions that have not been polled. It may not sleep.
	Waiting() int
}

// DriverQP is a driver's side of a queue pair. It may be connected with itself, so that a driver that carries out a send while it
// is posted may come back to the queue pair in the middle of it.
type DriverQP interface {
	// PostSend queues work requests in order and returns how many were taken. When that is fewer than len(wrs),
	// err tells why wrs[n] was refused (ENOMEM: the queue is full; EINVAL: wrong state or request). It may not
	// sleep and does not keep wrs or what it refers to. (post_send)
	PostSend(wrs []SendWR) (n int, err error)
	// PostRecv does the same for the receive queue. It may not sleep. (post_recv)
	PostRecv(wrs []RecvWR) (n int, err error)
	// Modify changes the attributes named by mask. The driver checks by NextState, under the lock that guards the state,
	// that mask suits the type and the transition, and then the values. After an error nothing has changed. Modify to ERR
	// or RESET must not wait for another Modify that hangs. It may sleep. (modify_qp)
	Modify(attr *QPAttr, mask QPAttrMask, u *Udata) error
	// State is the present state. It may not sleep.
	State() QPState
	// Query reports the present attributes. It may sleep. (query_qp)
	Query(mask QPAttrMask) (QPAttr, error)
	// Destroy stops the queue pair, drops what is outstanding without completions, and returns when no work of it is in
	// flight. In completions of it that are still in a queue, and come to be polled later, WC.QP is nil: the driver clears
	// it. It may sleep. (destroy_qp)
	Destroy() error
}

// UserQP is implemented by a DriverQP whose send queue may be shared with a user process, which posts into it
// without a call.
type UserQP interface {
	DriverQP
	// Doorbell processes what the user has posted since. It may not sleep. The kernel's rxe does this in
	// post_send with no work request.
	//
	// The calling thread will run the callbacks of the devices in h, when the method has returned: the driver adds each device
	// on which it makes something due, so that no other thread needs to be woken. With a nil h, whose Add does nothing,
	// callbacks find a thread of their own. What it has to do for other queue pairs the driver may leave to h (see Hold.Defer);
	// this one can be destroyed as soon as Doorbell has returned. The driver does not call Run, and does not keep h.
	Doorbell(h *Hold)
	// Posted reports, cheaply, whether there seems to be something posted that Doorbell would process. at is another
	// number when more has been posted since the last call, but for coincidences. It may not sleep.
	Posted() (at uint32, some bool)
	// TakeBack removes what the user has posted to a queue pair that cannot send yet, as if it had never been posted. It may sleep.
	TakeBack()
}

// QPPeeker is implemented by a DriverQP that reports its connection without waiting for its work, which the memory of a
// program may hold up. Without it [QP.Peek] reports the state alone.
type QPPeeker interface {
	// Peek reports State, DestQPN, RQPSN and SQPSN as they were a moment ago. It may not sleep.
	Peek() QPAttr
}

// GIDDriver is implemented by a Driver whose GIDs change: address handles and queue pairs refer to those that they were given, so
// that an index in use is not reused for another GID. (rdma_cap_roce_gid_table)
type GIDDriver interface {
	// GIDTable is the table of a port, always the same, nil if there is no such port. It may not sleep.
	GIDTable(port int) *GIDTable
}

// AHDriver is implemented by a Driver with datagram service.
type AHDriver interface {
	// CreateAH makes an address handle. It may not sleep.
	CreateAH(pd DriverPD, attr *AHAttr, u *Udata) (DriverAH, error)
}

// DriverAH is a driver's side of an address handle. No method may sleep.
type DriverAH interface {
	Modify(attr *AHAttr) error
	Query() (AHAttr, error)
	Destroy() error
}

// CQModerator is implemented by a DriverCQ that can delay notifications. (modify_cq)
type CQModerator interface {
	// Moderate: see [CQ.Moderate]. It may sleep.
	Moderate(count int, period time.Duration) error
}

// McastQP is implemented by a DriverQP that can be in multicast groups. The midlayer has checked that the queue pair
// is a datagram one and the address a multicast one. (attach_mcast, detach_mcast)
type McastQP interface {
	// AttachMcast may sleep. EINVAL if the queue pair is in the group already, EADDRNOTAVAIL if the device has no
	// address of the group's family, ENOMEM if there are too many groups or members.
	AttachMcast(gid GID, lid uint16) error
	// DetachMcast may sleep. EINVAL if the queue pair is not in the group.
	DetachMcast(gid GID, lid uint16) error
}

// SRQDriver is implemented by a Driver with shared receive queues.
type SRQDriver interface {
	// CreateSRQ makes a shared receive queue. The driver stores the capacities that it granted, at least those asked
	// for, in init.Attr, and for XRC the number by srq.SetNum. It may sleep.
	CreateSRQ(srq SRQHandle, init *DriverSRQInit, u *Udata) (DriverSRQ, error)
}

// DriverSRQ is a driver's side of a shared receive queue.
type DriverSRQ interface {
	// PostRecv queues receive work requests as DriverQP.PostRecv does. It may not sleep. (post_srq_recv)
	PostRecv(wrs []RecvWR) (n int, err error)
	// Modify changes the attributes named by mask: EINVAL for less room than is taken. Setting a limit arms
	// EventSRQLimitReached. If fewer work requests than that are there already it comes at once, or with the next one that is
	// taken. It may sleep.
	Modify(attr *SRQAttr, mask SRQAttrMask, u *Udata) error
	// Query may sleep.
	Query() (SRQAttr, error)
	// Destroy drops the work requests that are left. It may sleep.
	Destroy() error
}

// MRAdviser is implemented by a Driver that takes advice about memory that is registered on demand.
type MRAdviser interface {
	// AdviseMR prefetches, or makes ready otherwise, what sgl names; errors as PD.AdviseMR. It may sleep. (advise_mr)
	AdviseMR(pd DriverPD, advice MRAdvice, flags MRAdviceFlags, sgl []SGE) error
}

// MWDriver is implemented by a Driver with memory windows.
type MWDriver interface {
	// AllocMW makes a window that is not bound. The driver sets the key with mw.SetRKey. It may sleep.
	AllocMW(mw MWHandle, pd DriverPD, kind MWType, u *Udata) (DriverMW, error)
}

// DriverMW is a driver's side of a memory window.
type DriverMW interface {
	// Dealloc unbinds the window, and returns when no access through it is in flight. It may sleep.
	Dealloc() error
}

// FastRegDriver is implemented by a Driver that registers memory by work requests.
type FastRegDriver interface {
	// AllocMR makes a region that no key leads to yet. The DriverMR implements FastMR. The driver sets the keys, which
	// are equal but for the part that the consumer may choose, with mr.SetKeys. It may sleep.
	AllocMR(mr MRHandle, pd DriverPD, maxPages int) (DriverMR, error)
}

// FastMR is the DriverMR of a region made by AllocMR.
type FastMR interface {
	DriverMR
	// Map takes the memory that the next WRRegMR registers; EBUSY while the region is registered. The midlayer
	// releases what was mapped before when it returns. It may sleep. (map_mr_sg)
	Map(r *umem.Region) error
}

// XRCDriver is implemented by a Driver with extended reliable connections.
type XRCDriver interface {
	// AllocXRCD may sleep.
	AllocXRCD(u *Udata) (DriverXRCD, error)
}

// DriverXRCD is a driver's side of an XRC domain.
type DriverXRCD interface {
	// Dealloc may sleep.
	Dealloc() error
}

// UserContexter is implemented by a Driver that wants to hear of user contexts. (alloc_ucontext,
// dealloc_ucontext)
type UserContexter interface {
	// AllocUserContext may sleep.
	AllocUserContext(u *Udata) error
	// DeallocUserContext is called when every object of the context is gone. It may sleep.
	DeallocUserContext(c UserContext)
}

// MethodDriver is implemented by a Driver with methods of its own for programs. (struct ib_device_ops, driver_def)
type MethodDriver interface {
	// Methods returns the methods, the same at each call. It may not sleep.
	Methods() []DriverMethod
}

// DriverMethod is a method of a driver for programs, in the ioctl form of the user ABI.
type DriverMethod struct {
	// The object or the method has a number of the driver's name space ([uapi.IDDriverNS]). An attribute that names an object
	// tells its type. A driver has no types of objects of its own.
	verb.Method
	Name string // for errors and traces
	// Effect determines the states of the device in which the method is called.
	Effect verb.Effect
	// Run carries out a call whose attributes have the lengths that they should have. Its error wraps a syscall.Errno. It
	// may sleep, but not wait for the process.
	Run func(MethodCall) error
}

// MethodCall is a call of a driver's method. It is valid until Run returns. Package uverbs implements it.
type MethodCall interface {
	// Context is the context of the caller.
	Context() UserContext
	// Has reports whether an optional attribute was given.
	Has(id uapi.AttrID) bool
	// Number returns an attribute of 4 or 8 bytes, 0 if it was not given.
	Number(id uapi.AttrID) uint64
	// Bytes returns an attribute from the caller, nil if it was not given.
	Bytes(id uapi.AttrID) []byte
	// Object returns the driver's side of the object that an attribute names, such as a DriverMR; nil if it was not given.
	// The object is not destroyed before Run returns.
	Object(id uapi.AttrID) any
	// Output sets an attribute for the caller, as far as there is room. The caller gets it when Run succeeds.
	Output(id uapi.AttrID, b []byte)
}

// Disassociator is implemented by a Driver that wants to hear that a user context is cut off from the device, because the
// device goes, or its contexts are to be taken away. (ib_device_ops.disassociate_ucontext)
type Disassociator interface {
	// Disassociate completes everything that is outstanding on the context's queue pairs with a flush error. When it has
	// returned, the driver takes nothing any more from the memory that it shares with the process, which stays mapped
	// there: what the process writes, or rings, has no effect. Destroying the context's objects follows, in which all
	// methods work as ever. It may sleep, but not wait for the process.
	Disassociate(c UserContext)
}

// NumberReuser is implemented by a Driver that can give out the numbers of queue pairs that are gone at once, instead of as late
// as possible.
type NumberReuser interface {
	// ReuseNumbers makes new queue pairs have the lowest number that is free. It is called before the device is registered.
	ReuseNumbers()
}

// UserContext is the open device file in whose name an object is made. Package uverbs implements it.
type UserContext interface {
	// AllocShared returns zeroed memory of at least size bytes, a whole number of pages, that the user can map.
	// The driver owns it until Shared.Free. It may sleep. ENOMEM when there is no room.
	AllocShared(size int) (Shared, error)
}

// LibraryFault is a fault of the RDMA library in a program, as the driver finds it in memory that both share.
type LibraryFault uint8

const (
	// Overconsumed: the program has taken more completions out of a queue than were there. The driver has put the index back.
	Overconsumed LibraryFault = iota
	// LengthLost: a request has inline data and the length 0. The driver sends an empty message.
	LengthLost
	NumLibraryFaults
)

// LibraryFaulter is implemented by a UserContext whose user can be told of faults of the library.
type LibraryFaulter interface {
	// LibraryFault is called each time that the driver finds the fault. It may not sleep, and is called under locks of the driver.
	LibraryFault(LibraryFault)
}

// Shared is memory that a driver and a user process both see. The user may write anything into it at any time,
// and may even take the pages away (truncation): a driver reads each field once, believes none, and survives a
// memory fault on access (see runtime/debug.SetPanicOnFault).
type Shared struct {
	// Mem is the driver's view.
	Mem []byte
	// Offset is what the user passes to mmap.
	Offset uint64
	// Free returns the memory. The user's mappings stay valid; the driver must not touch Mem afterwards.
	Free func()
}

// Udata carries a command's driver-specific part (struct ib_udata). A nil *Udata means that the caller is not a
// user process.
type Udata struct {
	Context UserContext
	// In is what the user sent for the driver.
	In []byte
	// Space is where addresses in In point: the memory of the process that issued the command.
	Space umem.Space
	// Out is room for the driver's answer; it may be shorter than what the driver has to say. Respond fills it.
	Out []byte
	// N is the number of bytes of Out that the driver filled.
	N int
	// Defer takes what is to be stored in the memory of the process when the method has returned, and the caller holds no
	// lock: that may take as long as the process likes. A method calls it at most once, last. Where it is nil the method
	// does it itself.
	Defer func(Stored)
}

// Stored is what a driver has to store in the memory of the process.
type Stored struct {
	Addr uint64
	Data []byte
	Done func() error // called when it has been stored; the error is the method's
	Drop func()       // called when it could not be
}

// Respond copies as much of b into Out as fits. (ib_copy_to_udata)
func (u *Udata) Respond(b []byte) { u.N = copy(u.Out, b) }
