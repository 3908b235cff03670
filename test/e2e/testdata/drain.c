// A program that drains an extended completion queue: ibv_next_poll until ENOENT, then ibv_end_poll. The provider of
// rdma-core v34 to v54 then counts one completion too many, and the consumer index is ahead of the producer index.
//
//	drain       request an event before the next poll, which then finds the queue empty
//	drain busy  poll again at once, and print the number of old completions that such a provider finds
#include "verbs.h"

enum { ENTRIES = 7 };

static char buf[64];
static int stale;

// drain takes all completions, and returns their number.
static int drain(struct ibv_cq_ex *cq, uint64_t want)
{
	struct ibv_poll_cq_attr attr = {};
	int n = 0, err = ibv_start_poll(cq, &attr);
	if (err) {
		CHECK(err == ENOENT);
		return 0;
	}
	do {
		if (cq->wr_id == want && cq->status == IBV_WC_SUCCESS)
			n++;
		else
			stale++;
		err = ibv_next_poll(cq);
	} while (!err);
	CHECK(err == ENOENT);
	ibv_end_poll(cq);
	return n;
}

int main(int argc, char **argv)
{
	int busy = argc > 1;
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	CHECK(channel);
	struct ibv_cq_init_attr_ex init = {.cqe = ENTRIES, .channel = channel, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
	struct ibv_cq_ex *cqx = ibv_create_cq_ex(ctx, &init);
	CHECK(cqx);
	struct ibv_cq *cq = ibv_cq_ex_to_cq(cqx);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	struct ibv_qp *qp = create_qp(pd, cq, NULL);
	connect_qp(qp, qp);
	for (uint64_t id = 1; id <= 40; id++) { // wraps around the queue several times
		CHECK(!ibv_req_notify_cq(cq, 0));
		if (!busy)
			CHECK(drain(cqx, id) == 0 && stale == 0);
		struct ibv_sge sge = {(uintptr_t)buf, 8, mr->lkey};
		struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {(uintptr_t)buf + 32, mr->rkey}}, *bad;
		CHECK(!ibv_post_send(qp, &wr, &bad));
		struct ibv_cq *which;
		void *context;
		CHECK(!ibv_get_cq_event(channel, &which, &context));
		ibv_ack_cq_events(cq, 1);
		CHECK(drain(cqx, id) == 1);
		CHECK(stale == 0);
		if (busy) {
			drain(cqx, 0);
			if (stale) {
				printf("stale completions\n");
				break;
			}
		}
	}
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	printf("ok\n");
	return 0;
}
