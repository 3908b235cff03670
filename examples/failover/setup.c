/*
 * A set-up that fails: the device refuses a protection domain, a completion queue or a registration. The program destroys the
 * objects that it has created on the device, in the required order, and continues with its second device. Without one, it
 * prints a message and exits with code 1. With BUG it does not check the results of ibv_alloc_pd and ibv_create_cq, and leaks
 * its objects when a registration fails.
 *
 *	setup DEVICE...
 */
#include "common.h"

enum { SIZE = 4096 };

static char memory[2][SIZE];

/* engine holds the objects of one device. */
struct engine {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq[2]; /* for sends, and for receives */
	struct ibv_mr *mr[2];
	struct ibv_qp *qp;
};

static int failed(const char *device, const char *what)
{
	say("%s: %s: %s", device, what, strerror(errno));
	return -1;
}

/* destroy destroys every existing object, whatever step has failed. It returns the number of failed calls. */
static int destroy(struct engine *e)
{
	int left = 0;

	left += e->qp && ibv_destroy_qp(e->qp);
	for (int i = 0; i < 2; i++)
		left += e->mr[i] && ibv_dereg_mr(e->mr[i]);
	for (int i = 0; i < 2; i++)
		left += e->cq[i] && ibv_destroy_cq(e->cq[i]);
	left += e->pd && ibv_dealloc_pd(e->pd);
	left += e->ctx && ibv_close_device(e->ctx);
	memset(e, 0, sizeof *e);
	return left;
}

/* usable reports whether an object was created. With BUG the program does not check. */
static int usable(const void *object)
{
	return BUG || object != NULL;
}

static int setup(struct engine *e, const char *device)
{
	memset(e, 0, sizeof *e);
	if (!(e->ctx = open_device(device)))
		return failed(device, "open");
	if (!usable(e->pd = ibv_alloc_pd(e->ctx)))
		return failed(device, "alloc_pd");
	for (int i = 0; i < 2; i++)
		if (!usable(e->cq[i] = ibv_create_cq(e->ctx, 16, NULL, NULL, 0)))
			return failed(device, "create_cq");
	for (int i = 0; i < 2; i++)
		if (!(e->mr[i] = ibv_reg_mr(e->pd, memory[i], SIZE, IBV_ACCESS_LOCAL_WRITE)))
			return failed(device, "reg_mr");
	struct ibv_qp_init_attr init = {.send_cq = e->cq[0], .recv_cq = e->cq[1], .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	if (!(e->qp = ibv_create_qp(e->pd, &init)))
		return failed(device, "create_qp");
	return 0;
}

/* talk sends a message from the queue pair to itself. */
static int talk(struct engine *e)
{
	struct rail r = {.ctx = e->ctx, .pd = e->pd, .mr = e->mr[0]};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	struct ibv_sge sge = {(uintptr_t)memory[1], SIZE, e->mr[1]->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	struct peer self = describe(&r, e->qp);
	struct ibv_wc wc;

	if (ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	    connect_qp(e->qp, &self, self.psn, usual))
		return failed(ibv_get_device_name(e->ctx->device), "connect");
	strcpy(memory[0], "hello");
	if (ibv_post_recv(e->qp, &wr, &bad) || post_send(&r, e->qp, memory[0], SIZE, 0))
		return failed(ibv_get_device_name(e->ctx->device), "post");
	for (int i = 0; i < 2; i++) {
		while (!ibv_poll_cq(e->cq[i], 1, &wc))
			rest();
		if (wc.status != IBV_WC_SUCCESS) {
			say("%s", ibv_wc_status_str(wc.status));
			return -1;
		}
	}
	return strcmp(memory[0], memory[1]);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		struct engine e;

		if (setup(&e, argv[i]) == 0) {
			say("%s: ready", argv[i]);
			int bad = talk(&e), left = destroy(&e);
			say("%s: %s, %d left", argv[i], bad ? "failed" : "done", left);
			return bad || left;
		}
#if !BUG
		say("%s: given up, %d left", argv[i], destroy(&e));
#endif
	}
	quit("no device can be used");
}
