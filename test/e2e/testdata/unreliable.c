// A program that treats the completion of an unreliable WRITE as its delivery.
//
//	unreliable wrong|right
//
// With "right" the connection is reliable. The output is "ok", or "wrong: " and the first message that has not arrived.
#include "verbs.h"

enum { MESSAGES = 400 };

static unsigned from[MESSAGES], to[MESSAGES];

static void connect_as(struct ibv_qp *qp, struct ibv_qp *peer, int reliable)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}}};
	CHECK(!ibv_query_gid(qp->context, 1, 1, &a.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		(reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 10, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN |
		(reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)));
}

int main(int argc, char **argv)
{
	int reliable = argc > 1 && !strcmp(argv[1], "right");
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = reliable ? IBV_QPT_RC : IBV_QPT_UC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);
	CHECK(a && b);
	connect_as(b, a, reliable);
	connect_as(a, b, reliable);
	struct ibv_mr *f = ibv_reg_mr(pd, from, sizeof from, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *t = ibv_reg_mr(pd, to, sizeof to, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(f && t);
	for (unsigned i = 0; i < MESSAGES; i++) {
		from[i] = i + 1;
		CHECK(transfer(a, IBV_WR_RDMA_WRITE, &from[i], sizeof from[i], f->lkey, &to[i], t->rkey) == IBV_WC_SUCCESS);
	}
	usleep(200000); // packets may be delayed
	for (unsigned i = 0; i < MESSAGES; i++)
		if (to[i] != i + 1) {
			printf("wrong: message %u has not arrived\n", i);
			return 0;
		}
	puts("ok");
	return 0;
}
