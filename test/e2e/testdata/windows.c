// A program that binds memory windows of type 2 with keys of its own choice: a tag of 8 bits, or any number. In the key
// for peers, the index of the window is above the tag.
#include "verbs.h"

static char buf[2][4096];

static enum ibv_wc_status post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	wr->send_flags = IBV_SEND_SIGNALED;
	CHECK(!ibv_post_send(qp, wr, &bad));
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(qp->send_cq, 1, &wc)))
		;
	CHECK(n == 1);
	return wc.status;
}

static enum ibv_wc_status bind(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mr *mr, uint32_t rkey, int access)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW,
		.bind_mw = {.mw = mw, .rkey = rkey, .bind_info = {.mr = mr, .addr = (uintptr_t)buf[1], .length = 64,
			.mw_access_flags = access}}};
	return post(qp, &wr);
}

static enum ibv_wc_status invalidate(struct ibv_qp *qp, uint32_t rkey)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey};
	return post(qp, &wr);
}

int main(void)
{
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	CHECK(mr);
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp *qp[2] = {create_qp(pd, cq, NULL), create_qp(pd, cq, NULL)};
	for (int i = 0; i < 2; i++)
		connect_qp(qp[i], qp[!i]);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(mw);

	uint32_t index = mw->rkey & ~0xffu, asked[] = {0x12, 0xfffffff0, index | 0x34, (index + 0x100) | 0x56};
	for (unsigned i = 0; i < sizeof asked / sizeof *asked; i++) {
		uint32_t key = index | (asked[i] & 0xff);
		CHECK(bind(qp[1], mw, mr, asked[i], IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ) == IBV_WC_SUCCESS);
		snprintf(buf[0], 64, "by key %u", i);
		CHECK(transfer(qp[0], IBV_WR_RDMA_WRITE, buf[0], 64, mr->lkey, buf[1], key) == IBV_WC_SUCCESS);
		CHECK(!strcmp(buf[0], buf[1]));
		mw->rkey = key; // the program must do this, libibverbs does not
		CHECK(invalidate(qp[1], key) == IBV_WC_SUCCESS);
	}
	// The last key is invalid.
	CHECK(transfer(qp[0], IBV_WR_RDMA_WRITE, buf[0], 64, mr->lkey, buf[1], index | 0x56) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_dealloc_mw(mw) && !ibv_destroy_qp(qp[0]) && !ibv_destroy_qp(qp[1]) && !ibv_destroy_cq(cq));
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	puts("ok");
	return 0;
}
