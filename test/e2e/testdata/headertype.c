// A program that reads the type of a datagram's network header from the SL of the completion, like communication
// libraries for mlx5. It answers through an address handle that libibverbs creates from the completion.
#include "verbs.h"

enum { GRH = 40, SIZE = 100, QKEY = 0x1234, IPV6 = 1, IPV4 = 2 };

static char buf[2][GRH + SIZE];

static struct ibv_qp *datagram_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	a.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
	a.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN));
	return qp;
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
	return wc;
}

// datagram sends from one queue pair to another, and returns the completion of the receive.
static struct ibv_wc datagram(struct ibv_qp *from, struct ibv_ah *ah, uint32_t qpn, struct ibv_qp *to, int at,
	struct ibv_mr *mr)
{
	struct ibv_sge sge = {(uintptr_t)buf[at], GRH + SIZE, mr->lkey};
	struct ibv_recv_wr rwr = {.sg_list = &sge, .num_sge = 1}, *rbad;
	CHECK(!ibv_post_recv(to, &rwr, &rbad));
	struct ibv_sge data = {(uintptr_t)buf[!at] + GRH, SIZE, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &data, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = {.ah = ah, .remote_qpn = qpn, .remote_qkey = QKEY}}, *bad;
	CHECK(!ibv_post_send(from, &wr, &bad));
	completion(from->send_cq);
	return completion(to->recv_cq);
}

// check reads the destination from the header of the type in sl, and compares it with the device's address.
static void check(struct ibv_wc *wc, const char *header, union ibv_gid *own)
{
	int version = header[0] >> 4 == 6 ? 6 : 4;
	CHECK(wc->wc_flags & IBV_WC_GRH);
	CHECK((wc->sl & 7) == (version == 6 ? IPV6 : IPV4));
	size_t n = (wc->sl & 7) == IPV4 ? 4 : 16;
	CHECK(!memcmp(header + GRH - n, own->raw + 16 - n, n));
}

int main(void)
{
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_cq *cq[2] = {ibv_create_cq(ctx, 8, NULL, NULL, 0), ibv_create_cq(ctx, 8, NULL, NULL, 0)};
	CHECK(cq[0] && cq[1]);
	struct ibv_qp *qp[2] = {datagram_qp(pd, cq[0]), datagram_qp(pd, cq[1])};
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}};
	CHECK(!ibv_query_gid(ctx, 1, 1, &attr.grh.dgid));
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ah);

	struct ibv_wc wc = datagram(qp[0], ah, qp[1]->qp_num, qp[1], 1, mr);
	check(&wc, buf[1], &attr.grh.dgid);
	struct ibv_ah *back = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)buf[1], 1);
	CHECK(back);
	wc = datagram(qp[1], back, wc.src_qp, qp[0], 0, mr);
	check(&wc, buf[0], &attr.grh.dgid);

	CHECK(!ibv_destroy_ah(back) && !ibv_destroy_ah(ah));
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(qp[i]) && !ibv_destroy_cq(cq[i]));
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	puts("ok");
	return 0;
}
