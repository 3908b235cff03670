// A program that registers memory with IBV_ACCESS_ZERO_BASED, or at address 0, and uses offsets as addresses at both
// ends.
#include "verbs.h"

enum { SIZE = 8192, OFF = 100, PAGE = 4096 };

static char buf[2][SIZE] __attribute__((aligned(PAGE)));

static void exchange(struct ibv_qp *qp, struct ibv_mr *from, char *source, struct ibv_mr *to, char *target, unsigned n)
{
	memset(buf, 0, sizeof buf);
	for (unsigned i = 0; i < n; i++)
		source[i] = i * 7 + 1;
	CHECK(transfer(qp, IBV_WR_RDMA_WRITE, (void *)0, n, from->lkey, (void *)0, to->rkey) == IBV_WC_SUCCESS);
	CHECK(!memcmp(source, target, n));
	// From the middle of the target to the start of the source.
	CHECK(transfer(qp, IBV_WR_RDMA_READ, (void *)0, 64, from->lkey, (void *)1000, to->rkey) == IBV_WC_SUCCESS);
	CHECK(!memcmp(source, target + 1000, 64));
	// The last byte.
	source[3] = 99;
	CHECK(transfer(qp, IBV_WR_RDMA_WRITE, (void *)3, 1, from->lkey, (void *)(uintptr_t)(n - 1),
		to->rkey) == IBV_WC_SUCCESS);
	CHECK(target[n - 1] == 99 && !target[n]);
}

int main(void)
{
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp *qp[2] = {create_qp(pd, cq, NULL), create_qp(pd, cq, NULL)};
	for (int i = 0; i < 2; i++)
		connect_qp(qp[i], qp[!i]);
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	unsigned n = SIZE - 2 * OFF;

	struct ibv_mr *mr[2];
	for (int i = 0; i < 2; i++) {
		mr[i] = ibv_reg_mr(pd, buf[i] + OFF, n, rights | IBV_ACCESS_ZERO_BASED);
		CHECK(mr[i]);
	}
	exchange(qp[0], mr[0], buf[0] + OFF, mr[1], buf[1] + OFF, n);
	CHECK(!ibv_dereg_mr(mr[0]) && !ibv_dereg_mr(mr[1]));

	for (int i = 0; i < 2; i++) {
		mr[i] = ibv_reg_mr_iova(pd, buf[i], n, 0, rights);
		CHECK(mr[i]);
	}
	exchange(qp[0], mr[0], buf[0], mr[1], buf[1], n);
	CHECK(!ibv_dereg_mr(mr[0]) && !ibv_dereg_mr(mr[1]));

	// Past the end of the region, and with the address of the memory.
	struct ibv_mr *zero = ibv_reg_mr(pd, buf[1] + OFF, n, rights | IBV_ACCESS_ZERO_BASED);
	struct ibv_mr *plain = ibv_reg_mr(pd, buf[0], SIZE, rights);
	CHECK(zero && plain);
	CHECK(transfer(qp[0], IBV_WR_RDMA_WRITE, buf[0], 1, plain->lkey, (void *)(uintptr_t)n,
		zero->rkey) == IBV_WC_REM_ACCESS_ERR);
	for (int i = 0; i < 2; i++) {
		CHECK(!ibv_destroy_qp(qp[i]));
		qp[i] = create_qp(pd, cq, NULL);
	}
	for (int i = 0; i < 2; i++)
		connect_qp(qp[i], qp[!i]);
	CHECK(transfer(qp[0], IBV_WR_RDMA_WRITE, buf[0], 1, plain->lkey, buf[1] + OFF, zero->rkey) == IBV_WC_REM_ACCESS_ERR);

	CHECK(!ibv_destroy_qp(qp[0]) && !ibv_destroy_qp(qp[1]) && !ibv_destroy_cq(cq));
	CHECK(!ibv_dereg_mr(zero) && !ibv_dereg_mr(plain) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	puts("ok");
	return 0;
}
