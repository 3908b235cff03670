package ib

import (
	"time"

	"verbena/uapi"
	"verbena/uapi/verb"
	"verbena/umem"
)

// Driver is the method table of a low-level driver (struct ib_device_ops). One value serves one device.
//
// Every method is fully reentrant, because the midlayer serialises no calls. A method may sleep unless its comment
// forbids it. Methods that may not sleep are called from any context, including completion handlers. These methods must
// not block on an event that a consumer, a peer or the kernel may delay without limit (see the package comment). No
// method calls a consumer from its callchain. Methods report events through [CQHandle.Completed], [QPHandle.Raise] and
// [DeviceHandle.DispatchEvent], which defer the callback.
//
// A Create method receives a handle of the midlayer's object, which has the operations for drivers only. The method
// also receives the driver's side of each object that the new object refers to. A Create method returns the driver's
// side of the new object. The midlayer has made the checks that do not depend on the driver: the device is active, and
// all objects belong to this device. The midlayer holds a use count on each object that the new object refers to. None
// of these objects can therefore be destroyed during the call.
//
// Optional features are separate interfaces: [AHDriver], [SRQDriver], [MRAdviser], [MWDriver], [FastRegDriver],
// [XRCDriver], [Disassociator], [UserContexter], [MethodDriver], [NumberReuser], [Refiller]; and, for objects,
// [ReregMR], [CQResizer], [CQModerator], [CQCounter], [McastQP], [UserQP], [QPPeeker], [SendQueuer]. If the interface
// is not implemented, the midlayer returns EOPNOTSUPP. Methods also return EOPNOTSUPP for unsupported types and
// opcodes. The midlayer finds the interfaces with [As]. A wrapper of a driver or of an object therefore has all
// features of the wrapped value.
type Driver interface {
	// QueryDevice returns the attributes and limits of the device. QueryDevice may sleep.
	QueryDevice() (DeviceAttr, error)
	// QueryPort returns the state of a port; ports are numbered from 1. QueryPort may sleep.
	QueryPort(port int) (PortAttr, error)
	// QueryGID returns one entry of a port's GID table. QueryGID returns EINVAL for an index outside the table. An
	// empty entry has the zero GID. QueryGID may sleep.
	QueryGID(port, index int) (GIDEntry, error)
	// QueryPKey returns one entry of a port's P_Key table. QueryPKey returns EINVAL for an index outside the table.
	// QueryPKey may sleep.
	QueryPKey(port, index int) (uint16, error)

	// AllocPD creates a protection domain. The result must compare unequal to every other domain. Pointers to a type of
	// size zero may compare equal and are not suitable. AllocPD may sleep.
	AllocPD(u *Udata) (DriverPD, error)
	// RegMR creates a memory region for r. The midlayer has checked r and charged its pages. The midlayer releases r
	// after DriverMR.Dereg. With AccessZeroBased the IOVA is 0. access is consistent: a remote write right implies the
	// local write right. The driver must reject rights that it does not support. AccessOnDemand is set only if
	// DeviceAttr.ODP includes ODPSupport. The driver sets the keys with mr.SetKeys. RegMR may sleep.
	RegMR(mr MRHandle, pd DriverPD, r *umem.Region, access AccessFlags, u *Udata) (DriverMR, error)
	// CreateCQ creates a completion queue of at least attr.Entries entries, and reports the actual number with
	// cq.SetEntries. attr.Vector is a hint. CreateCQ returns EOPNOTSUPP for unsupported flags. CreateCQ may sleep.
	CreateCQ(cq CQHandle, attr CQAttr, u *Udata) (DriverCQ, error)
	// CreateQP creates a queue pair in state RESET. The driver passes the number to qp.SetNum. CreateQP stores the
	// actual capacities, which are at least the requested ones, in init.Cap. The queues and domains in init are results
	// of the Create methods, or wrappers of these results. A driver finds its own type with As. CreateQP may sleep.
	CreateQP(qp QPHandle, init *DriverQPInit, u *Udata) (DriverQP, error)

	// EnterError is called once, when [DeviceHandle.SetError] moves the device to the error state. The driver must stop
	// processing new work requests. Work requests in flight complete with a flush error. Affected queue pairs move to
	// ERR, also those in INIT and RTR; queue pairs in RESET remain there. The midlayer rejects later calls, but earlier
	// calls may still be inside the driver. The driver must therefore check the state of the device again under its lock.
	// A queue pair that such a call creates or modifies does no work, and its work requests are flushed. EnterError may
	// not sleep.
	EnterError()
}

// DriverPD is the driver's side of a protection domain.
type DriverPD interface {
	// Dealloc frees the domain. The midlayer calls Dealloc only when no object uses the domain. Dealloc may sleep.
	Dealloc() error
}

// DriverMR is the driver's side of a memory region.
type DriverMR interface {
	// Dereg invalidates the keys. Dereg returns when no access with the keys is in flight. Dereg may sleep.
	Dereg() error
}

// DriverCQ is the driver's side of a completion queue.
type DriverCQ interface {
	// Poll moves up to len(wc) completions, oldest first, into wc and returns their number. Fewer than len(wc) mean that
	// the queue was empty during the call. Consumers may not rely on this: for them package ib/weak delays
	// completions. Poll writes every field of each element, because the caller may have used wc before. Concurrent
	// calls are allowed: no completion is lost or returned twice. Poll may not sleep. (struct ib_device_ops.poll_cq)
	Poll(wc []WC) (int, error)
	// ReqNotify arms the queue: CQHandle.Completed reports the next completion once. With NotifySolicited it reports
	// the next solicited or failed completion, and flushed work requests have failed. A queue that is armed for the next
	// completion stays so after a call with NotifySolicited (IBA 11.4.2.2). With NotifyReportMissed ReqNotify returns
	// true if the queue holds completions that may never be reported, also if the queue was armed before. The caller must
	// then poll again. The queue may turn out to be empty, but not after each call. A driver may return EOVERFLOW if the
	// queue is empty and has lost a completion. ReqNotify may not sleep. (req_notify_cq)
	ReqNotify(flags NotifyFlags) (missed bool, err error)
	// Destroy frees the queue and the completions in it. Destroy may sleep.
	Destroy() error
}

// CQResizer is implemented by a DriverCQ that can change its capacity. (resize_cq)
type CQResizer interface {
	// Resize changes the capacity to at least entries. Resize returns EINVAL if the queue holds more completions than
	// entries. The queue keeps its completions, stays armed, and loses no delayed notification. The driver calls
	// CQHandle.SetEntries under the lock that protects the capacity. Resize may sleep.
	Resize(entries int, u *Udata) error
}

// CQCounter is implemented by a DriverCQ that can count its completions. Checked mode calls it after each handler.
type CQCounter interface {
	// Waiting returns the number of completions that have not been polled. Waiting may not sleep.
	Waiting() int
}

// DriverQP is the driver's side of a queue pair. A queue pair may be connected to itself. A driver that executes a send
// inside PostSend may therefore re-enter the same queue pair.
type DriverQP interface {
	// PostSend queues work requests in order and returns the number accepted. If n < len(wrs), err is the reason for
	// the rejection of wrs[n]: ENOMEM means a full queue, EINVAL a wrong state or an invalid request. PostSend does not
	// retain wrs or any memory that wrs refers to. PostSend may not sleep. (post_send)
	PostSend(wrs []SendWR) (n int, err error)
	// PostRecv is the equivalent of PostSend for the receive queue. PostRecv may not sleep. (post_recv)
	PostRecv(wrs []RecvWR) (n int, err error)
	// Modify changes the attributes named by mask. The driver holds the lock that protects the state, and checks with
	// NextState that mask suits the type and the transition. Modify then checks the values. After an error the
	// attributes are unchanged. A Modify to ERR or RESET must not wait for another blocked Modify. Modify may sleep.
	// (modify_qp)
	Modify(attr *QPAttr, mask QPAttrMask, u *Udata) error
	// State returns the current state. State may not sleep.
	State() QPState
	// Query returns the current attributes. Query may sleep. (query_qp)
	Query(mask QPAttrMask) (QPAttr, error)
	// Destroy stops the queue pair and drops outstanding work requests without completions. Destroy returns when no
	// work of the queue pair is in flight. Completions of the queue pair remain in a CQ, with WC.QP set to nil, or are
	// removed. Destroy may sleep. (destroy_qp)
	Destroy() error
}

// UserQP is implemented by a DriverQP whose send queue can be shared with a user process. The process posts to this
// queue without a call.
type UserQP interface {
	DriverQP
	// Doorbell processes the work requests that the user has posted since the last call. The kernel's rxe does the same
	// in post_send without a work request.
	//
	// After Doorbell has returned, the calling thread runs the callbacks of the devices in h. The driver adds each
	// device for which it makes callbacks due to h. No other thread then needs to be woken. If h is nil, Add has no
	// effect, and another thread runs the callbacks. The driver may defer its work for other queue pairs to h (see
	// Hold.Defer). The queue pair itself may be destroyed as soon as Doorbell has returned. The driver does not call
	// Run, and does not retain h. Doorbell may not sleep.
	Doorbell(h *Hold)
	// Posted reports, at low cost, whether Doorbell would find posted work requests. The value at changes when more
	// requests are posted, except by coincidence. Posted may not sleep.
	Posted() (at uint32, some bool)
	// TakeBack removes the user's posted work requests from a queue pair that cannot send yet. TakeBack may sleep.
	TakeBack()
}

// QPPeeker is implemented by a DriverQP that can report its connection without waiting for its work. The memory of a
// program may delay this work. Without QPPeeker, [QP.Peek] reports only the state.
type QPPeeker interface {
	// Peek returns recent values of State, DestQPN, RQPSN and SQPSN. Peek may not sleep.
	Peek() QPAttr
}

// GIDDriver is implemented by a Driver with changing GIDs. Address handles and queue pairs hold references to their
// GIDs. An index in use is therefore not reused for another GID. (rdma_cap_roce_gid_table)
type GIDDriver interface {
	// GIDTable returns the table of a port, or nil if the port does not exist. All calls for a port return the same
	// table. GIDTable may not sleep.
	GIDTable(port int) *GIDTable
}

// PortSpeeder is implemented by a Driver that reports the effective speed of its ports. (query_port_speed)
type PortSpeeder interface {
	// PortSpeed returns the speed of a port in units of 100 Mb/s. It may sleep.
	PortSpeed(port int) (uint64, error)
}

// AHDriver is implemented by a Driver with datagram service.
type AHDriver interface {
	// CreateAH makes an address handle. CreateAH may not sleep.
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
	// Moderate implements [CQ.Moderate]. Moderate may sleep.
	Moderate(count int, period time.Duration) error
}

// McastQP is implemented by a DriverQP that can join multicast groups. The midlayer has checked that the queue pair is
// a datagram QP and that the address is a multicast address. (attach_mcast, detach_mcast)
type McastQP interface {
	// AttachMcast joins a group. AttachMcast returns EINVAL if the queue pair is already a member. AttachMcast returns
	// EADDRNOTAVAIL if the device has no address of the group's family, and ENOMEM if there are too many groups or
	// members. AttachMcast may sleep.
	AttachMcast(gid GID, lid uint16) error
	// DetachMcast leaves a group. DetachMcast returns EINVAL if the queue pair is not a member. DetachMcast may sleep.
	DetachMcast(gid GID, lid uint16) error
}

// SRQDriver is implemented by a Driver with shared receive queues.
type SRQDriver interface {
	// CreateSRQ creates a shared receive queue. The driver stores the actual capacities, which are at least the
	// requested ones, in init.Attr. For XRC it passes the number to srq.SetNum. CreateSRQ may sleep.
	CreateSRQ(srq SRQHandle, init *DriverSRQInit, u *Udata) (DriverSRQ, error)
}

// DriverSRQ is the driver's side of a shared receive queue.
type DriverSRQ interface {
	// PostRecv queues receive work requests like DriverQP.PostRecv. PostRecv may not sleep. (post_srq_recv)
	PostRecv(wrs []RecvWR) (n int, err error)
	// Modify changes the attributes named by mask. The new capacity is at least the requested one. Modify returns EINVAL
	// for a capacity below the number of queued work requests. Setting a limit arms EventSRQLimitReached. If the queue
	// already holds fewer work requests than the limit, the event is raised at once or when the next work request is
	// consumed. Modify may sleep.
	Modify(attr *SRQAttr, mask SRQAttrMask, u *Udata) error
	// Query returns the current attributes. Query may sleep.
	Query() (SRQAttr, error)
	// Destroy drops the remaining work requests. Destroy may sleep.
	Destroy() error
}

// MRAdviser is implemented by a Driver that accepts advice about memory registered on demand.
type MRAdviser interface {
	// AdviseMR prefetches the memory of sgl, or otherwise prepares it. The errors are those of PD.AdviseMR. AdviseMR
	// may sleep. (advise_mr)
	AdviseMR(pd DriverPD, advice MRAdvice, flags MRAdviceFlags, sgl []SGE) error
}

// MWDriver is implemented by a Driver with memory windows.
type MWDriver interface {
	// AllocMW creates an unbound window. The driver sets the key with mw.SetRKey. AllocMW may sleep.
	AllocMW(mw MWHandle, pd DriverPD, kind MWType, u *Udata) (DriverMW, error)
}

// DriverMW is the driver's side of a memory window.
type DriverMW interface {
	// Dealloc unbinds the window. Dealloc returns when no access through the window is in flight. Dealloc may sleep.
	Dealloc() error
}

// FastRegDriver is implemented by a Driver that registers memory by work requests.
type FastRegDriver interface {
	// AllocMR creates a region without valid keys. The DriverMR implements FastMR. The driver passes the keys to
	// mr.SetKeys. The local and the remote key may differ. The consumer chooses their low 8 bits (MR.UpdateKey). AllocMR
	// may sleep.
	AllocMR(mr MRHandle, pd DriverPD, maxPages int) (DriverMR, error)
}

// FastMR is the DriverMR of a region made by AllocMR.
type FastMR interface {
	DriverMR
	// Map sets the memory that the next WRRegMR registers. Map returns EBUSY while the region is registered. The
	// midlayer releases the previous memory once Map has returned. Map may sleep. (map_mr_sg)
	Map(r *umem.Region) error
}

// XRCDriver is implemented by a Driver with extended reliable connections.
type XRCDriver interface {
	// AllocXRCD creates an XRC domain. AllocXRCD may sleep.
	AllocXRCD(u *Udata) (DriverXRCD, error)
}

// DriverXRCD is the driver's side of an XRC domain.
type DriverXRCD interface {
	// Dealloc frees the domain. Dealloc may sleep.
	Dealloc() error
}

// UserContexter is implemented by a Driver that has state for each user context. (alloc_ucontext, dealloc_ucontext)
type UserContexter interface {
	// AllocUserContext is called for each new context. AllocUserContext may sleep.
	AllocUserContext(u *Udata) error
	// DeallocUserContext is called after every object of the context has been destroyed. DeallocUserContext may sleep.
	DeallocUserContext(c UserContext)
}

// MethodDriver is implemented by a Driver with its own ioctl methods. (struct ib_device_ops, driver_def)
type MethodDriver interface {
	// Methods returns the methods. The methods must not change. Methods may not sleep.
	Methods() []DriverMethod
}

// DriverMethod is a driver's own ioctl method.
type DriverMethod struct {
	// The number of the object or of the method is in the driver's namespace ([uapi.IDDriverNS]). An attribute that
	// names an object specifies its type. A driver cannot define object types.
	verb.Method
	Name string // for errors and traces
	// Effect determines the device states in which the method may be called.
	Effect verb.Effect
	// Run executes a call. The lengths of the attributes have been checked. The error of Run wraps a syscall.Errno. Run
	// may sleep, but must not wait for the process.
	Run func(MethodCall) error
}

// MethodCall is a call of a driver's method. A MethodCall is valid until Run returns. Package uverbs implements
// MethodCall.
type MethodCall interface {
	// Context returns the context of the caller.
	Context() UserContext
	// Has reports whether the caller passed an optional attribute.
	Has(id uapi.AttrID) bool
	// Number returns an attribute of 4 or 8 bytes, or 0 if the caller did not pass it.
	Number(id uapi.AttrID) uint64
	// Bytes returns an input attribute, or nil if the caller did not pass it.
	Bytes(id uapi.AttrID) []byte
	// Object returns the driver's side of the object that an attribute names, such as a DriverMR. Object returns nil if
	// the caller did not pass the attribute. The object cannot be destroyed before Run returns.
	Object(id uapi.AttrID) any
	// Output sets an output attribute, truncated to the caller's buffer. The attribute is copied to the caller if Run
	// succeeds.
	Output(id uapi.AttrID, b []byte)
}

// Disassociator is implemented by a Driver that must act when a user context is detached from the device. A context is
// detached when the device is removed, or when the contexts of the device are revoked.
// (ib_device_ops.disassociate_ucontext)
type Disassociator interface {
	// Disassociate completes all outstanding work requests of the context's queue pairs with a flush error. After
	// Disassociate has returned, the driver does not read the memory that it shares with the process. The memory
	// remains mapped in the process, but writes and doorbells of the process have no effect. The objects of the context
	// are destroyed next. Until then their methods work as before. Disassociate may sleep, but must not wait for the
	// process.
	Disassociate(c UserContext)
}

// SendQueuer is implemented by a DriverQP that can queue work requests without executing them.
type SendQueuer interface {
	// QueueSend is PostSend, except that the requests are executed after the next call of UserQP.Doorbell. QueueSend
	// executes nothing, and takes no lock that is held while requests are executed. QueueSend may not sleep.
	QueueSend(wrs []SendWR) (n int, err error)
}

// WriteHolder holds the data of RDMA WRITEs that the peer of a queue pair has sent, and stores them later. The peer's
// request may complete before. When the driver calls a method, it holds no lock other than that of an access to the
// memory. A method may wait for the memory of the queue pair's program, like umem.Region.WriteV, and for nothing else.
type WriteHolder interface {
	// HoldWrite takes a copy of data for a range of a region, before the driver stores them, and returns true. If it
	// returns false, the driver stores the data. access has the rights of the registration.
	HoldWrite(r *umem.Region, access AccessFlags, iova uint64, data [][]byte) bool
	// StoreWrites stores all data that the queue pair holds. The driver calls it before it executes another request of
	// the peer than a WRITE: before it stores the data of a SEND, completes a receive, answers a READ, or changes a word.
	StoreWrites()
	// StoreRange stores the data for a part of a range that the queue pairs of the program hold. The driver calls it
	// before it reads the range or changes a word in it. It calls it for a nil region, which stands for all memory, after
	// a key has ended.
	StoreRange(r *umem.Region, iova, n uint64)
}

// Refiller is implemented by a Driver that calls [DriverQPInit.Refill].
type Refiller interface {
	// CallsRefill has no effect.
	CallsRefill()
}

// NumberReuser is implemented by a Driver that can reuse the numbers of destroyed queue pairs at once. A driver should
// reuse numbers late, because packets for the destroyed queue pair may still arrive.
type NumberReuser interface {
	// ReuseNumbers makes new queue pairs take the lowest free number. ReuseNumbers is called before the device is
	// registered.
	ReuseNumbers()
}

// OwnedContext is implemented by a UserContext with a known user.
type OwnedContext interface {
	// Owner returns a value that is equal for the contexts of one user. Owner may not sleep.
	Owner() any
}

// UserContext is the open device file that owns an object. Package uverbs implements UserContext.
type UserContext interface {
	// AllocShared returns zeroed memory of at least size bytes, rounded up to whole pages, that the user can map. The
	// driver owns the memory until Shared.Free. AllocShared returns ENOMEM if there is no space. AllocShared may sleep.
	AllocShared(size int) (Shared, error)
}

// LibraryFault is a fault of a program's RDMA library that the driver detects in shared memory.
type LibraryFault uint8

const (
	// Overconsumed means that the program has consumed more completions than the queue held. The driver has reset the
	// index.
	Overconsumed LibraryFault = iota
	// LengthLost means that a request has inline data and length 0. The driver sends an empty message.
	LengthLost
	NumLibraryFaults
)

// LibraryFaulter is implemented by a UserContext that reports faults of the library to its user.
type LibraryFaulter interface {
	// LibraryFault is called each time the driver detects the fault. The driver may hold locks. LibraryFault may not
	// sleep.
	LibraryFault(LibraryFault)
}

// Shared is memory shared between a driver and a user process. The user may write any value into the memory at any
// time, and may truncate the file behind the memory. A driver must read each field once and validate the value. The
// driver must survive a memory fault on access (see runtime/debug.SetPanicOnFault).
type Shared struct {
	// Mem is the driver's mapping.
	Mem []byte
	// Offset is the offset that the user passes to mmap.
	Offset uint64
	// Free releases the memory. The user's mappings remain valid. The driver must not access Mem afterwards.
	Free func()
}

// Udata carries the driver-private part of a command (struct ib_udata). A nil *Udata means that the caller is not a
// user process.
type Udata struct {
	Context UserContext
	// In is the driver-private request data.
	In []byte
	// Space is the address space of the addresses in In: the memory of the process that issued the command.
	Space umem.Space
	// Out is the buffer for the driver-private response. Respond fills Out. Out may be shorter than the response.
	Out []byte
	// N is the number of bytes of Out that the driver has written.
	N int
	// Defer schedules a store to the memory of the process. The store happens after the method has returned, when the
	// caller holds no lock. The process can delay the store without limit. A method calls Defer at most once, as its
	// last action. If Defer is nil, the method stores the data itself.
	Defer func(Stored)
}

// Stored is data that a driver stores in the memory of the process.
type Stored struct {
	Addr uint64
	Data []byte
	Done func() error // called after the store; the error of Done becomes the error of the method
	Drop func()       // called if the store has failed
}

// Respond copies b into Out and truncates it to the length of Out. (ib_copy_to_udata)
func (u *Udata) Respond(b []byte) { u.N = copy(u.Out, b) }
