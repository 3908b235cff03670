package ib

import (
	"time"

	"verbena/uapi"
	"verbena/uapi/verb"
	"verbena/umem"
)

// Driver is the method table of a low-level driver (struct ib_device_ops). One value serves one device.
//
// Every method is fully reentrant: the midlayer serialises nothing. A method may sleep unless its comment forbids it.
// Methods that may not sleep are called from any context, completion handlers included; they must not block on anything
// that a consumer, a peer or the kernel may hold up without bound (see the package comment). No method calls a consumer
// from its callchain. It reports through [CQHandle.Completed], [QPHandle.Raise] and [DeviceHandle.DispatchEvent], which
// defer the callback.
//
// A Create method receives a handle of the midlayer's object, which has the operations for drivers only, and the
// driver's side of each object that the new one refers to. It returns the driver's side of the new object. The midlayer
// has done the checks that do not depend on the device: the objects belong to this device, and it is active. It holds a
// use count on each object that the new one refers to, so none of them can be destroyed meanwhile.
//
// Features that a driver may lack are interfaces of their own: [AHDriver], [SRQDriver], [MRAdviser], [MWDriver],
// [FastRegDriver], [XRCDriver], [Disassociator], [UserContexter], [MethodDriver], [NumberReuser]; and, for objects,
// [ReregMR], [CQResizer], [CQModerator], [CQCounter], [McastQP], [UserQP], [QPPeeker]. Without them the midlayer
// returns EOPNOTSUPP. Methods return it too, for types and opcodes that they do not support. The midlayer finds the
// interfaces with [As], so a wrapper of a driver or of an object has all features of the wrapped value.
type Driver interface {
	// QueryDevice returns the attributes and limits of the device. It may sleep.
	QueryDevice() (DeviceAttr, error)
	// QueryPort returns the state of a port; ports are numbered from 1. It may sleep.
	QueryPort(port int) (PortAttr, error)
	// QueryGID returns one entry of a port's GID table; EINVAL for an index outside the table. An empty entry has the
	// zero GID. It may sleep.
	QueryGID(port, index int) (GIDEntry, error)
	// QueryPKey returns one entry of a port's P_Key table; EINVAL for an index outside the table. It may sleep.
	QueryPKey(port, index int) (uint16, error)

	// AllocPD creates a protection domain. Its result must compare unequal to every other domain; pointers to a type of
	// size zero may compare equal. It may sleep.
	AllocPD(u *Udata) (DriverPD, error)
	// RegMR creates a memory region for r. The midlayer has checked r and charged its pages; it releases r after
	// DriverMR.Dereg. With AccessZeroBased the IOVA is 0. access is consistent (no remote write without local write).
	// The driver must reject rights that it does not support. AccessOnDemand is set only if DeviceAttr.ODP has it. The
	// driver sets the keys with mr.SetKeys. It may sleep.
	RegMR(mr MRHandle, pd DriverPD, r *umem.Region, access AccessFlags, u *Udata) (DriverMR, error)
	// CreateCQ creates a completion queue of at least attr.Entries entries, and reports the actual number with
	// cq.SetEntries. attr.Vector is a hint. It returns EOPNOTSUPP for unsupported flags. It may sleep.
	CreateCQ(cq CQHandle, attr CQAttr, u *Udata) (DriverCQ, error)
	// CreateQP creates a queue pair in state RESET. The driver stores the number with qp.SetNum, and in init.Cap the
	// actual capacities, which are at least the requested ones. The queues and domains in init are results of the
	// Create methods, or wrappers of them: use As to find the driver's own type. It may sleep.
	CreateQP(qp QPHandle, init *DriverQPInit, u *Udata) (DriverQP, error)

	// EnterError is called once, when [DeviceHandle.SetError] moves the device to the error state. The driver must
	// process no new work requests and complete those in flight with a flush error. Affected queue pairs move to ERR;
	// those in RESET stay there. The midlayer rejects later calls, but a call that has begun may still be inside the
	// driver, so the driver must check the state again under its lock. It may not sleep.
	EnterError()
}

// DriverPD is the driver's side of a protection domain.
type DriverPD interface {
	// Dealloc frees the domain. The midlayer calls it only when no object uses the domain. It may sleep.
	Dealloc() error
}

// DriverMR is the driver's side of a memory region.
type DriverMR interface {
	// Dereg invalidates the keys. It returns when no access through them is in flight. It may sleep.
	Dereg() error
}

// DriverCQ is the driver's side of a completion queue.
type DriverCQ interface {
	// Poll moves up to len(wc) completions, oldest first, into wc and returns their number. It writes every field of
	// each: the caller may have used wc before. Concurrent calls are allowed: no completion is lost or returned twice.
	// It may not sleep. (struct ib_device_ops.poll_cq)
	Poll(wc []WC) (int, error)
	// ReqNotify arms the queue: CQHandle.Completed reports the next completion once; with NotifySolicited, the next
	// solicited or failed one. With NotifyReportMissed it returns true if the queue holds completions that may never be
	// reported; the caller must poll again. A driver may return EOVERFLOW if the queue is empty and has lost a
	// completion. It may not sleep. (req_notify_cq)
	ReqNotify(flags NotifyFlags) (missed bool, err error)
	// Destroy frees the queue and the completions in it. It may sleep.
	Destroy() error
}

// CQResizer is implemented by a DriverCQ that can change its capacity. (resize_cq)
type CQResizer interface {
	// Resize changes the capacity to at least entries; EINVAL if the queue holds more completions than that. The driver
	// calls CQHandle.SetEntries under the lock that guards the capacity. It may sleep.
	Resize(entries int, u *Udata) error
}

// CQCounter is implemented by a DriverCQ that knows the number of its completions. Checked mode calls it after each
// handler.
type CQCounter interface {
	// Waiting returns the number of completions that have not been polled. It may not sleep.
	Waiting() int
}

// DriverQP is the driver's side of a queue pair. A queue pair may be connected to itself. A driver that executes a send
// inside PostSend may then re-enter the same queue pair.
type DriverQP interface {
	// PostSend queues work requests in order and returns the number accepted. If n < len(wrs), err is the reason for
	// rejecting wrs[n] (ENOMEM: the queue is full; EINVAL: wrong state or invalid request). It does not keep wrs or any
	// memory that wrs refers to. It may not sleep. (post_send)
	PostSend(wrs []SendWR) (n int, err error)
	// PostRecv does the same for the receive queue. It may not sleep. (post_recv)
	PostRecv(wrs []RecvWR) (n int, err error)
	// Modify changes the attributes named by mask. The driver uses NextState, under the lock that guards the state, to
	// check that mask suits the type and the transition; then it checks the values. After an error nothing has changed.
	// A Modify to ERR or RESET must not wait for another Modify that is blocked. It may sleep. (modify_qp)
	Modify(attr *QPAttr, mask QPAttrMask, u *Udata) error
	// State returns the current state. It may not sleep.
	State() QPState
	// Query returns the current attributes. It may sleep. (query_qp)
	Query(mask QPAttrMask) (QPAttr, error)
	// Destroy stops the queue pair and drops outstanding work requests without completions. It returns when no work of
	// the queue pair is in flight. The driver sets WC.QP to nil in completions of the queue pair that are still in a
	// queue. It may sleep. (destroy_qp)
	Destroy() error
}

// UserQP is implemented by a DriverQP whose send queue can be shared with a user process, which posts to it without a
// call.
type UserQP interface {
	DriverQP
	// Doorbell processes the work requests that the user has posted since the last call. The kernel's rxe does this in
	// post_send without a work request.
	//
	// After Doorbell has returned, the calling thread runs the callbacks of the devices in h. The driver adds each
	// device for which it makes callbacks due, so that no other thread needs to be woken. With a nil h, whose Add does
	// nothing, another thread runs the callbacks. The driver may defer its work for other queue pairs to h (see
	// Hold.Defer); this one can be destroyed as soon as Doorbell has returned. The driver does not call Run, and does
	// not keep h. It may not sleep.
	Doorbell(h *Hold)
	// Posted reports, cheaply, whether Doorbell would find posted work requests. The value of at changes when more is
	// posted, except by coincidence. It may not sleep.
	Posted() (at uint32, some bool)
	// TakeBack removes the work requests that the user has posted to a queue pair that cannot send yet. It may sleep.
	TakeBack()
}

// QPPeeker is implemented by a DriverQP that can report its connection without waiting for its work, which the memory
// of a program may delay. Without it [QP.Peek] reports only the state.
type QPPeeker interface {
	// Peek returns recent values of State, DestQPN, RQPSN and SQPSN. It may not sleep.
	Peek() QPAttr
}

// GIDDriver is implemented by a Driver with changing GIDs. Address handles and queue pairs hold references to their
// GIDs, so that an index in use is not reused for another GID. (rdma_cap_roce_gid_table)
type GIDDriver interface {
	// GIDTable returns the table of a port, or nil if there is no such port. It returns the same table at each call. It
	// may not sleep.
	GIDTable(port int) *GIDTable
}

// AHDriver is implemented by a Driver with datagram service.
type AHDriver interface {
	// CreateAH makes an address handle. It may not sleep.
	CreateAH(pd DriverPD, attr *AHAttr, u *Udata) (DriverAH, error)
}

// DriverAH is the driver's side of an address handle. No method may sleep.
type DriverAH interface {
	Modify(attr *AHAttr) error
	Query() (AHAttr, error)
	Destroy() error
}

// CQModerator is implemented by a DriverCQ that can delay notifications. (modify_cq)
type CQModerator interface {
	// Moderate implements [CQ.Moderate]. It may sleep.
	Moderate(count int, period time.Duration) error
}

// McastQP is implemented by a DriverQP that can join multicast groups. The midlayer has checked that the queue pair is
// of a datagram type and that the address is a multicast address. (attach_mcast, detach_mcast)
type McastQP interface {
	// AttachMcast joins a group. It returns EINVAL if the queue pair is a member already, EADDRNOTAVAIL if the device
	// has no address of the group's family, ENOMEM if there are too many groups or members. It may sleep.
	AttachMcast(gid GID, lid uint16) error
	// DetachMcast leaves a group; EINVAL if the queue pair is not a member. It may sleep.
	DetachMcast(gid GID, lid uint16) error
}

// SRQDriver is implemented by a Driver with shared receive queues.
type SRQDriver interface {
	// CreateSRQ creates a shared receive queue. The driver stores in init.Attr the actual capacities, which are at
	// least the requested ones, and for XRC the number with srq.SetNum. It may sleep.
	CreateSRQ(srq SRQHandle, init *DriverSRQInit, u *Udata) (DriverSRQ, error)
}

// DriverSRQ is the driver's side of a shared receive queue.
type DriverSRQ interface {
	// PostRecv queues receive work requests as DriverQP.PostRecv does. It may not sleep. (post_srq_recv)
	PostRecv(wrs []RecvWR) (n int, err error)
	// Modify changes the attributes named by mask; EINVAL for a capacity below the number of queued work requests.
	// Setting a limit arms EventSRQLimitReached. If the queue already holds fewer work requests than the limit, the
	// event is raised at once or when the next work request is consumed. It may sleep.
	Modify(attr *SRQAttr, mask SRQAttrMask, u *Udata) error
	// Query returns the current attributes. It may sleep.
	Query() (SRQAttr, error)
	// Destroy drops the remaining work requests. It may sleep.
	Destroy() error
}

// MRAdviser is implemented by a Driver that accepts advice about memory registered on demand.
type MRAdviser interface {
	// AdviseMR prefetches the memory of sgl, or otherwise prepares it; errors as for PD.AdviseMR. It may sleep.
	// (advise_mr)
	AdviseMR(pd DriverPD, advice MRAdvice, flags MRAdviceFlags, sgl []SGE) error
}

// MWDriver is implemented by a Driver with memory windows.
type MWDriver interface {
	// AllocMW creates an unbound window. The driver sets the key with mw.SetRKey. It may sleep.
	AllocMW(mw MWHandle, pd DriverPD, kind MWType, u *Udata) (DriverMW, error)
}

// DriverMW is the driver's side of a memory window.
type DriverMW interface {
	// Dealloc unbinds the window. It returns when no access through it is in flight. It may sleep.
	Dealloc() error
}

// FastRegDriver is implemented by a Driver that registers memory by work requests.
type FastRegDriver interface {
	// AllocMR creates a region without valid keys. The DriverMR implements FastMR. The driver sets the keys with
	// mr.SetKeys; they are equal except for the part that the consumer may choose. It may sleep.
	AllocMR(mr MRHandle, pd DriverPD, maxPages int) (DriverMR, error)
}

// FastMR is the DriverMR of a region made by AllocMR.
type FastMR interface {
	DriverMR
	// Map sets the memory that the next WRRegMR registers; EBUSY while the region is registered. The midlayer releases
	// the previous memory once Map has returned. It may sleep. (map_mr_sg)
	Map(r *umem.Region) error
}

// XRCDriver is implemented by a Driver with extended reliable connections.
type XRCDriver interface {
	// AllocXRCD creates an XRC domain. It may sleep.
	AllocXRCD(u *Udata) (DriverXRCD, error)
}

// DriverXRCD is the driver's side of an XRC domain.
type DriverXRCD interface {
	// Dealloc frees the domain. It may sleep.
	Dealloc() error
}

// UserContexter is implemented by a Driver that keeps state for each user context. (alloc_ucontext, dealloc_ucontext)
type UserContexter interface {
	// AllocUserContext is called for each new context. It may sleep.
	AllocUserContext(u *Udata) error
	// DeallocUserContext is called after every object of the context has been destroyed. It may sleep.
	DeallocUserContext(c UserContext)
}

// MethodDriver is implemented by a Driver with ioctl methods of its own. (struct ib_device_ops, driver_def)
type MethodDriver interface {
	// Methods returns the methods, which must not change. It may not sleep.
	Methods() []DriverMethod
}

// DriverMethod is a driver's own ioctl method.
type DriverMethod struct {
	// The object or the method has a number in the driver's namespace ([uapi.IDDriverNS]). An attribute that names an
	// object specifies its type. A driver cannot define object types.
	verb.Method
	Name string // for errors and traces
	// Effect determines the device states in which the method may be called.
	Effect verb.Effect
	// Run executes a call. The lengths of the attributes have been checked. Its error wraps a syscall.Errno. It may
	// sleep, but must not wait for the process.
	Run func(MethodCall) error
}

// MethodCall is a call of a driver's method. It is valid until Run returns. Package uverbs implements it.
type MethodCall interface {
	// Context returns the context of the caller.
	Context() UserContext
	// Has reports whether the caller passed an optional attribute.
	Has(id uapi.AttrID) bool
	// Number returns an attribute of 4 or 8 bytes, or 0 if the caller did not pass it.
	Number(id uapi.AttrID) uint64
	// Bytes returns an input attribute, or nil if the caller did not pass it.
	Bytes(id uapi.AttrID) []byte
	// Object returns the driver's side of the object that an attribute names, such as a DriverMR, or nil if the caller
	// did not pass it. The object is not destroyed before Run returns.
	Object(id uapi.AttrID) any
	// Output sets an output attribute, truncated to the caller's buffer. It is copied to the caller if Run succeeds.
	Output(id uapi.AttrID, b []byte)
}

// Disassociator is implemented by a Driver that must act when a user context is detached from the device. This happens
// when the device is removed, and when its contexts are revoked. (ib_device_ops.disassociate_ucontext)
type Disassociator interface {
	// Disassociate completes all outstanding work requests of the context's queue pairs with a flush error. Once it has
	// returned, the driver reads no more from the memory that it shares with the process. The memory stays mapped
	// there, but the process's writes and doorbells have no effect. The objects of the context are destroyed next;
	// their methods work as before. It may sleep, but must not wait for the process.
	Disassociate(c UserContext)
}

// NumberReuser is implemented by a Driver that can reuse the numbers of destroyed queue pairs at once, instead of as
// late as possible.
type NumberReuser interface {
	// ReuseNumbers makes new queue pairs take the lowest free number. It is called before the device is registered.
	ReuseNumbers()
}

// UserContext is the open device file that owns an object. Package uverbs implements it.
type UserContext interface {
	// AllocShared returns zeroed memory of at least size bytes, rounded up to whole pages, that the user can map. The
	// driver owns it until Shared.Free. It returns ENOMEM if there is no space. It may sleep.
	AllocShared(size int) (Shared, error)
}

// LibraryFault is a fault of a program's RDMA library that the driver detects in shared memory.
type LibraryFault uint8

const (
	// Overconsumed: the program has consumed more completions than the queue held. The driver has reset the index.
	Overconsumed LibraryFault = iota
	// LengthLost: a request has inline data and length 0. The driver sends an empty message.
	LengthLost
	NumLibraryFaults
)

// LibraryFaulter is implemented by a UserContext that reports faults of the library to its user.
type LibraryFaulter interface {
	// LibraryFault is called each time the driver detects the fault. The driver may hold locks. It may not sleep.
	LibraryFault(LibraryFault)
}

// Shared is memory shared between a driver and a user process. The user may write any value into it at any time, and
// may truncate the file behind it. A driver must read each field once, validate it, and survive a memory fault on
// access (see runtime/debug.SetPanicOnFault).
type Shared struct {
	// Mem is the driver's mapping.
	Mem []byte
	// Offset is the offset that the user passes to mmap.
	Offset uint64
	// Free releases the memory. The user's mappings stay valid; the driver must not touch Mem afterwards.
	Free func()
}

// Udata carries the driver-private part of a command (struct ib_udata). A nil *Udata means that the caller is not a
// user process.
type Udata struct {
	Context UserContext
	// In is the driver-private request data.
	In []byte
	// Space is the address space of addresses in In: the memory of the process that issued the command.
	Space umem.Space
	// Out is the buffer for the driver-private response, which Respond fills. It may be shorter than the response.
	Out []byte
	// N is the number of bytes of Out that the driver has written.
	N int
	// Defer takes a store to the memory of the process. The store happens after the method has returned, when the
	// caller holds no lock, because it may take as long as the process likes. A method calls Defer at most once, as its
	// last action. If Defer is nil, the method stores the data itself.
	Defer func(Stored)
}

// Stored is data that a driver stores in the memory of the process.
type Stored struct {
	Addr uint64
	Data []byte
	Done func() error // called after the store; its error becomes the error of the method
	Drop func()       // called if the store has failed
}

// Respond copies as much of b into Out as fits. (ib_copy_to_udata)
func (u *Udata) Respond(b []byte) { u.N = copy(u.Out, b) }
