// Programs with one misuse of verbs each, and without it.
//
//	misuse NAME wrong|right
//
// The table at the end names the rule of the sanitizer (docs/sanitizer.md) that reports each misuse. Without arguments,
// the program prints the table. The exit code is 0 for both forms.
#define _GNU_SOURCE
#include "../e2e/testdata/verbs.h"
#include <malloc.h>
#include <poll.h>
#include <sys/mman.h>

enum { LEN = 256, ROUNDS = 16, DEPTH = 8 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static int right;

// side is one end of a connection, with its own queue and memory.
struct side {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *buf;
};

static struct side a, b;

static struct ibv_qp *make_qp(struct side *s, struct ibv_srq *srq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {.send_cq = s->cq, .recv_cq = s->cq, .srq = srq, .qp_type = type,
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 3, .max_recv_sge = 2, .max_inline_data = 32}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static void open_side(struct side *s, int entries)
{
	s->channel = ibv_create_comp_channel(ctx);
	CHECK(s->channel);
	s->cq = ibv_create_cq(ctx, entries, NULL, s->channel, 0);
	CHECK(s->cq);
	s->qp = make_qp(s, NULL, IBV_QPT_RC);
	s->buf = mmap(NULL, 4 * LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(s->buf != MAP_FAILED);
	s->mr = ibv_reg_mr(pd, s->buf, 4 * LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(s->mr);
}

static void connect_sides(void)
{
	to_init(a.qp);
	to_init(b.qp);
	struct ibv_qp_attr access = {.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC};
	CHECK(!ibv_modify_qp(b.qp, &access, IBV_QP_ACCESS_FLAGS));
	to_rtr(a.qp, b.qp);
	to_rtr(b.qp, a.qp);
	to_rts(a.qp);
	to_rts(b.qp);
}

// request is a work request of the side a with defaults: one element, the whole first part of the buffers.
static struct ibv_sge element;
static struct ibv_send_wr request(enum ibv_wr_opcode op, unsigned flags)
{
	static uint64_t id;
	element = (struct ibv_sge){(uintptr_t)a.buf, LEN, a.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = ++id, .sg_list = &element, .num_sge = 1, .opcode = op, .send_flags = flags};
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		element.length = 8;
		wr.wr.atomic.remote_addr = (uintptr_t)b.buf;
		wr.wr.atomic.rkey = b.mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
		wr.wr.rdma.rkey = b.mr->rkey;
	}
	return wr;
}

static int post(struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;
	return ibv_post_send(a.qp, &wr, &bad);
}

static void post_recv(struct side *s, void *at, unsigned length)
{
	struct ibv_sge sge = {(uintptr_t)at, length, s->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(s->qp, &wr, &bad));
}

static enum ibv_wc_status await(struct side *s)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(s->cq, 1, &wc)))
		;
	CHECK(n == 1);
	return wc.status;
}

static void expect(struct side *s) { CHECK(await(s) == IBV_WC_SUCCESS); }

// The misuses. Each function is one round.

// refill changes the memory of a request before its completion.
static void refill(enum ibv_wr_opcode op, unsigned char *at)
{
	if (op == IBV_WR_SEND)
		post_recv(&b, b.buf, LEN);
	CHECK(!post(request(op, IBV_SEND_SIGNALED)));
	if (right)
		expect(&a);
	*at += 1;
	if (!right)
		expect(&a);
	if (op == IBV_WR_SEND)
		expect(&b);
}

static void send_refilled(void) { refill(IBV_WR_SEND, a.buf); }
static void write_refilled(void) { refill(IBV_WR_RDMA_WRITE, a.buf + LEN - 1); }
static void read_overwritten(void) { refill(IBV_WR_RDMA_READ, a.buf); }
static void atomic_overwritten(void) { refill(IBV_WR_ATOMIC_FETCH_AND_ADD, a.buf); }

// The program changes the last element of a READ as soon as its data are there.
static void read_raced(void)
{
	memset(b.buf, 7, LEN);
	memset(a.buf, 1, LEN);
	struct ibv_sge list[] = {{(uintptr_t)a.buf, 8, a.mr->lkey}, {(uintptr_t)a.buf + 8, 8, a.mr->lkey},
		{(uintptr_t)a.buf + 16, 8, a.mr->lkey}};
	struct ibv_send_wr wr = request(IBV_WR_RDMA_READ, IBV_SEND_SIGNALED);
	wr.sg_list = list;
	wr.num_sge = 3;
	CHECK(!post(wr));
	volatile unsigned char *last = a.buf + 23;
	while (*last != 7)
		;
	if (right)
		expect(&a);
	*last = 9;
	if (!right)
		expect(&a);
}

// The unsignaled request is outstanding until the later one is polled.
static void unsignaled_refilled(void)
{
	CHECK(!post(request(IBV_WR_RDMA_WRITE, 0)));
	if (!right)
		a.buf[3] += 1;
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	element.addr += LEN;
	wr.wr.rdma.remote_addr += LEN;
	CHECK(!post(wr));
	expect(&a);
	if (right)
		a.buf[3] += 1;
}

static void large_refilled(void)
{
	static unsigned char *from, *to;
	static struct ibv_mr *src, *dst;
	enum { LARGE = 1 << 20 };
	if (!from) {
		CHECK((from = malloc(LARGE)) && (to = malloc(LARGE)));
		CHECK((src = ibv_reg_mr(pd, from, LARGE, 0)) && (dst = ibv_reg_mr(pd, to, LARGE, 3)));
	}
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	element = (struct ibv_sge){(uintptr_t)from, LARGE, src->lkey};
	wr.wr.rdma.remote_addr = (uintptr_t)to;
	wr.wr.rdma.rkey = dst->rkey;
	CHECK(!post(wr));
	if (right)
		expect(&a);
	from[LARGE - 1] += 1;
	if (!right)
		expect(&a);
}

// The program clears the memory of a receive that it has posted.
static void receive_cleared(void)
{
	post_recv(&b, b.buf, LEN);
	if (right)
		memset(b.buf, 0, LEN);
	memset(a.buf, 1, LEN);
	CHECK(!post(request(IBV_WR_SEND, IBV_SEND_SIGNALED)));
	if (!right)
		memset(b.buf, 0, LEN);
	expect(&a);
	expect(&b);
}

static void receives_share(void)
{
	for (int i = 0; i < 2; i++)
		post_recv(&b, b.buf + (right ? i * LEN : 0), LEN);
	for (int i = 0; i < 2; i++) {
		CHECK(!post(request(IBV_WR_SEND, IBV_SEND_SIGNALED)));
		expect(&a);
		expect(&b);
	}
}

// The SEND forwards the data of a READ. Both are posted at once: between two posts, the READ may complete.
static void read_forwarded(void)
{
	post_recv(&b, b.buf + LEN, LEN);
	struct ibv_send_wr send = request(IBV_WR_SEND, IBV_SEND_SIGNALED | (right ? IBV_SEND_FENCE : 0));
	struct ibv_send_wr read = request(IBV_WR_RDMA_READ, IBV_SEND_SIGNALED);
	read.next = &send;
	CHECK(!post(read));
	expect(&a);
	expect(&a);
	expect(&b);
}

// The program forwards the data in a batch of polls. The index of the CQ is published at the end of the batch.
static void batch_forwarded(void)
{
	static struct ibv_cq_ex *ex;
	static struct side s;
	if (!ex) {
		struct ibv_cq_init_attr_ex attr = {.cqe = 2 * DEPTH};
		CHECK(ex = ibv_create_cq_ex(ctx, &attr));
		s = a;
		s.cq = ibv_cq_ex_to_cq(ex);
		s.qp = make_qp(&s, NULL, IBV_QPT_RC);
		connect_qp(s.qp, s.qp);
	}
	struct ibv_mr *mr = ibv_reg_mr(pd, a.buf, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_send_wr read = request(IBV_WR_RDMA_READ, IBV_SEND_SIGNALED), *bad;
	struct ibv_send_wr write = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	element.lkey = mr->lkey;
	read.next = right ? NULL : &write;
	CHECK(!ibv_post_send(s.qp, &read, &bad));
	struct ibv_poll_cq_attr none = {};
	while (right && ibv_start_poll(ex, &none) == ENOENT)
		;
	CHECK(!right || ex->status == IBV_WC_SUCCESS);
	if (right) {
		element.lkey = a.mr->lkey;
		CHECK(!ibv_post_send(s.qp, &write, &bad));
		CHECK(!ibv_dereg_mr(mr));
		ibv_end_poll(ex);
	} else {
		expect(&s);
	}
	expect(&s);
	if (!right)
		CHECK(!ibv_dereg_mr(mr));
}

static void dereg_outstanding(void)
{
	post_recv(&b, b.buf + LEN, LEN);
	struct ibv_mr *mr = ibv_reg_mr(pd, b.buf, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_sge sge = {(uintptr_t)b.buf, LEN, mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(b.qp, &wr, &bad));
	for (int i = 0; i < 1 + right; i++) {
		CHECK(!post(request(IBV_WR_SEND, IBV_SEND_SIGNALED)));
		expect(&a);
		expect(&b);
	}
	CHECK(!ibv_dereg_mr(mr));
	if (!right)
		exit(0);
}

static void unmap_outstanding(void)
{
	unsigned char *buf = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(buf != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	element.addr = (uintptr_t)buf;
	element.lkey = mr->lkey;
	CHECK(!post(wr));
	if (right)
		expect(&a);
	CHECK(!munmap(buf, LEN));
	if (!right)
		expect(&a);
	CHECK(!ibv_dereg_mr(mr));
}

// The memory of a receive is freed. The receive fails, or is never used.
static void unmap_receive(int used)
{
	unsigned char *buf = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(buf != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_sge sge = {(uintptr_t)buf, LEN, mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	if (!used)
		post_recv(&b, b.buf, LEN); // for the first message
	CHECK(!ibv_post_recv(b.qp, &wr, &bad));
	if (!right)
		CHECK(!munmap(buf, LEN));
	if (used || right) {
		CHECK(!post(request(IBV_WR_SEND, IBV_SEND_SIGNALED)));
		CHECK(right == (await(&a) == IBV_WC_SUCCESS));
		CHECK(right == (await(&b) == IBV_WC_SUCCESS));
	}
	if (!used) {
		CHECK(!post(request(IBV_WR_SEND, IBV_SEND_SIGNALED)));
		expect(&a);
		expect(&b);
		usleep(100000);
	}
	if (!right)
		exit(0);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!munmap(buf, LEN));
}

static void unmap_used_receive(void) { unmap_receive(1); }
static void unmap_idle_receive(void) { unmap_receive(0); }

// remote_key names local memory by the remote key.
static void remote_key(void)
{
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	if (!right)
		element.lkey = a.mr->rkey;
	CHECK(!post(wr));
	CHECK(right == (await(&a) == IBV_WC_SUCCESS));
	if (!right)
		exit(0);
}

static void ended_key(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, a.buf, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	element.lkey = mr->lkey;
	if (!right)
		CHECK(!ibv_dereg_mr(mr));
	CHECK(!post(wr));
	CHECK(right == (await(&a) == IBV_WC_SUCCESS));
	if (!right)
		exit(0);
	CHECK(!ibv_dereg_mr(mr));
}

static void unknown_key(void)
{
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	if (!right)
		element.lkey = 0;
	CHECK(!post(wr));
	CHECK(right == (await(&a) == IBV_WC_SUCCESS));
	if (!right)
		exit(0);
}

static void other_domain(void)
{
	struct ibv_pd *other = right ? pd : ibv_alloc_pd(ctx);
	CHECK(other);
	struct ibv_mr *mr = ibv_reg_mr(other, a.buf, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	element.lkey = mr->lkey;
	CHECK(!post(wr));
	CHECK(right == (await(&a) == IBV_WC_SUCCESS));
	if (!right)
		exit(0);
	CHECK(!ibv_dereg_mr(mr));
}

static void beyond_region(void)
{
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	element.addr += 3 * LEN + !right;
	CHECK(!post(wr));
	CHECK(right == (await(&a) == IBV_WC_SUCCESS));
	if (!right)
		exit(0);
}

static void read_only_target(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, a.buf, LEN, right ? IBV_ACCESS_LOCAL_WRITE : 0);
	CHECK(mr);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_READ, IBV_SEND_SIGNALED);
	element.lkey = mr->lkey;
	CHECK(!post(wr));
	CHECK(right == (await(&a) == IBV_WC_SUCCESS));
	if (!right)
		exit(0);
	CHECK(!ibv_dereg_mr(mr));
}

// open_datagrams makes a.qp a UD queue pair that sends to itself.
static struct ibv_ah *datagram_ah(void)
{
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}};
	CHECK(!ibv_query_gid(ctx, 1, 1, &attr.grh.dgid));
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	return ah;
}

static struct ibv_qp *datagram_qp(void)
{
	struct ibv_qp *qp = make_qp(&a, NULL, IBV_QPT_UD);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11111111};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	return qp;
}

static int post_datagram(struct ibv_qp *qp, struct ibv_ah *ah)
{
	struct ibv_send_wr wr = request(IBV_WR_SEND, IBV_SEND_SIGNALED), *bad;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = 0x11111111;
	return ibv_post_send(qp, &wr, &bad);
}

static void left_in_sqe(void)
{
	struct ibv_qp *qp = datagram_qp();
	struct ibv_ah *ah = datagram_ah();
	struct ibv_send_wr wr = request(IBV_WR_SEND, IBV_SEND_SIGNALED), *bad;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = 0x11111111;
	enum { LONG = 16 << 10 }; // longer than a datagram, so the request fails
	void *data = malloc(LONG);
	struct ibv_mr *mr = ibv_reg_mr(pd, data, LONG, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	element = (struct ibv_sge){(uintptr_t)data, right ? 1 : LONG, mr->lkey};
	CHECK(!ibv_post_send(qp, &wr, &bad));
	await(&a);
	for (int i = 0; i < 20; i++) {
		CHECK(!post_datagram(qp, ah));
		await(&a);
	}
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_ah(ah));
}

static void ended_ah(void)
{
	static struct ibv_qp *qp;
	if (!qp)
		qp = datagram_qp();
	struct ibv_ah *ah = datagram_ah();
	if (right)
		CHECK(!post_datagram(qp, ah));
	if (right)
		expect(&a);
	// The library frees the handle, so the wrong form keeps the memory.
	void *kept = malloc(malloc_usable_size(ah));
	memcpy(kept, ah, malloc_usable_size(ah));
	CHECK(!ibv_destroy_ah(ah));
	if (!right) {
		CHECK(!post_datagram(qp, kept));
		await(&a);
		exit(0);
	}
	free(kept);
}

// small_cq posts more requests than its queue has entries.
static void small_cq(void)
{
	static struct side s;
	if (!s.cq) {
		s = a;
		s.cq = ibv_create_cq(ctx, right ? DEPTH : 2, NULL, NULL, 0);
		CHECK(s.cq);
		s.qp = make_qp(&s, NULL, IBV_QPT_RC);
		connect_qp(s.qp, s.qp); // to itself
	}
	int posted = 0;
	for (int i = 0; i < 4; i++) {
		struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED), *bad;
		posted += !ibv_post_send(s.qp, &wr, &bad);
	}
	CHECK(posted);
	if (!right)
		exit(0);
	for (int i = 0; i < 4; i++)
		expect(&s);
}

// shared_side returns a side with receives in a shared queue, and a connection to itself.
static struct side shared_side(int entries, struct ibv_srq **srq)
{
	struct side s = a;
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = DEPTH, .max_sge = 1}};
	CHECK(s.cq = ibv_create_cq(ctx, entries, NULL, NULL, 0));
	CHECK(*srq = ibv_create_srq(pd, &attr));
	s.qp = make_qp(&s, *srq, IBV_QPT_RC);
	connect_qp(s.qp, s.qp);
	CHECK(s.mr = ibv_reg_mr(pd, s.buf, LEN, IBV_ACCESS_LOCAL_WRITE));
	for (int i = 0; i < DEPTH; i++) {
		struct ibv_sge sge = {(uintptr_t)s.buf + i * 8, 8, s.mr->lkey};
		struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
		CHECK(!ibv_post_srq_recv(*srq, &wr, &bad));
	}
	return s;
}

static void srq_small_cq(void)
{
	struct ibv_srq *srq;
	struct side s = shared_side(right ? 2 * DEPTH : 2, &srq);
	for (int i = 0; i < DEPTH; i++) {
		struct ibv_send_wr wr = request(IBV_WR_SEND, 0), *bad;
		element.length = 8;
		CHECK(!ibv_post_send(s.qp, &wr, &bad));
	}
	for (int i = 0; right && i < DEPTH; i++)
		expect(&s);
	usleep(20000);
	exit(0);
}

// The receives outlive the queue pair.
static void srq_dereg(void)
{
	struct ibv_srq *srq;
	struct side s = shared_side(DEPTH, &srq);
	CHECK(!ibv_destroy_qp(s.qp));
	if (right)
		CHECK(!ibv_destroy_srq(srq));
	CHECK(!ibv_dereg_mr(s.mr));
	if (!right)
		CHECK(!ibv_destroy_srq(srq));
	CHECK(!ibv_destroy_cq(s.cq));
}

static void unsignaled_only(void)
{
	int i = 0;
	for (; i < DEPTH; i++)
		CHECK(!post(request(IBV_WR_RDMA_WRITE, right && i == DEPTH / 2 ? IBV_SEND_SIGNALED : 0)));
	if (!right) {
		for (i = 0; i < 100; i++)
			CHECK(post(request(IBV_WR_RDMA_WRITE, 0))); // never room for another
		exit(0);
	}
	expect(&a);
	for (i = 0; i < DEPTH / 2; i++)
		CHECK(!post(request(IBV_WR_RDMA_WRITE, i == DEPTH / 2 - 1 ? IBV_SEND_SIGNALED : 0)));
	expect(&a);
}

// beegfs #133: a completion arrives between the last poll and the arm.
static void armed_late(void)
{
	struct ibv_wc wc;
	CHECK(!post(request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED)));
	usleep(20000); // the completion arrives
	CHECK(!ibv_req_notify_cq(a.cq, 0));
	if (right) {
		usleep(2500000); // the program works
		CHECK(ibv_poll_cq(a.cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		exit(0);
	}
	struct pollfd p = {a.channel->fd, POLLIN};
	poll(&p, 1, 4000);
	exit(0);
}

static void polled_after_destroy(void)
{
	struct side s = a;
	s.qp = make_qp(&s, NULL, IBV_QPT_RC);
	connect_qp(s.qp, s.qp);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED), *bad;
	CHECK(!ibv_post_send(s.qp, &wr, &bad));
	if (right)
		expect(&s);
	else
		usleep(20000);
	CHECK(!ibv_destroy_qp(s.qp));
	if (!right) {
		struct ibv_wc wc;
		ibv_poll_cq(s.cq, 1, &wc);
	}
}

static void posts_in_err(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	CHECK(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
	for (int i = 0; i < 20; i++) {
		CHECK(!post(request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED)));
		CHECK(await(&a) != IBV_WC_SUCCESS);
		if (right)
			exit(0);
	}
	exit(0);
}

static void no_receive(void)
{
	if (right)
		post_recv(&b, b.buf, LEN);
	CHECK(!post(request(IBV_WR_SEND, IBV_SEND_SIGNALED)));
	if (!right) {
		usleep(2000);
		post_recv(&b, b.buf, LEN);
	}
	await(&a);
	exit(0);
}

// The echo server posts the memory of its reply as a receive again, before the completion of the SEND.
static void echo_posted_early(void)
{
	struct ibv_sge sge = {(uintptr_t)b.buf, LEN, b.mr->lkey};
	struct ibv_send_wr reply = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	post_recv(&a, a.buf + LEN, LEN);
	CHECK(!ibv_post_send(b.qp, &reply, &bad));
	if (right)
		expect(&b);
	post_recv(&b, b.buf, LEN);
	if (!right)
		expect(&b);
	expect(&a);
	CHECK(!post(request(IBV_WR_SEND, IBV_SEND_SIGNALED)));
	expect(&a);
	expect(&b);
}

// The target of a READ on a second queue pair is the source of an outstanding WRITE of the first.
static void read_into_source(void)
{
	static struct side s;
	if (!s.cq) {
		s = a;
		s.cq = ibv_create_cq(ctx, DEPTH, NULL, NULL, 0);
		CHECK(s.cq);
		s.qp = make_qp(&s, NULL, IBV_QPT_RC);
		connect_qp(s.qp, s.qp);
	}
	struct ibv_send_wr read = request(IBV_WR_RDMA_READ, IBV_SEND_SIGNALED), *bad;
	CHECK(!post(request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED)));
	if (right)
		expect(&a);
	CHECK(!ibv_post_send(s.qp, &read, &bad));
	if (!right)
		expect(&a);
	expect(&s);
}

// The server destroys the handle of each reply at once.
static void early_ah(void)
{
	static struct ibv_qp *qp;
	if (!qp)
		qp = datagram_qp();
	struct ibv_ah *ah = datagram_ah();
	CHECK(!post_datagram(qp, ah));
	if (right)
		expect(&a);
	CHECK(!ibv_destroy_ah(ah));
	if (!right)
		expect(&a);
}

// element_key posts a WRITE whose second element has the key, with the expected result of the right form.
static void element_key(uint32_t key)
{
	struct ibv_sge list[] = {{(uintptr_t)a.buf, 8, a.mr->lkey}, {(uintptr_t)a.buf + 8, 8, right ? a.mr->lkey : key}};
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	wr.sg_list = list;
	wr.num_sge = 2;
	CHECK(!post(wr));
	CHECK(right == (await(&a) == IBV_WC_SUCCESS));
	if (!right)
		exit(0);
}

// The key of a memory window is for the peer.
static void window_key(void)
{
	static struct ibv_mw *mw;
	static struct ibv_mr *mr;
	if (!mw) {
		CHECK(mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1));
		CHECK(mr = ibv_reg_mr(pd, a.buf, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
		struct ibv_mw_bind bind = {.send_flags = IBV_SEND_SIGNALED, .bind_info = {.mr = mr, .addr = (uintptr_t)a.buf,
			.length = LEN, .mw_access_flags = IBV_ACCESS_REMOTE_READ}};
		CHECK(!ibv_bind_mw(a.qp, mw, &bind));
		expect(&a);
	}
	element_key(mw->rkey);
}

static void ended_remote_key(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, a.buf, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	uint32_t key = mr->rkey;
	CHECK(!ibv_dereg_mr(mr));
	element_key(key);
}

// The pool is registered in another device file of the process only.
static void other_context(void)
{
	static struct ibv_mr *mr;
	if (!mr) {
		struct ibv_context *other = open_device();
		struct ibv_pd *domain = ibv_alloc_pd(other);
		CHECK(domain);
		CHECK(mr = ibv_reg_mr(domain, a.buf, LEN, IBV_ACCESS_LOCAL_WRITE));
	}
	element_key(mr->lkey);
}

// The key of a former registration, kept in a template of requests.
static void template_key(void)
{
	static struct ibv_sge kept;
	struct ibv_mr *mr = ibv_reg_mr(pd, a.buf, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	if (right || !kept.lkey)
		kept = (struct ibv_sge){(uintptr_t)a.buf, 8, mr->lkey};
	struct ibv_send_wr wr = request(IBV_WR_SEND, IBV_SEND_SIGNALED);
	post_recv(&b, b.buf, LEN);
	wr.sg_list = &kept;
	CHECK(!post(wr));
	if (await(&a) != IBV_WC_SUCCESS) {
		CHECK(!right);
		exit(0);
	}
	expect(&b);
	CHECK(!ibv_dereg_mr(mr));
}

// receive posts a receive with an element that is wrong in the wrong form, and uses it.
static void receive(struct ibv_sge sge)
{
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(b.qp, &wr, &bad));
	CHECK(!post(request(IBV_WR_SEND, IBV_SEND_SIGNALED)));
	CHECK(right == (await(&a) == IBV_WC_SUCCESS));
	CHECK(right == (await(&b) == IBV_WC_SUCCESS));
	if (!right)
		exit(0);
}

// A receive of the ring, with the room for the route header of datagrams, exceeds the region.
static void receive_beyond_region(void)
{
	receive((struct ibv_sge){(uintptr_t)b.buf + 3 * LEN, LEN + (right ? 0 : 40), b.mr->lkey});
}

static void receive_remote_key(void)
{
	receive((struct ibv_sge){(uintptr_t)b.buf, LEN, right ? b.mr->lkey : b.mr->rkey});
}

// Each connection has a domain of its own, and all use one pool.
static void receive_other_domain(void)
{
	struct ibv_pd *other = right ? pd : ibv_alloc_pd(ctx);
	CHECK(other);
	struct ibv_mr *mr = ibv_reg_mr(other, b.buf, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	receive((struct ibv_sge){(uintptr_t)b.buf, LEN, mr->lkey});
	CHECK(!ibv_dereg_mr(mr));
}

// The receives use memory that was registered for sends.
static void read_only_receive(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, b.buf, LEN, right ? IBV_ACCESS_LOCAL_WRITE : 0);
	CHECK(mr);
	receive((struct ibv_sge){(uintptr_t)b.buf, LEN, mr->lkey});
	CHECK(!ibv_dereg_mr(mr));
}

// dereg_unsignaled ends the region of a WRITE that is not signaled. The wrong form then posts again, or does not.
static void dereg_unsignaled(int posts_again)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, a.buf, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, right ? IBV_SEND_SIGNALED : 0);
	element.lkey = mr->lkey;
	CHECK(!post(wr));
	if (right)
		expect(&a);
	CHECK(!ibv_dereg_mr(mr));
	if (right)
		return;
	if (posts_again) {
		CHECK(!post(request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED)));
		await(&a);
	}
	CHECK(!ibv_destroy_qp(a.qp));
	exit(0);
}

static void dereg_evicted(void) { dereg_unsignaled(1); }
static void dereg_last_unsignaled(void) { dereg_unsignaled(0); }

// The READ may still store data: only the WRITE before it was polled.
static void dereg_read_target(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, a.buf + LEN, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_sge sge = {(uintptr_t)a.buf + LEN, LEN, mr->lkey};
	struct ibv_send_wr write = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED), read = write;
	read.opcode = IBV_WR_RDMA_READ;
	read.sg_list = &sge;
	write.next = &read;
	CHECK(!post(write));
	expect(&a);
	if (right)
		expect(&a);
	CHECK(!ibv_dereg_mr(mr));
	if (!right)
		exit(0);
}

// disconnect moves a queue pair with receives to ERR, and polls their completions in the right form.
static void disconnect(struct side *s, int receives)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	CHECK(!ibv_modify_qp(s->qp, &attr, IBV_QP_STATE));
	for (int i = 0; right && i < receives; i++)
		CHECK(await(s) == IBV_WC_WR_FLUSH_ERR);
}

// The memory of requests is freed before the flushed completions are polled.
static void dereg_unflushed(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, b.buf, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_sge sge = {(uintptr_t)b.buf, LEN, mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(b.qp, &wr, &bad));
	disconnect(&b, 1);
	CHECK(!ibv_dereg_mr(mr));
	exit(0);
}

// After a reconnection, the pool is posted again before the flushed completions are polled.
static void pool_posted_unflushed(void)
{
	struct side s = b;
	s.qp = make_qp(&s, NULL, IBV_QPT_RC);
	to_init(s.qp);
	post_recv(&b, b.buf, LEN);
	disconnect(&b, 1);
	post_recv(&s, b.buf, LEN);
	to_rtr(s.qp, s.qp);
	to_rts(s.qp);
	exit(0);
}

// The teardown frees the pool of the receives before it destroys the queue pair.
static void unmap_at_teardown(void)
{
	struct side s = b;
	s.buf = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(s.buf != MAP_FAILED);
	CHECK(s.mr = ibv_reg_mr(pd, s.buf, LEN, IBV_ACCESS_LOCAL_WRITE));
	s.qp = make_qp(&s, NULL, IBV_QPT_RC);
	to_init(s.qp);
	post_recv(&s, s.buf, LEN);
	to_rtr(s.qp, s.qp);
	to_rts(s.qp);
	if (!right)
		CHECK(!munmap(s.buf, LEN));
	CHECK(!ibv_destroy_qp(s.qp));
	CHECK(!ibv_dereg_mr(s.mr));
	if (right)
		CHECK(!munmap(s.buf, LEN));
}

// The memory of a receive grows, and moves.
static void unmap_grown(void)
{
	unsigned char *buf = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(buf != MAP_FAILED);
	CHECK(mmap(buf + sysconf(_SC_PAGESIZE), LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct side s = {.cq = b.cq, .mr = mr};
	s.qp = make_qp(&s, NULL, IBV_QPT_RC);
	to_init(s.qp);
	post_recv(&s, buf, LEN);
	to_rtr(s.qp, s.qp);
	if (right)
		CHECK(!ibv_destroy_qp(s.qp));
	if (right)
		CHECK(!ibv_dereg_mr(mr));
	buf = mremap(buf, LEN, 1 << 20, MREMAP_MAYMOVE);
	CHECK(buf != MAP_FAILED);
	if (right) {
		CHECK(!munmap(buf, 1 << 20));
		return;
	}
	CHECK(!ibv_destroy_qp(s.qp));
	exit(0);
}

// Mooncake #3660: the registration outlives the memory.
static void unmap_read_target(void)
{
	unsigned char *buf = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(buf != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	if (!right)
		CHECK(!munmap(buf, LEN));
	struct ibv_send_wr wr = request(IBV_WR_RDMA_READ, IBV_SEND_SIGNALED);
	element = (struct ibv_sge){(uintptr_t)buf, LEN, mr->lkey};
	CHECK(!post(wr));
	CHECK(right == (await(&a) == IBV_WC_SUCCESS));
	if (!right)
		exit(0);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!munmap(buf, LEN));
}

// Mooncake #1567: all notifications use one buffer, which is filled again when the last SEND was posted.
static void staging_reused(void)
{
	for (int i = 0; i < 4; i++)
		post_recv(&b, b.buf + i * LEN, LEN);
	for (int i = 0; i < 4; i++) {
		struct ibv_send_wr wr = request(IBV_WR_SEND, IBV_SEND_SIGNALED);
		if (right)
			element.addr += i * LEN;
		memset((void *)element.addr, i + 1, LEN);
		CHECK(!post(wr));
	}
	for (int i = 0; i < 4; i++) {
		expect(&a);
		expect(&b);
	}
}

// nbs #6222: the session ends, and its buffers are freed. A handler of the session still fills its response, in memory
// that the next session has got.
static void handler_outlives_session(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, a.buf, LEN, 0);
	CHECK(mr);
	unsigned char *response = a.buf;
	if (right)
		memset(response, 1, LEN); // the session waits for its handlers
	CHECK(!ibv_dereg_mr(mr));
	CHECK(mr = ibv_reg_mr(pd, a.buf, LEN, 0)); // the next session
	memset(a.buf, 2, LEN);
	post_recv(&b, b.buf, LEN);
	struct ibv_send_wr wr = request(IBV_WR_SEND, IBV_SEND_SIGNALED);
	element.lkey = mr->lkey;
	CHECK(!post(wr));
	if (!right)
		memset(response, 1, LEN);
	expect(&a);
	expect(&b);
	CHECK(!ibv_dereg_mr(mr));
}

// A trailer is written after the post. Only the third element changes.
static void trailer_filled(void)
{
	struct ibv_sge list[] = {{(uintptr_t)a.buf, 32, a.mr->lkey}, {(uintptr_t)a.buf + LEN, 64, a.mr->lkey},
		{(uintptr_t)a.buf + 2 * LEN, 8, a.mr->lkey}};
	struct ibv_send_wr wr = request(IBV_WR_SEND, IBV_SEND_SIGNALED);
	post_recv(&b, b.buf, LEN);
	wr.sg_list = list;
	wr.num_sge = 3;
	if (right)
		a.buf[2 * LEN] += 1;
	CHECK(!post(wr));
	if (!right)
		a.buf[2 * LEN] += 1;
	expect(&a);
	expect(&b);
}

static void datagram_refilled(void)
{
	static struct ibv_qp *qp;
	static struct ibv_ah *ah;
	if (!qp) {
		qp = datagram_qp();
		ah = datagram_ah();
	}
	CHECK(!post_datagram(qp, ah));
	if (right)
		expect(&a);
	a.buf[0] += 1;
	if (!right)
		expect(&a);
}

// The unsignaled request is refilled after the reply of the peer.
static void reply_as_proof(void)
{
	post_recv(&b, b.buf, LEN);
	post_recv(&a, a.buf + LEN, LEN);
	CHECK(!post(request(IBV_WR_SEND, 0)));
	expect(&b);
	struct ibv_sge sge = {(uintptr_t)b.buf + LEN, 8, b.mr->lkey};
	struct ibv_send_wr reply = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	CHECK(!ibv_post_send(b.qp, &reply, &bad));
	expect(&b);
	expect(&a);
	if (!right)
		a.buf[0] += 1;
	struct ibv_send_wr write = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	element.addr += 2 * LEN;
	CHECK(!post(write));
	expect(&a);
	if (right)
		a.buf[0] += 1;
}

// The result of a FETCH_ADD is taken and reset as soon as it is there.
static void result_reset(void)
{
	volatile uint64_t *result = (void *)a.buf;
	*(uint64_t *)b.buf = 5;
	*result = ~0ull;
	CHECK(!post(request(IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED)));
	while (*result == ~0ull)
		;
	if (right)
		expect(&a);
	*result = ~0ull;
	if (!right)
		expect(&a);
}

// The result of a FETCH_ADD is sent in the same list.
static void atomic_forwarded(void)
{
	struct ibv_send_wr write = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | (right ? IBV_SEND_FENCE : 0));
	write.wr.rdma.remote_addr += LEN;
	struct ibv_send_wr add = request(IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED);
	add.next = &write;
	CHECK(!post(add));
	expect(&a);
	expect(&a);
}

// The stripes of two READs overlap.
static void stripes_overlap(void)
{
	struct ibv_send_wr second = request(IBV_WR_RDMA_READ, IBV_SEND_SIGNALED);
	struct ibv_sge list[] = {{(uintptr_t)a.buf, LEN, a.mr->lkey}, {(uintptr_t)a.buf + LEN - (right ? 0 : 8), LEN, a.mr->lkey}};
	struct ibv_send_wr first = second;
	first.sg_list = &list[0];
	second.sg_list = &list[1];
	first.next = &second;
	CHECK(!post(first));
	expect(&a);
	expect(&a);
}

// TransferBench #239: the queue has a fixed size, for any number of queue pairs.
static void cq_for_one_qp(void)
{
	enum { QPS = 3 };
	struct side s = a;
	CHECK(s.cq = ibv_create_cq(ctx, right ? QPS : QPS - 1, NULL, NULL, 0));
	struct ibv_qp *qps[QPS];
	for (int i = 0; i < QPS; i++) {
		qps[i] = make_qp(&s, NULL, IBV_QPT_RC);
		connect_qp(qps[i], qps[i]);
	}
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED), *bad;
	for (int i = 0; i < QPS; i++)
		CHECK(!ibv_post_send(qps[i], &wr, &bad));
	for (int i = 0; right && i < QPS; i++)
		expect(&s);
	usleep(20000);
	exit(0);
}

// The loop waits for an event, although the poll before the arm has left completions.
static void one_poll_for_two(void)
{
	struct ibv_wc wc[2];
	for (int i = 0; i < 2; i++)
		CHECK(!post(request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED)));
	usleep(20000);
	CHECK(ibv_poll_cq(a.cq, 1, wc) == 1);
	CHECK(!ibv_req_notify_cq(a.cq, 0));
	if (right)
		CHECK(ibv_poll_cq(a.cq, 1, wc) == 1);
	struct pollfd p = {a.channel->fd, POLLIN};
	poll(&p, 1, 2500);
	exit(0);
}

// perftest #137: one poll of a fixed size after each arm. The other completions cause no event.
static void part_polled(void)
{
	struct ibv_wc wc[2];
	for (int i = 0; i < 4; i++)
		CHECK(!post(request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED)));
	usleep(20000);
	CHECK(!ibv_req_notify_cq(a.cq, 0));
	int n = ibv_poll_cq(a.cq, 2, wc), more;
	CHECK(n == 2);
	while (right && (more = ibv_poll_cq(a.cq, 2, wc)))
		n += more;
	struct pollfd p = {a.channel->fd, POLLIN};
	poll(&p, 1, 2500);
	exit(right && n != 4);
}

// The failure of a completion is not looked at, and the loop goes on.
static void failure_ignored(void)
{
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
	wr.wr.rdma.rkey ^= 0x5500;
	CHECK(!post(wr));
	for (int i = 0; i < 20; i++) {
		if (await(&a) != IBV_WC_SUCCESS && right)
			exit(0);
		CHECK(!post(request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED)));
	}
	exit(0);
}

// torchcomms #3345: a server posts its receives when it has set up the session.
static void receives_after_accept(void)
{
	struct side s = b;
	s.qp = make_qp(&s, NULL, IBV_QPT_RC);
	to_init(s.qp);
	if (right)
		post_recv(&s, s.buf, LEN);
	to_rtr(s.qp, s.qp);
	to_rts(s.qp);
	struct ibv_send_wr wr = request(IBV_WR_SEND, IBV_SEND_SIGNALED), *bad;
	CHECK(!ibv_post_send(s.qp, &wr, &bad));
	if (!right) {
		usleep(2000);
		post_recv(&s, s.buf, LEN);
	}
	await(&s);
	exit(0);
}

// Mooncake #1567: RESET removes the receives. They are not posted again after the reconnection.
static void receives_before_reset(void)
{
	struct side s = b;
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	s.qp = make_qp(&s, NULL, IBV_QPT_RC);
	to_init(s.qp);
	post_recv(&s, s.buf, LEN);
	CHECK(!ibv_modify_qp(s.qp, &reset, IBV_QP_STATE));
	to_init(s.qp);
	if (right)
		post_recv(&s, s.buf, LEN);
	to_rtr(s.qp, s.qp);
	to_rts(s.qp);
	struct ibv_send_wr wr = request(IBV_WR_SEND, IBV_SEND_SIGNALED), *bad;
	CHECK(!ibv_post_send(s.qp, &wr, &bad));
	await(&s);
	exit(0);
}

// spdk #3830 and #3859: queue pairs share a completion queue. A failed queue pair is destroyed with its requests. Its
// flushed completions name the freed requests, and the program crashes.
static void flushed_after_destroy(void)
{
	enum { N = 4 };
	struct side s = b;
	s.qp = make_qp(&s, NULL, IBV_QPT_RC);
	to_init(s.qp);
	for (int i = 0; i < N; i++)
		post_recv(&s, s.buf + i * 8, 8);
	disconnect(&s, N);
	CHECK(!ibv_destroy_qp(s.qp));
	struct ibv_wc wc;
	for (int i = 0; i < 10 && !right; i++) {
		if (ibv_poll_cq(s.cq, 1, &wc) == 1)
			_exit(0);
		usleep(2000);
	}
}

static const struct {
	const char *name, *rule;
	void (*run)(void);
} misuses[] = {
	{"send-refilled", "source-changed", send_refilled},
	{"write-refilled", "source-changed", write_refilled},
	{"unsignaled-refilled", "source-changed", unsignaled_refilled},
	{"large-refilled", "source-changed", large_refilled},
	{"read-overwritten", "target-written", read_overwritten},
	{"read-raced", "target-written", read_raced},
	{"atomic-overwritten", "target-written", atomic_overwritten},
	{"receive-cleared", "target-written", receive_cleared},
	{"receives-share", "target-reused", receives_share},
	{"read-forwarded", "source-pending", read_forwarded},
	{"batch-forwarded", "source-pending", batch_forwarded},
	{"dereg-outstanding", "in-flight", dereg_outstanding},
	{"srq-dereg", "in-flight", srq_dereg},
	{"unmap-outstanding", "unmapped", unmap_outstanding},
	{"unmap-used-receive", "unmapped", unmap_used_receive},
	{"unmap-idle-receive", "unmapped", unmap_idle_receive},
	{"remote-key", "key-kind", remote_key},
	{"ended-key", "key-ended", ended_key},
	{"unknown-key", "key-unknown", unknown_key},
	{"other-domain", "key-domain", other_domain},
	{"beyond-region", "key-range", beyond_region},
	{"read-only-target", "key-right", read_only_target},
	{"ended-ah", "use-after-destroy", ended_ah},
	{"small-cq", "cq-too-small", small_cq},
	{"srq-small-cq", "cq-too-small", srq_small_cq},
	{"unsignaled-only", "unsignaled-only", unsignaled_only},
	{"armed-late", "arm-without-poll", armed_late},
	{"polled-after-destroy", "destroy-undrained", polled_after_destroy},
	{"posts-in-err", "posts-in-err", posts_in_err},
	{"left-in-sqe", "left-in-sqe", left_in_sqe},
	{"no-receive", "no-receive", no_receive},
	{"staging-reused", "source-changed", staging_reused},
	{"trailer-filled", "source-changed", trailer_filled},
	{"datagram-refilled", "source-changed", datagram_refilled},
	{"reply-as-proof", "source-after-reply", reply_as_proof},
	{"result-reset", "target-written", result_reset},
	{"echo-posted-early", "source-reused", echo_posted_early},
	{"read-into-source", "source-reused", read_into_source},
	{"stripes-overlap", "target-reused", stripes_overlap},
	{"pool-posted-unflushed", "target-unflushed", pool_posted_unflushed},
	{"atomic-forwarded", "source-pending", atomic_forwarded},
	{"dereg-evicted", "in-flight", dereg_evicted},
	{"dereg-read-target", "in-flight", dereg_read_target},
	{"dereg-last-unsignaled", "in-flight-unsignaled", dereg_last_unsignaled},
	{"dereg-unflushed", "in-flight-unflushed", dereg_unflushed},
	{"unmap-at-teardown", "unmapped", unmap_at_teardown},
	{"unmap-read-target", "unmapped", unmap_read_target},
	{"window-key", "key-kind", window_key},
	{"ended-remote-key", "key-kind", ended_remote_key},
	{"template-key", "key-ended", template_key},
	{"other-context", "key-domain", other_context},
	{"receive-beyond-region", "key-range", receive_beyond_region},
	{"read-only-receive", "key-right", read_only_receive},
	{"receive-remote-key", "key-kind", receive_remote_key},
	{"receive-other-domain", "key-domain", receive_other_domain},
	{"unmap-grown", "unmapped", unmap_grown},
	{"early-ah", "ah-in-flight", early_ah},
	{"cq-for-one-qp", "cq-too-small", cq_for_one_qp},
	{"one-poll-for-two", "arm-without-poll", one_poll_for_two},
	{"part-polled", "arm-without-poll", part_polled},
	{"failure-ignored", "posts-in-err", failure_ignored},
	{"receives-after-accept", "no-receive", receives_after_accept},
	{"receives-before-reset", "no-receive", receives_before_reset},
	{"flushed-after-destroy", "destroy-undrained", flushed_after_destroy},
	{"handler-outlives-session", "source-changed", handler_outlives_session},
};

int main(int argc, char **argv)
{
	enum { N = sizeof misuses / sizeof misuses[0] };
	int i = 0;
	if (argc != 3) {
		for (; i < N; i++)
			printf("%s %s\n", misuses[i].name, misuses[i].rule);
		return 0;
	}
	right = !strcmp(argv[2], "right");
	ctx = open_device();
	CHECK(pd = ibv_alloc_pd(ctx));
	open_side(&a, 4 * DEPTH);
	open_side(&b, 4 * DEPTH);
	connect_sides();
	while (i < N && strcmp(argv[1], misuses[i].name))
		i++;
	CHECK(i < N);
	for (int round = 0; round < ROUNDS; round++)
		misuses[i].run();
	return 0;
}
