package wrong

// laterDefects lists defects that the suite did not detect at first.
var laterDefects = []DriverDefect{
	{
		// The driver compares a new limit with the value that it has set before, but the event has disarmed the limit.
		Name: "srq-limit-cached",
		Rule: "The event of a limit is raised once each time that the limit is armed",
		Edits: []Edit{
			{"srq.go", `	rq  recvQueue // under Device.mu`, Before, `	set uint32
`},
			{"srq.go", `		s.rq.limit = attr.Limit`, Before, `		if wrong("srq-limit-cached") && attr.Limit == s.set {
			return nil
		}
		s.set = attr.Limit
`},
		},
	},
	{
		// The driver reads the memory of short requests when they are posted, also if they have a fence.
		Name: "fence-prefetch",
		Rule: "A request with SendFence is executed after all earlier READs and atomics have stored their data",
		Edits: []Edit{
			{"qp.go", `	wr     ib.SendWR // without the memory to which it refers`, After, `
	early  []byte`},
			{"qp.go", `	w.wr.SGList, w.wr.Inline, w.wr.AH, w.wr.Bind, w.wr.Reg = nil, nil, nil, nil, nil
`, After, `	if w.early = nil; wrong("fence-prefetch") && q.init.Type == ib.QPTypeRC && w.wr.Flags&ib.SendInline == 0 {
		switch c := &q.dev.copier; w.wr.Opcode {
		case ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
			if q.dev.checkLocalList(&c.src, w.sges, q.pd, 0, wholeListLength) && c.src.n > 0 && c.src.n <= 64 {
				if b := make([]byte, c.src.n); c.transferBytes(&c.src, 0, b, false) {
					w.early = b
				}
			}
		}
	}
`},
			{"qp.go", `			break
		}
		q.runSends()
	}
`, Instead, `			break
		}
		if !wrong("fence-prefetch") {
			q.runSends()
		}
	}
	q.runSends()
`},
			{"send.go", `	if src.n > maxMsgSize || q.isDatagram(w) && src.n > uint64(mtu.Bytes()) {`, Before, `	if w.early != nil {
		src.reset()
		src.inline, src.n = w.early, uint64(len(w.early))
	}
`},
		},
	},
	{
		// Inline data of more than one unit of the ring are lost beyond the end of the ring.
		Name:   "inline-ring-end",
		Commit: `unconfirmed: "libqedr: fix SQ/RQ wrap bug" of rdma-core, 2017`,
		Rule:   "Messages arrive whole",
		Edits: []Edit{{"qp.go", `		w.inline = append(w.inline, wr.Inline...)
`, After, `		if wrong("inline-ring-end") && (q.sq.head+q.sq.n)%len(q.sq.slots) == 0 && len(w.inline) > 64 {
			clear(w.inline[64:])
		}
`}},
	},
	{
		// The driver does not check the queue pair of a type 2 window for atomics.
		Name: "window-atomic",
		Rule: "A type 2 window is bound to one queue pair",
		Edits: []Edit{{"memory.go", ` != nil && k.qp != q || !k.containsRange(addr, n) {`, Instead,
			` != nil && k.qp != q && !(wrong("window-atomic") && need == ib.AccessRemoteAtomic) || !k.containsRange(addr, n) {`}},
	},
	{
		// Requests of others that wait for a detached queue pair are not continued.
		Name: "detach-no-wake",
		Rule: "A request of a reliable connection whose peer is in ERR completes, and never hangs",
		Edits: []Edit{{"device.go", `	d.resumeWaitingQPs() // peers may wait for these queue pairs
`, Instead, `	if !wrong("detach-no-wake") {
		d.resumeWaitingQPs() // peers may wait for these queue pairs
	}
`}},
	},
	{
		// Rejected handles count in the limit of the device.
		Name: "ah-reject-leak",
		Rule: "What is refused leaves nothing",
		Edits: []Edit{
			{"device.go", `	dead    bool  // the device is in the error state`, After, `
	lostAHs int`},
			{"ah.go", `	return a, a.Modify(attr)`, Before, `	if wrong("ah-reject-leak") {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.lostAHs >= 1000 {
			return nil, syscall.ENOMEM
		}
		if a.Modify(attr) != nil {
			d.lostAHs++
		}
	}
`},
			{"ah.go", `	"sync"
`, After, `	"syscall"
`},
		},
	},
	{
		// The driver counts the completions for a notification in 8 bits.
		Name:   "moderation-8-bits",
		Commit: `unconfirmed: limits of cq_max_count in mlx5 and hns`,
		Rule:   "A moderated queue notifies when count completions have arrived",
		Edits: []Edit{{"cq.go", `	if c.due < c.count {
`, Instead, `	if wrong("moderation-8-bits") {
		c.due &= 0xff
	}
	if c.due < c.count {
`}},
	},
	{
		// The driver keeps the limit in 14 bits.
		Name: "srq-limit-14-bits",
		Rule: "The limit is any number up to the capacity",
		Edits: []Edit{{"srq.go", `		s.rq.limit = attr.Limit
`, After, `		if wrong("srq-limit-14-bits") {
			s.rq.limit &= 1<<14 - 1
		}
`}},
	},
	{
		// The driver compares a limit with the capacity before the call.
		Name: "srq-limit-old-room",
		Rule: "The limit is any number up to the capacity that the same call sets",
		Edits: []Edit{{"srq.go", `	if room == 0 || room > maxWR ||`, Before,
			`	if wrong("srq-limit-old-room") && mask&ib.SRQAttrLimit != 0 && attr.Limit > uint32(len(s.rq.slots)) {
		return syscall.EINVAL
	}
`}},
	},
	{
		// The driver sets the attributes of the next connection on top of the old ones.
		Name:   "reset-keeps-attrs",
		Commit: `unconfirmed: rxe_qp_reset keeps them`,
		Rule:   "RESET restores the attributes of a new queue pair",
		Edits: []Edit{{"qp.go", `	q.sq.n, q.own.n = 0, 0
`, Before, `	if wrong("reset-keeps-attrs") {
		q.attr = old
	}
`}, {"qp.go", `	q.state, q.attr, q.waiting = ib.QPReset`, Before, `	old := q.attr
	_ = old
`}},
	},
	{
		// The first request is still marked as one that waits.
		Name:   "reset-keeps-waiting",
		Commit: `unconfirmed: "libbnxt_re: reset head and tail when moving to RST", 2017`,
		Rule:   "RESET discards the outstanding requests",
		Edits: []Edit{{"qp.go", `RNRRetry: q.initialRNRRetry()}, false
`, Instead, `RNRRetry: q.initialRNRRetry()}, wrong("reset-keeps-waiting") && q.waiting
`}, {"qp.go", `		if q.waiting = false; q.init.Type`, Before, `		if wrong("reset-keeps-waiting") && q.sq.n == 0 {
			continue
		}
`}},
	},
	{
		// The driver splits long requests of RC, and sends only the first part of those of SRD.
		Name: "srd-first-part",
		Rule: "Messages arrive complete",
		Edits: []Edit{{"send.go", `	peer, status, wait := q.peerOf(w)
`, Before, `	if wrong("srd-first-part") && q.init.Type == ib.QPTypeSRD {
		src.n = min(src.n, 1<<20)
	}
`}},
	},
	{
		// The driver keeps the queue of each queue pair that it refuses.
		Name:   "reject-leaks-queue",
		Commit: `unconfirmed: error paths of create_qp in irdma and bnxt_re`,
		Rule:   "A rejected call leaves nothing behind",
		Edits: []Edit{
			{"device.go", `	copier  messageCopier
`, After, `	leaked  []ring[sendWQE]
`},
			{"qp.go", `		return nil, fmt.Errorf("invalid capacities %+v: %w", *c, syscall.EINVAL)
`, Before, `		if wrong("reject-leaks-queue") {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.leaked = append(d.leaked, newRing[sendWQE](maxWR))
		}
`},
		},
	},
}
