// A program that posts to a queue pair that cannot send yet. Each work request is refused, and is not queued (IBA
// 10.8.3.1).
#include "verbs.h"

static struct ibv_mr *mr;
static char buf[64];

static int post(struct ibv_qp *qp, uint64_t id, int n)
{
	struct ibv_sge sge = {(uintptr_t)buf, 8, mr->lkey};
	struct ibv_send_wr wr[8] = {}, *bad;
	for (int i = 0; i < n; i++)
		wr[i] = (struct ibv_send_wr){.wr_id = id + i, .next = i < n - 1 ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1,
			.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	return ibv_post_send(qp, wr, &bad);
}

int main(void)
{
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	CHECK(cq);
	mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_qp *qp = create_qp(pd, cq, NULL); // connected to itself
	for (int round = 0; round < 30; round++) { // more requests than the queue has slots
		CHECK(post(qp, 1, 1) == EINVAL);
		CHECK(post(qp, 2, 3) == EINVAL);
	}
	to_init(qp);
	CHECK(post(qp, 10, 1) == EINVAL);
	to_rtr(qp, qp);
	CHECK(post(qp, 20, 2) == EINVAL);
	struct ibv_recv_wr recv = {.wr_id = 1000}, *bad;
	struct ibv_sge sge = {(uintptr_t)buf + 8, 8, mr->lkey};
	recv.sg_list = &sge;
	recv.num_sge = 1;
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_post_recv(qp, &recv, &bad));
	to_rts(qp);
	CHECK(!post(qp, 100, 1));
	struct ibv_wc wc[8];
	int n = 0;
	for (int i = 0; i < 100 && n < 8; i++) {
		int k = ibv_poll_cq(cq, 8 - n, wc + n);
		CHECK(k >= 0);
		n += k;
		usleep(2000);
	}
	for (int i = 0; i < n; i++) {
		fprintf(stderr, "completion %llu: %s\n", (unsigned long long)wc[i].wr_id, ibv_wc_status_str(wc[i].status));
		CHECK(wc[i].status == IBV_WC_SUCCESS && (wc[i].wr_id == 100 || wc[i].wr_id == 1000));
	}
	CHECK(n == 2);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	puts("ok");
	return 0;
}
