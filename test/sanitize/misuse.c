// Programs with one misuse of verbs each, and without it.
//
//	misuse NAME wrong|right
//
// The table at the end names the rule of the sanitizer (docs/sanitizer.md) that reports each misuse. Without arguments,
// the program prints the table. The exit code is 0 for both forms.
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
