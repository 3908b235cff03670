// Package completion provides completion loops for upper-level protocols. A work request is posted together with a
// function. The CQ calls this function with the completion. A [CQ] polls, arms and polls again in one of three
// contexts. The package follows ib_alloc_cq, struct ib_cqe and ib_drain_qp of the kernel (include/rdma/ib_verbs.h,
// drivers/infiniband/core/cq.c).
//
//	cq, err := completion.New(dev, completion.Init{Entries: 64, Context: completion.Worker})
//	qp, err := cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC, Cap: capacities})
//	err = qp.PostRecv(ib.RecvWR{SGList: sgl}, func(wc *ib.WC) { ... })
//	err = qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: sgl}, func(wc *ib.WC) { ... })
//	...
//	err = errors.Join(qp.Close(ctx), cq.Destroy()) // every function has been called
//
// The package prevents four mistakes that are common in kernel drivers. The mistakes are: arming a queue without
// polling it again, posting more requests than the completion queue has entries, freeing memory that a later completion
// needs, and destroying a queue pair while another thread posts to it.
package completion
