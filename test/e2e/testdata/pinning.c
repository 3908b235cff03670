// Registered memory: rights, limits, and its behaviour after it is unmapped.
#include "verbs.h"
#include <sys/mman.h>
#include <sys/resource.h>

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *a, *b;
static size_t page;

static char *map(void *at, int prot)
{
	char *p = mmap(at, 4 * page, prot, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
	CHECK(p != MAP_FAILED);
	if (at)
		usleep(20 * 1000); // mappings are cached for 10 ms (umem.Files)
	return p;
}

static struct ibv_mr *reg(void *p, size_t n, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, p, n, access);
	CHECK(mr);
	return mr;
}

// limits: each registration counts, also of the same pages. Registrations for on-demand paging do not count.
static void limits(int privileged)
{
	char *p = map(NULL, PROT_READ | PROT_WRITE);
	struct rlimit l = {6 * page, 6 * page};
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &l));
	struct ibv_mr *first = reg(p, 4 * page, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *second = ibv_reg_mr(pd, p, 4 * page, IBV_ACCESS_LOCAL_WRITE);
	if (privileged) {
		CHECK(second);
		CHECK(!ibv_dereg_mr(second));
		CHECK(!ibv_dereg_mr(first));
		return;
	}
	CHECK(!second && errno == ENOMEM);
	struct ibv_mr *part = reg(p + page - 1, 2, 0); // two bytes, two pages
	CHECK(!ibv_reg_mr(pd, p, 1, 0) && errno == ENOMEM);
#ifndef KERNEL_61
	CHECK(!ibv_dereg_mr(reg(p, 4 * page, IBV_ACCESS_ON_DEMAND)));
#endif
	CHECK(!ibv_dereg_mr(part));
	CHECK(!ibv_dereg_mr(first));
	CHECK(!ibv_dereg_mr(reg(p, 4 * page, IBV_ACCESS_LOCAL_WRITE)));
	munmap(p, 4 * page);
}

// rights: the rights of the mappings are checked at registration.
static void rights(void)
{
	char *p = map(NULL, PROT_READ);
	CHECK(!ibv_reg_mr(pd, p, page, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	CHECK(!ibv_dereg_mr(reg(p, page, 0)));
	CHECK(!ibv_dereg_mr(reg(p, page, IBV_ACCESS_REMOTE_READ)));
	CHECK(!mprotect(p, page, PROT_READ | PROT_WRITE));
	CHECK(!ibv_dereg_mr(reg(p, page, IBV_ACCESS_LOCAL_WRITE)));
	CHECK(!ibv_reg_mr(pd, p, 2 * page, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT); // the second page is not writable
	CHECK(!munmap(p + 2 * page, page));
	CHECK(!ibv_reg_mr(pd, p, 4 * page, 0) && errno == EFAULT); // a hole in the mappings
	CHECK(!ibv_reg_mr(pd, p, page, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	munmap(p, 4 * page);
}

static void fresh(void)
{
	if (a) {
		CHECK(!ibv_destroy_qp(a));
		CHECK(!ibv_destroy_qp(b));
	}
	a = create_qp(pd, cq, NULL);
	b = create_qp(pd, cq, NULL);
	connect_qp(a, b);
	connect_qp(b, a);
}

// at use: access to unmapped memory is an error at the side that registered it, and new memory at this address is not
// touched.
static void unmapped(void)
{
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	char *here = map(NULL, PROT_READ | PROT_WRITE), *there = map(NULL, PROT_READ | PROT_WRITE);
	struct ibv_mr *m = reg(here, 4 * page, all), *n = reg(there, 4 * page, all);
	memset(there, 'n', page);
	fresh();
	CHECK(transfer(a, IBV_WR_RDMA_READ, here, page, m->lkey, there, n->rkey) == IBV_WC_SUCCESS);
	CHECK(here[page - 1] == 'n');

	CHECK(!munmap(here, 4 * page));
	CHECK(transfer(a, IBV_WR_RDMA_WRITE, here, page, m->lkey, there, n->rkey) == IBV_WC_LOC_PROT_ERR);
	map(here, PROT_NONE); // prevents a mapping of a queue at this address
	fresh();
	CHECK(transfer(a, IBV_WR_RDMA_READ, there, page, n->lkey, here, m->rkey) == IBV_WC_REM_ACCESS_ERR);

	map(here, PROT_READ); // other memory, which must not be written
	fresh();
	CHECK(transfer(a, IBV_WR_RDMA_READ, here, page, m->lkey, there, n->rkey) == IBV_WC_LOC_PROT_ERR);
	CHECK(here[0] == 0);
	fresh();
	CHECK(transfer(a, IBV_WR_RDMA_WRITE, there, page, n->lkey, here, m->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(here[0] == 0);
	CHECK(!ibv_dereg_mr(m));
	CHECK(!ibv_dereg_mr(n));
}

int main(int argc, char **argv)
{
	struct ibv_context *ctx = open_device();
	page = sysconf(_SC_PAGESIZE);
	CHECK(pd = ibv_alloc_pd(ctx));
	CHECK(cq = ibv_create_cq(ctx, 100, NULL, NULL, 0));
	if (argc > 1 && !strcmp(argv[1], "hold")) { // time for the test to check
		reg(map(NULL, PROT_READ | PROT_WRITE), 4 * page, 0);
		reg(map(NULL, PROT_READ | PROT_WRITE), 1, 0);
		puts("ready");
		fflush(stdout);
		pause();
	}
	rights();
#ifndef KERNEL_61
	unmapped();
#endif
	limits(geteuid() == 0);
	puts("ok");
	return 0;
}
