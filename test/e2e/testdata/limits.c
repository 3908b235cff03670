// A program that creates one object of each kind with all the limits that the device reports, and uses them fully. With
// "longest" it also reads a message of the maximum length.
#include "verbs.h"
#include <stdint.h>
#include <sys/mman.h>

enum { INLINE = 512, PIECE = 64 << 20 };

static struct ibv_device_attr dev;

// sges holds n elements of length bytes each, all of the same memory.
static struct ibv_sge *sges(int n, void *at, uint32_t length, uint32_t lkey)
{
	struct ibv_sge *s = calloc(n, sizeof *s);
	CHECK(s);
	for (int i = 0; i < n; i++)
		s[i] = (struct ibv_sge){(uintptr_t)at, length, lkey};
	return s;
}

static void expect(struct ibv_cq *cq, int n)
{
	struct ibv_wc wc[64];
	while (n > 0) {
		int got = ibv_poll_cq(cq, 64, wc);
		CHECK(got >= 0 && got <= n);
		for (int i = 0; i < got; i++)
			if (wc[i].status) {
				fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc[i].status));
				exit(1);
			}
		n -= got;
	}
}

static void start(struct ibv_qp *qp, struct ibv_qp *to)
{
	connect_qp(qp, to);
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(qp, &a, IBV_QP_CAP, &init));
	CHECK(init.cap.max_send_wr >= (uint32_t)dev.max_qp_wr && init.cap.max_send_sge >= (uint32_t)dev.max_sge);
}

int main(int argc, char **argv)
{
	struct ibv_context *ctx = open_device();
	CHECK(!ibv_query_device(ctx, &dev));
	struct ibv_port_attr port;
	CHECK(!ibv_query_port(ctx, 1, &port));
	printf("max_qp_wr %d, max_sge %d, max_cqe %d, max_srq_wr %d, max_srq_sge %d\n",
		dev.max_qp_wr, dev.max_sge, dev.max_cqe, dev.max_srq_wr, dev.max_srq_sge);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(pd);

	struct ibv_cq *cq = ibv_create_cq(ctx, dev.max_cqe, NULL, NULL, 0);
	CHECK(cq && cq->cqe >= dev.max_cqe);
	CHECK(!ibv_create_cq(ctx, dev.max_cqe + 1, NULL, NULL, 0));
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = dev.max_qp_wr, .max_recv_wr = dev.max_qp_wr, .max_send_sge = dev.max_sge,
			.max_recv_sge = dev.max_sge,
			.max_inline_data = INLINE}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	start(qp, qp);

	// All memory can be registered for on-demand paging.
	struct ibv_mr *mr = ibv_reg_mr(pd, NULL, dev.max_mr_size,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND);
	CHECK(mr && dev.max_mr_size == SIZE_MAX);

	// The maximum number of receives with the maximum number of elements, and a message that uses all elements.
	char *data = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(data != MAP_FAILED);
	struct ibv_recv_wr rwr = {.sg_list = sges(dev.max_sge, data, 16, mr->lkey), .num_sge = dev.max_sge}, *rbad;
	for (int i = 0; i < dev.max_qp_wr; i++)
		CHECK(!ibv_post_recv(qp, &rwr, &rbad));
	CHECK(ibv_post_recv(qp, &rwr, &rbad));
	struct ibv_sge in = {(uintptr_t)data, INLINE, 0};
	struct ibv_send_wr wr = {.sg_list = &in, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE}, *bad;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	expect(cq, 2);
	wr.sg_list = sges(dev.max_sge, data, 16, mr->lkey);
	wr.num_sge = dev.max_sge;
	wr.send_flags = IBV_SEND_SIGNALED;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	expect(cq, 2);

	if (argc > 1 && !strcmp(argv[1], "longest")) {
		// An RDMA READ of memory that is all zeros, repeatedly into the same place.
		uint32_t part = port.max_msg_sz / dev.max_sge_rd;
		CHECK(part <= PIECE);
		char *zeros = mmap(NULL, port.max_msg_sz, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		CHECK(zeros != MAP_FAILED);
		wr = (struct ibv_send_wr){.sg_list = sges(dev.max_sge_rd, data, part, mr->lkey), .num_sge = dev.max_sge_rd,
			.opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {(uintptr_t)zeros, mr->rkey}};
		CHECK(!ibv_post_send(qp, &wr, &bad));
		expect(cq, 1);
	}
	CHECK(!ibv_destroy_qp(qp));

	struct ibv_srq_init_attr sinit = {.attr = {.max_wr = dev.max_srq_wr, .max_sge = dev.max_srq_sge}};
	struct ibv_srq *srq = ibv_create_srq(pd, &sinit);
	CHECK(srq);
	rwr.num_sge = dev.max_srq_sge;
	for (int i = 0; i < dev.max_srq_wr; i++)
		CHECK(!ibv_post_srq_recv(srq, &rwr, &rbad));
	CHECK(ibv_post_srq_recv(srq, &rwr, &rbad));
	CHECK(!ibv_destroy_srq(srq));

	// The maximum number of outstanding RDMA READs.
	init.cap = (struct ibv_qp_cap){.max_send_wr = 2 * dev.max_qp_init_rd_atom, .max_send_sge = 1};
	qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_READ};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = dev.max_qp_rd_atom, .min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}}};
	CHECK(!ibv_query_gid(ctx, 1, 1, &a.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = dev.max_qp_init_rd_atom};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
	struct ibv_sge to = {(uintptr_t)data, 4096, mr->lkey};
	wr = (struct ibv_send_wr){.sg_list = &to, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {(uintptr_t)data + 4096, mr->rkey}};
	for (int i = 0; i < 2 * dev.max_qp_init_rd_atom; i++)
		CHECK(!ibv_post_send(qp, &wr, &bad));
	expect(cq, 2 * dev.max_qp_init_rd_atom);

	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) &&
		!ibv_close_device(ctx));
	puts("ok");
	return 0;
}
