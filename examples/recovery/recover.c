/*
 * recover sends messages to itself until SIGTERM, and starts a new session after each failure of its device.
 * docs/recovery.md describes it.
 */
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEPTH = 16, SIZE = 64 };

struct session {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	int outstanding; /* work requests that have not completed */
};

static char buf[SIZE * 2];
static volatile sig_atomic_t stop;

static void on_signal(int sig) { (void)sig; stop = 1; }

static void end(struct session *s)
{
	/* On a zombie, only destroying and closing work. */
	if (s->qp) ibv_destroy_qp(s->qp);
	if (s->mr) ibv_dereg_mr(s->mr);
	if (s->cq) ibv_destroy_cq(s->cq);
	if (s->pd) ibv_dealloc_pd(s->pd);
	if (s->ctx) ibv_close_device(s->ctx);
	memset(s, 0, sizeof *s);
}

static int begin(struct session *s)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	memset(s, 0, sizeof *s);
	if (list && n > 0)
		s->ctx = ibv_open_device(list[0]);
	if (list)
		ibv_free_device_list(list);
	if (!s->ctx || !(s->pd = ibv_alloc_pd(s->ctx)) || !(s->cq = ibv_create_cq(s->ctx, 4 * DEPTH, NULL, NULL, 0)) ||
	    !(s->mr = ibv_reg_mr(s->pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)))
		return -1;
	struct ibv_qp_init_attr init = {
		.send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	if (!(s->qp = ibv_create_qp(s->pd, &init)))
		return -1;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	if (ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return -1;
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = s->qp->qp_num,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1, .hop_limit = 1 } } };
	if (ibv_query_gid(s->ctx, 1, 1, &a.ah_attr.grh.dgid) ||
	    ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return -1;
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
	return ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

/* poll_all takes all completions. It returns -1 if one of them, or the poll, has failed. */
static int poll_all(struct session *s, long *done)
{
	struct ibv_wc wc[DEPTH];
	int n, bad = 0;

	while ((n = ibv_poll_cq(s->cq, DEPTH, wc)) > 0)
		for (int i = 0; i < n; i++) {
			s->outstanding--;
			if (wc[i].status == IBV_WC_SUCCESS)
				++*done;
			else
				bad = -1; /* to be sent again in the next session */
		}
	return n < 0 ? -1 : bad;
}

static void work(struct session *s, long *done)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buf, .length = SIZE, .lkey = s->mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)buf + SIZE, .rkey = s->mr->rkey } };

	while (!stop) {
		for (; s->outstanding < DEPTH; s->outstanding++)
			if (ibv_post_send(s->qp, &wr, &bad))
				return;
		if (poll_all(s, done))
			return;
	}
}

int main(void)
{
	long done = 0, sessions = 0;
	struct session s;

	signal(SIGTERM, on_signal);
	while (!stop) {
		if (begin(&s) == 0) {
			printf("session %ld, %ld done\n", ++sessions, done);
			fflush(stdout);
			work(&s, &done);
			/* Every accepted work request completes, so no timeout is needed. */
			while (s.outstanding > 0)
				poll_all(&s, &done);
		}
		end(&s);
		if (!stop)
			usleep(10000); /* the device may not be back yet */
	}
	printf("finished: %ld done in %ld sessions\n", done, sessions);
	return 0;
}
