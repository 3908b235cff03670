// Package ib is the midlayer between low-level drivers ([Driver]) and their consumers: upper-level protocols in this
// process, and user programs through package uverbs. Package ib mirrors
// drivers/infiniband/core/{device,verbs,cq,cache,roce_gid_mgmt}.c and include/rdma/ib_verbs.h.
//
// A [Core] is a registry of devices and clients. A driver creates a device, registers it and reports events through its
// [DeviceHandle]. A consumer registers a [Client], whose Add is called for each device. The client creates objects on
// the device: protection domains ([PD]), memory regions ([MR]) and windows ([MW]), completion queues ([CQ]), queue
// pairs ([QP]), shared receive queues ([SRQ]), XRC domains ([XRCD]) and address handles ([AH]). Optional features of
// drivers are separate interfaces. If a driver lacks a feature, its calls return EOPNOTSUPP.
//
// Authors of drivers start with [Driver], [DriverCQ], [DriverQP], [DriverMR], [NextState], the handles [DeviceHandle],
// [CQHandle] and [QPHandle], and package ibtest. [GIDTable] is for drivers with changing addresses. Authors of
// consumers start with [Client], [Device.Local], [QP.Connect] and package completion. Package ibfake is for tests of
// consumers.
//
// # The contract
//
// Linux states the following rules in Documentation/infiniband/core_locking.rst. "May not sleep" means that the
// function must not block on an event that another consumer, a peer or the kernel may delay without limit. Examples are
// a channel operation that can wait, network or file I/O, sleeping, and waiting for a goroutine. A mutex is allowed if
// each of its critical sections follows this rule. Such a mutex corresponds to a spinlock of the kernel.
//
//  1. The methods that create, modify, query and destroy an AH, [QP.PostSend], [QP.PostRecv], [SRQ.PostRecv],
//     [CQ.Poll] and [CQ.ReqNotify] may not sleep and may be called from any context, including completion handlers.
//     The same applies to [DeviceHandle.DispatchEvent]. All other methods may sleep, as their comments state.
//  2. Every driver method is fully reentrant. The midlayer serialises no calls. Concurrent Poll is allowed: the
//     order between the callers is undefined, but no completion is lost or returned twice.
//  3. A callback is never called in the callchain of a method. A completion raised inside PostSend is delivered
//     after PostSend has returned, by another goroutine or by a thread that has announced this
//     ([DeviceHandle.HoldCallbacks], [Hold]).
//     At most one completion handler of one CQ runs at a time, even if the handler re-arms the CQ and new
//     completions arrive. No armed notification is lost. Different CQs run in parallel.
//     Asynchronous events of a device and its objects are delivered one at a time, in the order in which they were
//     raised.
//  4. Consumers may not sleep in a callback. The context of a callback is not defined.
//  5. A device is ready for use when [Core.Register] is called and stays usable until [Core.Unregister] returns.
//     Both functions may sleep. The driver holds no lock across them that a consumer's call could need. A client may
//     use the device as soon as Add is called. When Remove returns, the client has freed all its objects. Add and
//     Remove may sleep. Remove runs in the reverse order of Add.
//  6. The state of a device is active, error or gone ([DeviceState]). In the error state no object is created or
//     modified (EIO), no new work request is executed, and outstanding work requests complete with a flush error
//     ([Driver].EnterError). Objects can still be destroyed. User contexts are detached when the device is removed
//     ([Disassociator]). Package ib/slot executes the reset of a device.
//  7. A consumer may preserve an object that it provides to its own users, such as a disk, through a transient
//     reset. The object is attached to the recovered device (package ib/attach).
//
// # Checked mode
//
// Package check enforces these rules on both sides, and reports each violation with the stacks of both sides. Without
// it the checks cost nothing. Package ibtest is a conformance suite for drivers. docs/results/contract.md lists the
// rules with their tests and Linux's names.
//
// # Errors
//
// Errors wrap a syscall.Errno with the kernel's meaning:
//
//	EINVAL      invalid argument
//	EBUSY       object in use
//	ENOMEM      full queue or exhausted limit
//	EIO         device in the error state
//	ENODEV      unregistered device
//	EOPNOTSUPP  feature that the driver lacks
package ib
