// A program that requests all access rights for its queue pairs, including the right that needs persistent memory, like
// tests for arbitrary devices.
#include "verbs.h"

enum { FLUSH_GLOBAL = 1 << 8, FLUSH_PERSISTENT = 1 << 9 }; // missing in some verbs.h

static char buf[2][64];

int main(void)
{
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
		FLUSH_GLOBAL;
	CHECK(!ibv_reg_mr(pd, buf, sizeof buf, rights | FLUSH_PERSISTENT) && errno == EOPNOTSUPP);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, rights);
	CHECK(mr);
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp *qp[2] = {create_qp(pd, cq, NULL), create_qp(pd, cq, NULL)};
	for (int i = 0; i < 2; i++) {
		connect_qp(qp[i], qp[!i]);
		struct ibv_qp_attr a = {.qp_access_flags = rights | FLUSH_PERSISTENT};
		struct ibv_qp_init_attr init;
		CHECK(!ibv_modify_qp(qp[i], &a, IBV_QP_ACCESS_FLAGS));
		CHECK(!ibv_query_qp(qp[i], &a, IBV_QP_ACCESS_FLAGS, &init));
		CHECK(a.qp_access_flags == (rights | FLUSH_PERSISTENT));
	}
	strcpy(buf[0], "data");
	CHECK(transfer(qp[0], IBV_WR_RDMA_WRITE, buf[0], sizeof buf[0], mr->lkey, buf[1], mr->rkey) == IBV_WC_SUCCESS);
	CHECK(!strcmp(buf[1], "data"));
	CHECK(!ibv_destroy_qp(qp[0]) && !ibv_destroy_qp(qp[1]) && !ibv_destroy_cq(cq));
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	puts("ok");
	return 0;
}
