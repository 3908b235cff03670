package wrong

// blindDefects lists defects that were written without knowledge of the suite.
var blindDefects = []DriverDefect{
	{
		// A message that does not fit still invalidates the registration.
		Name:   "invalidate-before-check",
		Commit: `unconfirmed: "IB/rdmavt: Fix loopback send with invalidate ordering", 2019`,
		Rule:   "Keys give the rights that they were made with",
		Edits: []Edit{
			{"send.go", `	wc := ib.WC{SrcQP: q.obj.Num(), ByteLen: uint32(src.n)}`, After, `
	invalidated := wrong("invalidate-before-check") && w.wr.Opcode == ib.WRSendWithInv && d.invalidateKey(w.wr.InvalidateRKey, p)`},
			{"send.go", `	case w.wr.Opcode == ib.WRSendWithInv && !d.mayInvalidateKey(w.wr.InvalidateRKey, p):`, Instead,
				`	case w.wr.Opcode == ib.WRSendWithInv && !invalidated && !d.mayInvalidateKey(w.wr.InvalidateRKey, p):`},
		},
	},
	{
		// The driver does not restore the position in the gather list before it retransmits a request.
		Name:   "retry-list-lost",
		Commit: `"RDMA/rxe: Fix incomplete state save in rxe_requester", 2023`,
		Rule:   "Messages arrive whole",
		Edits: []Edit{{"send.go", `		q.sq.unpop()`, Before,
			`		if wrong("retry-list-lost") && len(w.sges) > 1 {
			w.sges = w.sges[1:]
		}
`}},
	},
	{
		// The numbers of keys have fewer bits than their counter.
		Name:   "key-wrap",
		Commit: `"RDMA/rxe: Prevent faulty rkey generation", 2022`,
		Rule:   "Keys give the rights that they were made with, until Dereg returns",
		Edits: []Edit{{"mr.go", `	k := &memoryKey{dev: d, num: i << 8, pd: domainOf(p)}`, After,
			`
	if wrong("memoryKey-wrap") {
		k.num &= 0xffffff
	}`}},
	},
	{
		// The driver itself completes requests that are posted in the error state, but adds the completions to the
		// wrong CQ.
		Name:   "flush-other-cq",
		Commit: `"RDMA/irdma: Fix drain SQ hang with no completion", 2022`,
		Rule:   "ERR flushes everything in order, also what is posted later",
		Edits: []Edit{{"send.go", `		case q.state == ib.QPErr, q.state == ib.QPSQE:`, Before,
			`		case wrong("flush-other-cq") && q.state == ib.QPErr && q.recvCQ != nil:
			cq := q.sendCQ
			q.sendCQ = q.recvCQ
			q.flushSends()
			q.sendCQ = cq
`}},
	},
	{
		// The driver compares the limit with the number of posted receives only when a message consumes the next
		// receive. rxe and rdmavt of Linux do the same. Therefore the contract permits the behaviour, and the suite
		// accepts it. The defect fixed by the commit was worse: the driver did not arm the limit until the number
		// of receives exceeded the limit. The check SRQ/LimitBelow finds that defect.
		Name:   "srq-arm-below",
		Commit: `"RDMA/bnxt_re: Fix to remove workload check in SRQ limit path", 2025`,
		Rule:   "none: EventSRQLimitReached comes at once, or with the next one that is taken",
		Edits: []Edit{{"srq.go", `		s.rq.checkLimit()`, Before,
			`		if wrong("srq-arm-below") && uint32(s.rq.n) < s.rq.limit {
			return nil
		}
`}},
		Escapes: true,
	},
	{
		// The driver uses the queue pair of the previous completion if the wrong number is equal.
		Name:   "poll-cached-qp",
		Commit: `"RDMA/mlx5: Fix mlx5_poll_one() cur_qp update flow", 2025`,
		Rule:   "A completion names its queue pair by number and object (WC.QPNum, WC.QP)",
		Edits: []Edit{{"cq.go", `	}
	return n, nil
}

// Waiting implements ib.CQCounter.`, Before,
			`		if wrong("poll-cached-qp") && n > 0 && wc[n].SrcQP == wc[n-1].SrcQP {
			wc[n].QP = wc[n-1].QP
		}
`}},
	},
	{
		// One error path of a bind leaves the region marked as bound.
		Name:   "bind-error-leak",
		Commit: `"RDMA/rxe: Fix an error handling path in rxe_bind_mw()", 2023`,
		Rule:   "Dereg: EBUSY while a window is bound to the region",
		Edits: []Edit{{"mw.go", `	mr := q.dev.lookupKey(w.region)`, After,
			`
	const offered = ib.AccessRemoteWrite | ib.AccessRemoteAtomic | ib.AccessRemoteRead | ib.AccessZeroBased
	if wrong("bind-error-leak") && mr != nil && b.Access&^offered != 0 {
		mr.bound++
		return ib.WCMWBindErr
	}`}},
	},
	{
		// The driver uses CurState although the mask does not select the field.
		Name:   "cur-state-unnamed",
		Commit: `"RDMA/efa: Use the correct current and new states in modify QP", 2020`,
		Rule:   "QPAttrMask names the valid fields of a QPAttr",
		Edits: []Edit{{"qp.go", `	if _, err := ib.NextState(q.state, q.init.Type, attr, mask); err != nil {`, Before,
			`	if wrong("cur-state-unnamed") && attr.CurState != ib.QPReset && attr.CurState != q.state {
		return fmt.Errorf("the state is %v, not %v: %w", q.state, attr.CurState, syscall.EINVAL)
	}
`}},
	},
	{
		// The driver does not ring the doorbell for the accepted requests that precede a refused request.
		Name:   "list-error-stalls",
		Commit: `"RDMA/siw: avoid hiding errors in siw_post_send()", 2025`,
		Rule:   "Posting returns how many work requests were taken, and an error exactly if that is not all",
		Edits: []Edit{{"qp.go", `	for ; n < len(wrs) && err == nil; n++ {`, Before,
			`	if wrong("list-error-stalls") {
		for n < len(wrs) && err == nil {
			if err = q.enqueueSend(&wrs[n]); err == nil {
				n++
			}
		}
		if err == nil {
			q.runSends()
		}
		wrs = wrs[:n]
	}
`}},
	},
	{
		// The driver returns the last state that the consumer has requested, even if the queue pair has failed
		// since then.
		Name:   "query-asked-state",
		Commit: `"RDMA/erdma: Return QP state in erdma_query_qp", 2024`,
		Rule:   "Query reports the present attributes",
		Edits: []Edit{
			{"qp.go", `	waiting bool              // the first send has begun, and waits for a receive or until the peer leaves INIT`, After, `
	asked   ib.QPState`},
			{"qp.go", `	q.attr.Set(attr, mask)`, After, `
	if mask&ib.QPAttrState != 0 {
		q.asked = attr.State
	}`},
			{"qp.go", `	a.SQDraining = q.state == ib.QPSQD && q.waiting`, After, `
	if wrong("query-asked-state") {
		a.State, a.CurState = q.asked, q.asked
	}`},
		},
	},
}
