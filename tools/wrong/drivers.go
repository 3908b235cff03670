package wrong

import "slices"

// Edit is a change of the source of the reference driver. The changed copy is compiled.
type Edit struct {
	File   string // a file of driver/loopback
	Anchor string // a text that occurs once in the file
	Where  EditPosition
	Code   string // the inserted code, with wrong("name") as the condition of the defect
}

// EditPosition is the position of Edit.Code relative to Edit.Anchor.
type EditPosition uint8

// The following constants are the positions.
const (
	After EditPosition = iota
	Before
	Instead
)

// DriverDefect is a defect of a driver that a driver of Linux has also had.
type DriverDefect struct {
	Name    string
	Commit  string // a commit of Linux that fixes such a defect, or "" if unknown
	Rule    string // the sentence of the contract, or of the documentation of package ib, that the driver violates
	Edits   []Edit
	Escapes bool // whether TestContract passes with the defect
	Chance  bool // whether the defect is a race, so that TestContract may pass with it; Escapes is the usual result
}

// DriverDefects lists the defects. The defects are independent of each other.
var DriverDefects = slices.Concat(originalDefects, blindDefects, laterDefects)

var originalDefects = []DriverDefect{
	{
		Name: "solicited-error",
		Rule: "NotifySolicited is answered by solicited and failed completions",
		Edits: []Edit{{"cq.go", `(solicited || wc.Status != ib.WCSuccess)`, Instead,
			`(solicited || wc.Status != ib.WCSuccess && !wrong("solicited-error"))`}},
	},
	{
		Name: "arm-downgrade",
		Rule: "NotifyNextComp wins over NotifySolicited",
		Edits: []Edit{{"cq.go", `	if flags&ib.NotifyNextComp != 0 {`, Before,
			`	if wrong("arm-downgrade") && flags&ib.NotifySolicited != 0 {
		c.armed = 0
	}
`}},
	},
	{
		Name:   "report-missed",
		Commit: `unconfirmed: "RDMA/vmw_pvrdma: Report CQ missed events", 2017`,
		Rule:   "NotifyReportMissed returns true when completions are there already",
		Edits: []Edit{{"cq.go", `	return flags&ib.NotifyReportMissed != 0`, Before,
			`	if wrong("report-missed") {
		return false, nil
	}
`}},
	},
	{
		// The timer of the moderation keeps running, and calls the handler of a destroyed CQ.
		Name:   "upcall-after-destroy",
		Commit: `dc202c57e9a1 ("RDMA/efa: Fix wrong resources deallocation order")`,
		Rule:   "When Destroy has returned no handler of the object runs",
		Edits: []Edit{{"cq.go", `	c.lost, c.ended = true, true
	if c.timer != nil {`, Instead, `	c.lost, c.ended = true, true
	if c.timer != nil && !wrong("upcall-after-destroy") {`}},
	},
	{
		// The driver does not copy the entries after the end of the old ring, where the ring wraps around.
		Name: "cq-resize-wrap",
		Rule: "no completion is lost; CQs that resize",
		Edits: []Edit{{"cq.go", `	r := newRing[ib.WC](entries)
`, After, `	if wrong("cq-resize-wrap") {
		c.wcs.n = min(c.wcs.n, len(c.wcs.slots)-c.wcs.head)
	}
`}},
	},
	{
		// Two paths acquire the lock of a CQ and the lock of the device in opposite orders.
		Name:   "cq-lock-order",
		Commit: `9272cba0ded7 ("RDMA/bnxt_re: Fix the locking while accessing the QP table")`,
		Chance: true,
		Rule:   "Every method may be called at the same time as every other",
		Edits: []Edit{
			{"cq.go", `type CQ struct {
`, After, `	wrongDev *Device
`},
			{"cq.go", `return &CQ{`, Instead, `return &CQ{wrongDev: d, `},
			{"cq.go", `	c.wcs = r
`, After, `	if wrong("cq-lock-order") {
		c.wrongDev.mu.Lock()
		c.wrongDev.mu.Unlock()
	}
`},
		},
	},
	{
		Name: "cq-overflow-silent",
		Rule: "CQHandle.Raise reports EventCQErr; no completion is lost",
		Edits: []Edit{{"cq.go", `	if slot == nil {
`, After, `		if wrong("cq-overflow-silent") {
			return true
		}
`}},
	},
	{
		// Poll adds the flags of a completion to the flags that its array already contains.
		Name: "stale-wc-flags",
		Rule: "Messages arrive with the completions that were asked for (struct ib_wc)",
		Edits: []Edit{{"cq.go", `		wc[n] = *c.wcs.pop()
`, Instead, `		stale := wc[n].Flags
		wc[n] = *c.wcs.pop()
		if wrong("stale-wc-flags") {
			wc[n].Flags |= stale
		}
`}},
	},
	{
		Name:   "imm-byte-len",
		Commit: `24419777e943 ("RDMA/irdma: Fix RQ completion opcode")`,
		Rule:   "Messages arrive with the completions that were asked for: byte_len of RDMA WRITE with immediate",
		Edits: []Edit{{"send.go", `		p.completeRecv(rq, &wc, w.wr.Flags&ib.SendSolicited != 0)
	}
	return ib.WCSuccess, false`, Before, `		if wrong("imm-byte-len") {
			wc.ByteLen = 0
		}
`}},
	},
	{
		// A request that is posted in the error state completes with an opcode that is not a completion opcode.
		Name:   "flush-opcode",
		Commit: `bdf1da5df9da ("RDMA/siw: Fix immediate work request flush to completion queue")`,
		Rule:   "ERR flushes everything in order, also what is posted later; Messages ... with the completions (opcode)",
		Edits: []Edit{{"send.go", `		if !q.sendCQ.addCompletion(wc, false) && q.state != ib.QPErr {`, Before, `		if wrong("flush-opcode") && over {
			wc.Opcode = ib.WCOpcode(w.wr.Opcode)
		}
`}},
	},
	{
		Name:   "unsignaled-error",
		Commit: `2f917af77701 ("RDMA/rxe: Generate a completion for unsupported/invalid opcode")`,
		Rule:   "a failed work request completes whether it is signaled or not",
		Edits: []Edit{{"send.go", `	if failed || q.init.SigAll`, Instead,
			`	if failed && !wrong("unsignaled-error") || q.init.SigAll`}},
	},
	{
		// The post checks the state, releases the lock, and acquires the lock again to queue the request. A request
		// that is queued after the flush is never flushed.
		Name:   "post-flush-race",
		Commit: `377a2097705b ("RDMA/hns: Fix flush cqe error when racing with destroy qp")`,
		Chance: true,
		Rule:   "ERR flushes everything in order, also what is posted later",
		Edits: []Edit{
			{"qp.go", `	if q.sendCQ == nil {
		return 0, fmt.Errorf("post send on an XRC target`, Before, `	if wrong("post-flush-race") && q.state == ib.QPRTS {
		d.mu.Unlock()
		wrongYield()
		d.mu.Lock()
		if q.state == ib.QPErr {
			for ; n < len(wrs) && err == nil; n++ {
				err = q.enqueueSend(&wrs[n])
			}
			return n, err
		}
	}
`},
		},
	},
	{
		// The driver removes the completions of a destroyed queue pair only from the send CQ.
		Name: "cq-clean-send-only",
		Rule: "when the queue pair has been destroyed the number stays and the object is nil",
		Edits: []Edit{{"qp.go", `		if cq != nil {
			cq.forget`, Instead, `		if cq != nil && !(wrong("cq-clean-send-only") && cq == q.recvCQ && cq != q.sendCQ) {
			cq.forget`}},
	},
	{
		Name: "cq-clean-not-xrc",
		Rule: "when the queue pair has been destroyed the number stays and the object is nil",
		Edits: []Edit{{"qp.go", `	for _, cq := range q.usedCQs {
		cq.forgetQP(q.obj.QP())
`, Instead, `	for _, cq := range q.usedCQs {
		if !wrong("cq-clean-not-xrc") {
			cq.forgetQP(q.obj.QP())
		}
`}},
	},
	{
		Name:   "reset-keeps-receives",
		Commit: `e509be898d89 ("IB/ipath: Fix many locking issues when switching to error state")`,
		Rule:   "ERR flushes everything in order; RESET forgets it",
		Edits: []Edit{{"qp.go", `	q.sq.n, q.own.n = 0, 0
`, Instead, `	q.sq.n = 0
	if !wrong("reset-keeps-receives") {
		q.own.n = 0
	}
`}},
	},
	{
		// A failing creation keeps its number, until all numbers are used.
		Name:   "create-qp-leak",
		Commit: `a3d83276d988 ("RDMA/siw: Release xarray entry")`,
		Rule:   "Wrong arguments and states are refused, and change nothing",
		Edits: []Edit{{"qp.go", `		return nil, fmt.Errorf("invalid capacities %+v: %w", *c, syscall.EINVAL)
`, Before, `		if wrong("create-qp-leak") {
			d.mu.Lock()
			d.qps[nextFreeNumber(d.qps, &d.nextQPN, firstQPN)] = &QP{dev: d, obj: obj}
			d.mu.Unlock()
		}
`}},
	},
	{
		Name:   "sleep-create-ah",
		Commit: `cc0315564d6e ("RDMA/irdma: Fix sleep from invalid context BUG")`,
		Rule:   "A driver's method of the first group does not sleep: CreateAH, 100 us",
		Edits: []Edit{{"ah.go", `	a := &AH{dev: d, pd: domainOf(p)}
`, After, `	if wrong("sleep-create-ah") {
		wrongSleep(100)
	}
`}},
	},
	{
		// The method waits for a goroutine that ends soon by itself.
		Name:   "wait-destroy-ah",
		Commit: `2553ba217eea ("RDMA: Mark if destroy address handle is in a sleepable context")`,
		Rule:   "A driver's method of the first group does not sleep: AH.Destroy waits for a goroutine",
		Edits: []Edit{{"ah.go", `func (a *AH) Destroy() error { return nil }`, Instead, `func (a *AH) Destroy() error {
	if wrong("wait-destroy-ah") {
		wrongWait(100)
	}
	return nil
}`}},
	},
	{
		// The driver looks the address up when it executes the request. The handle may already be destroyed then.
		Name:   "ah-late",
		Commit: `e2fe06c90806 ("RDMA/rxe: Lookup kernel AH from ah index in UD WQEs")`,
		Rule:   "The methods that destroy an AH; nothing of the list is kept (QP.PostSend)",
		Edits: []Edit{
			{"qp.go", `	ah     ib.AHAttr
`, After, `	wrongAH addressHandle
`},
			{"qp.go", `		w.ah, w.ahPD = ah.address(), ah.protectionDomain()
	}
`, After, `	w.wrongAH = ah
`},
			{"send.go", `	dgid := w.ah.GRH.DGID
`, Before, `	if wrong("ah-late") {
		w.ah = w.wrongAH.address()
	}
`},
		},
	},
	{
		Name:   "sges-kept",
		Commit: `03fa18a992d5 ("RDMA/rxe: Fix data copy for IB_SEND_INLINE")`,
		Rule:   "PostSend does not keep wrs or what it refers to",
		Edits: []Edit{{"qp.go", `	w.sges = append(w.sges[:0], wr.SGList...)
	w.inline`, Instead, `	w.sges = append(w.sges[:0], wr.SGList...)
	if wrong("sges-kept") {
		w.sges = wr.SGList
	}
	w.inline`}},
	},
	{
		// An element of length 0 ends the list.
		Name:   "zero-sge-ends-list",
		Commit: `52e3b42a2f58 ("RDMA/hns: Filter for zero length of sge in hip08 kernel mode")`,
		Rule:   "Messages arrive whole, where they should",
		Edits: []Edit{{"memory.go", `		if n == 0 {
			continue
`, Before, `			if wrong("zero-sge-ends-list") {
				break
			}
`}},
	},
	{
		// The driver checks the key of an operation without data.
		Name:   "zero-length-key",
		Commit: `5ff31dfcd6d2 ("Subject: RDMA/rxe: Handle zero length rdma")`,
		Rule:   "Messages arrive whole: of zero bytes, no key is needed",
		Edits: []Edit{{"memory.go", `	if n == 0 {
		return true
	}
	k, pd, addr`, Instead, `	if n == 0 && !wrong("zero-length-key") {
		return true
	}
	k, pd, addr`}},
	},
	{
		// The computed end of a range wraps around.
		Name:   "range-overflow",
		Commit: `647bf3d8a8e5 ("IB/rxe: Fix mem_check_range integer overflow")`,
		Rule:   "Keys give the rights that they were made with",
		Edits: []Edit{{"mr.go", `	return addr >= k.first && addr-k.first`, Before, `	if wrong("range-overflow") {
		return addr >= k.first && addr+n <= k.first+k.n
	}
`}},
	},
	{
		// The driver compares only the index of a key.
		Name:   "key-variant",
		Commit: `174e7b137042 ("RDMA/rxe: For invalidate compare according to set keys in mr")`,
		Rule:   "Keys give the rights that they were made with, until Dereg returns",
		Edits: []Edit{{"mr.go", `k.valid && k.num == num {`, Instead,
			`k.valid && (k.num == num || wrong("key-variant")) {`}},
	},
	{
		Name: "srq-domain",
		Rule: "memory and queue pairs work together only within one domain: that of the shared receive queue for its buffers",
		Edits: []Edit{{"send.go", `	case !d.checkLocalList(dst, rq.front().sges, rq.pd, ib.AccessLocalWrite, src.n):`,
			Instead,
			`	case !d.checkLocalList(dst, rq.front().sges, wrongPD(wrong("srq-domain") && p.xrcd == nil, p.pd, rq.pd), ib.AccessLocalWrite, src.n):`}},
	},
	{
		Name: "rereg-half",
		Rule: "Rereg: After an error the region is what it was",
		Edits: []Edit{{"mr.go", `	if err := checkAccess(access); err != nil {
		return err
	}
	k.dev.mu.Lock()`, Before, `	if wrong("rereg-half") && k.bound == 0 {
		k.dev.mu.Lock()
		k.pd = domainOf(p)
		k.dev.mu.Unlock()
	}
`}},
	},
	{
		Name:   "invalidate-bound",
		Commit: `570d2b99d00d ("RDMA/rxe: Disallow MR dereg and invalidate when bound")`,
		Rule:   "Memory windows: a region with a window bound to it is not invalidated",
		Edits: []Edit{{"mr.go", `	return k.fast && k.bound == 0`, Instead,
			`	return k.fast && (k.bound == 0 || wrong("invalidate-bound"))`}},
	},
	{
		Name: "mw-outlives-qp",
		Rule: "Memory windows of type 2 are bound to one queue pair; Dereg EBUSY only while a window is bound",
		Edits: []Edit{{"qp.go", `		if k.qp == q {
			k.unbindWindow()`, Instead, `		if k.qp == q && !wrong("mw-outlives-qp") {
			k.unbindWindow()`}},
	},
	{
		Name: "xrc-domain",
		Rule: "XRC: a sender reaches every XRC shared receive queue of the domain, and of no other",
		Edits: []Edit{{"xrc.go", `s != nil && s.rq.xrcd == q.xrcd {`, Instead,
			`s != nil && (s.rq.xrcd == q.xrcd || wrong("xrc-domain")) {`}},
	},
	{
		Name:   "mcast-first-only",
		Commit: `e7ec96fc7932 ("RDMA/rxe: Fix skb lifetime in rxe_rcv_mcast_pkt()")`,
		Rule:   "Multicast: each member of a group receives what is sent to it",
		Edits: []Edit{{"send.go", `		for _, p := range d.groups[dgid] {
`, After, `			if wrong("mcast-first-only") && (p.rq.n == 0 || p.attr.QKey != w.wr.RemoteQKey) {
				break
			}
`}},
	},
	{
		Name:   "srq-limit-again",
		Commit: `666bce0bd7e7 ("RDMA/bnxt_re: Fix to remove workload check in SRQ limit path")`,
		Rule:   "Limit raises EventSRQLimitReached, once",
		Edits: []Edit{{"srq.go", `		r.limit = 0
`, Instead, `		if !wrong("srq-limit-again") {
			r.limit = 0
		}
`}},
	},
	{
		Name:   "srq-shrink",
		Commit: `cc28f351155d ("RDMA/rxe: Fix rxe_modify_srq")`,
		Rule:   "DriverSRQ.Modify: EINVAL for less room than is taken",
		Edits: []Edit{{"srq.go", `		r := newRing[recvWQE](int(room))
`, After, `		if wrong("srq-shrink") {
			s.rq.n = min(s.rq.n, len(s.rq.slots)-s.rq.head)
		}
`}},
	},
	{
		Name:   "last-wqe-twice",
		Commit: `3056fc6c32e6 ("RDMA/siw: Fix duplicated reported IW_CM_EVENT_CONNECT_REPLY event")`,
		Rule:   "Asynchronous events: EventQPLastWQEReached once for each entry of ERR",
		Edits: []Edit{{"qp.go", `	if first && q.rq.srq != nil {`, Instead,
			`	if (first || wrong("last-wqe-twice")) && q.rq.srq != nil {`}},
	},
	{
		Name:   "error-spares-init",
		Commit: `89ea94a7b6c4 ("IB/mlx5: Reset flow support for IB kernel ULPs")`,
		Rule:   "A device in error: what is in flight is flushed",
		Edits: []Edit{{"device.go", `	for _, q := range d.qps {
		if q.state != ib.QPReset {`, Instead, `	for _, q := range d.qps {
		if q.state != ib.QPReset && !(wrong("error-spares-init") && q.state == ib.QPInit) {`}},
	},
	{
		Name:   "max-srq-sge",
		Commit: `79d330fbdffd ("RDMA/bnxt_re: Fix max SGEs for the Work Request")`,
		Rule:   "DeviceAttr: limits of a device are those up to which creating works",
		Edits: []Edit{{"device.go", `MaxSRQSGE: maxSGE,`, Instead,
			`MaxSRQSGE: wrongInt(wrong("max-srq-sge"), 2*maxSGE, maxSGE),`}},
	},
	{
		Name:   "max-cqe",
		Commit: `12faad5e5cf2 ("RDMA/irdma: Report the correct max cqes from query device")`,
		Rule:   "DeviceAttr: limits of a device are those up to which creating works",
		Edits: []Edit{{"device.go", `MaxCQE: maxCQE, MaxMR`, Instead,
			`MaxCQE: wrongInt(wrong("max-cqe"), maxCQE+1, maxCQE), MaxMR`}},
	},
	{
		Name:   "grh-traffic-class",
		Commit: `62de0e67328e ("RDMA/mana_ib: Fix DSCP value in modify QP")`,
		Rule:   "Messages arrive: the GRH before a datagram is that of the address handle",
		Edits: []Edit{{"send.go", `	copy(h[24:], g.DGID[:])
`, After, `	if wrong("grh-traffic-class") {
		h[0], h[1] = 6<<4, h[1]&0xf
	}
`}},
	},
	{
		Name: "imm-solicited",
		Rule: "NotifySolicited is answered by solicited completions: those of RDMA WRITE with immediate, too",
		Edits: []Edit{{"send.go", `		p.completeRecv(rq, &wc, w.wr.Flags&ib.SendSolicited != 0)
	}
	return ib.WCSuccess, false`, Instead, `		p.completeRecv(rq, &wc, w.wr.Flags&ib.SendSolicited != 0 && !wrong("imm-solicited"))
	}
	return ib.WCSuccess, false`}},
	},
	{
		Name:   "qkey-controlled",
		Commit: `0cadb4db79e1 ("RDMA/uverbs: Restrict usage of privileged QKEYs")`,
		Rule:   "Messages arrive: a Q_Key with the high bit stands for the sender's own (IBA 10.2.5)",
		Edits: []Edit{{"send.go", `	if w.wr.RemoteQKey&(1<<31) != 0 {`, Instead,
			`	if w.wr.RemoteQKey&(1<<31) != 0 && !wrong("qkey-controlled") {`}},
	},
	{
		Name:   "rd-atomic-swapped",
		Commit: `fb3063d31995 ("RDMA/rxe: Fix configuration of atomic queue pair attributes")`,
		Rule:   "Query shows what was set",
		Edits: []Edit{{"qp.go", `	a.SQDraining = q.state`, Before, `	if wrong("rd-atomic-swapped") {
		a.MaxRdAtomic, a.MaxDestRdAtomic = a.MaxDestRdAtomic, a.MaxRdAtomic
	}
`}},
	},
	{
		Name: "sq-drained-unasked",
		Rule: "EnSQDAsyncNotify asks for EventSQDrained, for one transition",
		Edits: []Edit{{"send.go", `	if q.state == ib.QPSQD && !q.waiting && q.attr.EnSQDAsyncNotify {
		q.attr.EnSQDAsyncNotify = false`, Instead,
			`	if q.state == ib.QPSQD && !q.waiting && (q.attr.EnSQDAsyncNotify || wrong("sq-drained-unasked")) {
		q.attr.EnSQDAsyncNotify = false`}},
	},
	{
		// A retry without a limit ends.
		Name:   "rnr-endless",
		Commit: `445fd4f4fb76 ("RDMA/rxe: Fix rnr retry behavior")`,
		Rule:   "QPAttr.RNRRetry 7: for ever",
		Edits: []Edit{{"send.go", `	case q.attr.RNRRetry == 0:`, Instead,
			`	case q.attr.RNRRetry == 0 || wrong("rnr-endless") && q.attr.RNRRetry == 7 && len(q.dev.blocked) > 0:`}},
	},
	{
		// A completion that arrives while the handler is being called counts as reported.
		Name:   "poll-disarms",
		Chance: true,
		Rule:   "no armed notification is lost",
		Edits: []Edit{{"cq.go", `	for ; n < len(wc) && c.wcs.n > 0; n++ {`, Before, `	if wrong("poll-disarms") && c.wcs.n > 1 {
		c.armed = 0
	}
`}},
	},
	{
		// The driver checks only the rights of the queue pair, and ignores the rights of the region.
		Name: "atomic-rights",
		Rule: "Keys give the rights that they were made with",
		Edits: []Edit{{"memory.go", `	if k == nil || k.pd != pd || k.access&need != need || k.qp`, Instead,
			`	if k == nil || k.pd != pd || k.access&need != need && !(wrong("atomic-rights") && need == ib.AccessRemoteAtomic && k.access&ib.AccessRemoteWrite != 0) || k.qp`}},
	},
	{
		// The driver checks the gather list against the limit of the device.
		Name:   "send-sge-limit",
		Commit: `cd155c1c7c9e ("IB/mlx4: Fix creation of kernel QP with max number of send s/g entries")`,
		Rule:   "Wrong arguments and states are refused (MaxSendSGE)",
		Edits: []Edit{{"qp.go", `	case len(wr.SGList) > int(c.MaxSendSGE):`, Instead,
			`	case len(wr.SGList) > int(c.MaxSendSGE) && !(wrong("send-sge-limit") && len(wr.SGList) <= maxSGE):`}},
	},
	{
		// The driver applies the limit of the gather list to inline data, and ignores the returned limit of inline
		// data.
		Name:   "inline-limit",
		Commit: `4f44e519b6a9 ("RDMA/irdma: Fix inline for multiple SGE's")`,
		Rule:   "Wrong arguments and states are refused (MaxInlineData)",
		Edits: []Edit{{"qp.go", `len(wr.Inline) > int(c.MaxInlineData):`, Instead,
			`len(wr.Inline) > int(c.MaxInlineData) && !wrong("inline-limit"):`}},
	},
}
