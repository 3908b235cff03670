// A program with traffic while its port goes down. It receives the event with the port's number, its queue pair fails
// as on Linux, and it connects again when the port is up. It prints a line when it is ready for the next step.
#include "verbs.h"

static char buf[4096];

static void event(struct ibv_context *ctx, enum ibv_event_type want)
{
	struct ibv_async_event e;
	CHECK(!ibv_get_async_event(ctx, &e));
	if (e.event_type != want || e.element.port_num != 1)
		fprintf(stderr, "event %s of port %d\n", ibv_event_type_str(e.event_type), e.element.port_num);
	CHECK(e.event_type == want && e.element.port_num == 1);
	ibv_ack_async_event(&e);
}

static void reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
}

int main(void)
{
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(pd && cq && mr);
	struct ibv_qp *qp[2] = {create_qp(pd, cq, NULL), create_qp(pd, cq, NULL)};
	struct ibv_port_attr port;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 2; i++)
			connect_qp(qp[i], qp[!i]);
		CHECK(transfer(qp[0], IBV_WR_RDMA_WRITE, buf, 64, mr->lkey, buf + 64, mr->rkey) == IBV_WC_SUCCESS);
		printf("connected\n");
		fflush(stdout);

		event(ctx, IBV_EVENT_PORT_ERR);
		CHECK(!ibv_query_port(ctx, 1, &port));
		CHECK(port.state == IBV_PORT_DOWN && port.phys_state == 2);
		CHECK(transfer(qp[0], IBV_WR_RDMA_WRITE, buf, 64, mr->lkey, buf + 64, mr->rkey) == IBV_WC_RETRY_EXC_ERR);
		CHECK(!ibv_query_qp(qp[0], &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
		CHECK(transfer(qp[0], IBV_WR_RDMA_WRITE, buf, 64, mr->lkey, buf + 64, mr->rkey) == IBV_WC_WR_FLUSH_ERR);
		printf("failed\n");
		fflush(stdout);

		event(ctx, IBV_EVENT_PORT_ACTIVE);
		CHECK(!ibv_query_port(ctx, 1, &port));
		CHECK(port.state == IBV_PORT_ACTIVE && port.phys_state == 5);
		for (int i = 0; i < 2; i++)
			reset(qp[i]);
	}
	printf("ok\n");
	return 0;
}
