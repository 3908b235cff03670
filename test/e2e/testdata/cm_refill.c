// refill creates objects of each kind until refusal, frees them, and expects to create as many again, three times.
#include "verbs.h"
#include <fcntl.h>
#include <linux/netlink.h>
#include <rdma/rdma_cma.h>
#include <sys/socket.h>

static struct ibv_device *dev;
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct rdma_event_channel *events;
static char memory[8];

static void *descriptor(int fd) { return fd < 0 ? NULL : (void *)(intptr_t)fd; }
static int close_descriptor(void *p) { return close((intptr_t)p); }

static void *new_channel(void) { return ibv_create_comp_channel(ctx); }
static int end_channel(void *p) { return ibv_destroy_comp_channel(p); }

static void *new_queue_with_channel(void)
{
	struct ibv_comp_channel *c = ibv_create_comp_channel(ctx);
	if (!c)
		return NULL;
	struct ibv_cq *q = ibv_create_cq(ctx, 1, NULL, c, 0);
	if (!q)
		CHECK(!ibv_destroy_comp_channel(c));
	return q;
}

static int end_queue_with_channel(void *p)
{
	struct ibv_comp_channel *c = ((struct ibv_cq *)p)->channel;
	return ibv_destroy_cq(p) || ibv_destroy_comp_channel(c);
}

static void *new_context(void) { return ibv_open_device(dev); }
static int end_context(void *p) { return ibv_close_device(p); }
static void *new_file(void) { return descriptor(open("/dev/infiniband/uverbs0", O_RDWR)); }
static void *new_socket(void) { return descriptor(socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA)); }
static void *new_events(void) { return rdma_create_event_channel(); }

static int end_events(void *p)
{
	rdma_destroy_event_channel(p);
	return 0;
}

static void *new_id(void)
{
	struct rdma_cm_id *id;
	return rdma_create_id(events, &id, NULL, RDMA_PS_TCP) ? NULL : id;
}

static int end_id(void *p) { return rdma_destroy_id(p); }
static void *new_pd(void) { return ibv_alloc_pd(ctx); }
static int end_pd(void *p) { return ibv_dealloc_pd(p); }
static void *new_mr(void) { return ibv_reg_mr(pd, memory, sizeof memory, 0); }
static int end_mr(void *p) { return ibv_dereg_mr(p); }
static void *new_cq(void) { return ibv_create_cq(ctx, 1, NULL, NULL, 0); }
static int end_cq(void *p) { return ibv_destroy_cq(p); }

static void *new_srq(void)
{
	struct ibv_srq_init_attr a = {.attr = {.max_wr = 1, .max_sge = 1}};
	return ibv_create_srq(pd, &a);
}

static int end_srq(void *p) { return ibv_destroy_srq(p); }

static void *new_qp(void)
{
	struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1}, .qp_type = IBV_QPT_RC};
	return ibv_create_qp(pd, &a);
}

static int end_qp(void *p) { return ibv_destroy_qp(p); }

int main(void)
{
	static const struct {
		const char *name;
		void *(*make)(void);
		int (*end)(void *);
	} kinds[] = {
		{"channels", new_channel, end_channel}, {"queues with channels", new_queue_with_channel, end_queue_with_channel},
		{"contexts", new_context, end_context}, {"device files", new_file, close_descriptor},
		{"netlink sockets", new_socket, close_descriptor}, {"event channels", new_events, end_events},
		{"IDs", new_id, end_id}, {"PDs", new_pd, end_pd}, {"MRs", new_mr, end_mr}, {"CQs", new_cq, end_cq},
		{"SRQs", new_srq, end_srq}, {"QPs", new_qp, end_qp},
	};
	static void *list[1000];
	struct ibv_device **devices = ibv_get_device_list(NULL);
	CHECK(devices && devices[0]);
	dev = devices[0];
	CHECK(ctx = ibv_open_device(dev));
	CHECK(pd = ibv_alloc_pd(ctx));
	CHECK(cq = ibv_create_cq(ctx, 10, NULL, NULL, 0));
	CHECK(events = rdma_create_event_channel());
	for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		int first = 0;
		for (int round = 0; round < 3; round++) {
			int n = 0;
			while (n < 1000 && (list[n] = kinds[k].make()))
				n++;
			if (!round)
				first = n;
			if (n == 0 || n == 1000 || n < first)
				printf("%s: %d at first, %d in round %d\n", kinds[k].name, first, n, round);
			while (n > 0)
				CHECK(!kinds[k].end(list[--n]));
		}
	}
	puts("ok");
	return 0;
}
