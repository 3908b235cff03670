// Package layout has the queues of Linux's rxe: rings in the layout of struct rxe_queue_buf (package ring), with work
// requests of struct rxe_send_wqe and rxe_recv_wqe and completions of struct ib_uverbs_wc. It implements package
// engine/queue for programs that use the stock rxe provider of libibverbs.
//
// Work requests are copied out of a ring once and then decoded. Any value may lie in a ring.
package layout
