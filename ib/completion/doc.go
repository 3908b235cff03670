// Package completion spares upper-level protocols their completion loops. A work request is posted with the function that its
// completion calls, and a [CQ] polls, arms and polls again in one of three contexts. It is after ib_alloc_cq, struct ib_cqe and
// ib_drain_qp of the kernel (include/rdma/ib_verbs.h, drivers/infiniband/core/cq.c).
//
//	cq, err := completion.New(dev, completion.Init{Entries: 64, Context: completion.Worker})
//	qp, err := cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC, Cap: capacities})
//	err = qp.PostRecv(ib.RecvWR{SGList: sgl}, func(wc *ib.WC) { ... })
//	err = qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: sgl}, func(wc *ib.WC) { ... })
//	...
//	err = errors.Join(qp.Close(ctx), cq.Destroy()) // every function has been called
//
// Four mistakes that drivers of the kernel have made again and again cannot be made with it: to arm a queue and not to look
// once more, to post more than the completion queue has room for, to free what a completion that is still to come needs, and to
// destroy a queue pair while another thread posts.
package completion
