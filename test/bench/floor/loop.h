// Functions for programs that communicate with themselves: they open contexts of a device, and connect its queue pairs with
// one another.
#ifndef LOOP_H
#define LOOP_H
#include "floor.h"
#include <infiniband/verbs.h>

struct context {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
};

static int gid_index;
static union ibv_gid gid;

static inline struct ibv_device *find_device(const char *name)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);

	for (int i = 0; list && i < n; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			return list[i];
	fail("no such device");
	return NULL;
}

static inline void open_context(struct context *c, struct ibv_device *device, int entries)
{
	if (!(c->context = ibv_open_device(device)))
		die("ibv_open_device");
	if (!(c->pd = ibv_alloc_pd(c->context)) || !(c->cq = ibv_create_cq(c->context, entries, NULL, NULL, 0)))
		die("create PD or CQ");
	if (ibv_query_gid(c->context, 1, gid_index, &gid))
		die("ibv_query_gid");
}

static inline struct ibv_qp *create(struct context *c, int depth)
{
	struct ibv_qp_init_attr attr = {.send_cq = c->cq, .recv_cq = c->cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp(c->pd, &attr);

	if (!qp)
		die("ibv_create_qp");
	return qp;
}

static inline void connect_qp(struct ibv_qp *qp, const struct ibv_qp *peer)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = gid_index, .hop_limit = 64}}};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};

	if ((errno = ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)))
		die("ibv_modify_qp to INIT");
	if ((errno = ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)))
		die("ibv_modify_qp to RTR");
	if ((errno = ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)))
		die("ibv_modify_qp to RTS");
}

static inline void await(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int got;

	while ((got = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	if (got < 0)
		fail("ibv_poll_cq failed");
	if (wc.status != IBV_WC_SUCCESS)
		fail(ibv_wc_status_str(wc.status));
}

static inline struct ibv_mr *reg(struct context *c, void *buf, size_t size)
{
	struct ibv_mr *mr = ibv_reg_mr(c->pd, buf, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

	if (!mr)
		die("ibv_reg_mr");
	return mr;
}
#endif
