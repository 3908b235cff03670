// A program with a peer that invalidates keys without the right to do so: an unknown key, and the keys of a window of
// type 1, of a window of another queue pair, and of memory registered by ibv_reg_mr. The receive completes with an
// error, and the SEND is not acknowledged (class J of IBA 9.9.6.3).
#include "verbs.h"

static char buf[2][64];

static struct ibv_wc next(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(n == 1);
	return wc;
}

static uint32_t bind(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mr *mr)
{
	struct ibv_mw_bind_info info = {.mr = mr, .addr = (uintptr_t)buf[1], .length = 64,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
	if (mw->type == IBV_MW_TYPE_1) {
		struct ibv_mw_bind b = {.send_flags = IBV_SEND_SIGNALED, .bind_info = info};
		CHECK(!ibv_bind_mw(qp, mw, &b));
		CHECK(next(qp->send_cq).status == IBV_WC_SUCCESS);
		return mw->rkey;
	}
	uint32_t key = ibv_inc_rkey(mw->rkey);
	struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = {.mw = mw, .rkey = key, .bind_info = info}}, *bad;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	CHECK(next(qp->send_cq).status == IBV_WC_SUCCESS);
	return key;
}

int main(void)
{
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND);
	CHECK(mr);
	struct ibv_cq *cq[2] = {ibv_create_cq(ctx, 8, NULL, NULL, 0), ibv_create_cq(ctx, 8, NULL, NULL, 0)};
	CHECK(cq[0] && cq[1]);
	enum { GOOD, NONE, TYPE1, OTHERS, REGION, CASES };
	for (int c = 0; c < CASES; c++) {
		struct ibv_qp *qp[2] = {create_qp(pd, cq[0], NULL), create_qp(pd, cq[1], NULL)};
		for (int i = 0; i < 2; i++)
			connect_qp(qp[i], qp[!i]);
		struct ibv_mw *mw = ibv_alloc_mw(pd, c == TYPE1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
		CHECK(mw);
		uint32_t key = bind(qp[c != OTHERS], mw, mr);
		if (c == NONE)
			key ^= 0x100;
		if (c == REGION)
			key = mr->rkey;
		struct ibv_sge to = {(uintptr_t)buf[1], 64, mr->lkey}, from = {(uintptr_t)buf[0], 64, mr->lkey};
		for (int i = 0; i < 2; i++) {
			struct ibv_recv_wr rwr = {.wr_id = i, .sg_list = &to, .num_sge = 1}, *rbad;
			CHECK(!ibv_post_recv(qp[1], &rwr, &rbad));
		}
		struct ibv_send_wr wr = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_INV,
			.send_flags = IBV_SEND_SIGNALED,
			.invalidate_rkey = key}, *bad;
		CHECK(!ibv_post_send(qp[0], &wr, &bad));
		struct ibv_wc received = next(cq[1]), sent = next(cq[0]);
		CHECK(received.wr_id == 0 && received.qp_num == qp[1]->qp_num);
		if (c == GOOD) {
			CHECK(received.status == IBV_WC_SUCCESS && sent.status == IBV_WC_SUCCESS && received.invalidated_rkey == key);
		} else {
			CHECK(received.status == IBV_WC_MW_BIND_ERR); // "memory management operation error" in libibverbs
			CHECK(sent.status == IBV_WC_RETRY_EXC_ERR);
			struct ibv_wc second = next(cq[1]);
			CHECK(second.wr_id == 1 && second.status == IBV_WC_WR_FLUSH_ERR);
			struct ibv_qp_attr a;
			struct ibv_qp_init_attr init;
			CHECK(!ibv_query_qp(qp[1], &a, IBV_QP_STATE, &init) && a.qp_state == IBV_QPS_ERR);
		}
		CHECK(!ibv_destroy_qp(qp[0]) && !ibv_destroy_qp(qp[1]) && !ibv_dealloc_mw(mw));
	}
	CHECK(!ibv_destroy_cq(cq[0]) && !ibv_destroy_cq(cq[1]) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) &&
		!ibv_close_device(ctx));
	puts("ok");
	return 0;
}
