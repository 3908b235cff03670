// Programs with one mistake each, and without it.
//
//	weak MISTAKE wrong|right
//
// The output is "ok", or "wrong: " and what the mistake has led to.
#include "verbs.h"
#include <poll.h>

enum { LEN = 64, ROUNDS = 16, REQUESTED = 5 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static int right;

// side is one end of a connection, with its own queue and memory.
struct side {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char buf[LEN];
};

static struct side a, b, c, d; // a and b are connected, and so are c and d

static void fail(const char *what)
{
	printf("wrong: %s\n", what);
	exit(0);
}

static void open_side(struct side *s, unsigned max_send_wr)
{
	s->channel = ibv_create_comp_channel(ctx);
	CHECK(s->channel);
	s->cq = ibv_create_cq(ctx, 64, NULL, s->channel, 0);
	CHECK(s->cq);
	struct ibv_qp_init_attr init = {.send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = max_send_wr, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
	s->qp = ibv_create_qp(pd, &init);
	CHECK(s->qp);
	s->mr = ibv_reg_mr(pd, s->buf, sizeof s->buf, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(s->mr);
}

static void open_pair(struct side *x, struct side *y, unsigned max_send_wr)
{
	open_side(x, max_send_wr);
	open_side(y, max_send_wr);
	to_init(x->qp);
	to_init(y->qp);
	to_rtr(x->qp, y->qp);
	to_rtr(y->qp, x->qp);
	to_rts(x->qp);
	to_rts(y->qp);
}

static void close_side(struct side *s)
{
	CHECK(!ibv_destroy_qp(s->qp));
	CHECK(!ibv_dereg_mr(s->mr));
	CHECK(!ibv_destroy_cq(s->cq));
	CHECK(!ibv_destroy_comp_channel(s->channel));
}

// post_at posts a request for len bytes at an offset of both buffers.
static int post_at(struct side *from, struct side *to, enum ibv_wr_opcode op, unsigned flags, unsigned at, unsigned len)
{
	struct ibv_sge sge = {(uintptr_t)from->buf + at, len, from->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = flags,
		.wr.rdma = {(uintptr_t)to->buf + at, to->mr->rkey}}, *bad;
	return ibv_post_send(from->qp, &wr, &bad);
}

static int post(struct side *from, struct side *to, enum ibv_wr_opcode op, unsigned flags)
{
	return post_at(from, to, op, flags, 0, LEN);
}

static void post_recv(struct side *s)
{
	struct ibv_sge sge = {(uintptr_t)s->buf, LEN, s->mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(s->qp, &wr, &bad));
}

// await_completion polls until there is a completion, at most for a number of polls, or without a limit if most is 0.
static struct ibv_wc await_completion(struct side *s, int most)
{
	struct ibv_wc wc;
	for (int i = 0; !most || i < most; i++) {
		int n = ibv_poll_cq(s->cq, 1, &wc);
		CHECK(n >= 0);
		if (n == 1)
			return wc;
	}
	fail("no completion");
	abort();
}

// announce sends an empty message to the peer, and waits until both ends have its completion.
static void announce(void)
{
	struct ibv_recv_wr wr = {0}, *bad;
	CHECK(!ibv_post_recv(b.qp, &wr, &bad));
	CHECK(!post_at(&a, &b, IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 0));
	CHECK(await_completion(&b, 0).status == IBV_WC_SUCCESS);
	CHECK(await_completion(&a, 0).status == IBV_WC_SUCCESS);
}

static void expect_bytes(struct side *s, int value, const char *what)
{
	for (int i = 0; i < LEN; i++)
		if (s->buf[i] != value)
			fail(what);
}

// source: refills the buffer of a SEND before the completion.
static void source(int round)
{
	post_recv(&b);
	memset(a.buf, round + 1, LEN);
	CHECK(!post(&a, &b, IBV_WR_SEND, IBV_SEND_SIGNALED));
	if (right)
		CHECK(await_completion(&a, 0).status == IBV_WC_SUCCESS);
	memset(a.buf, 0xee, LEN);
	if (!right)
		CHECK(await_completion(&a, 0).status == IBV_WC_SUCCESS);
	CHECK(await_completion(&b, 0).status == IBV_WC_SUCCESS);
	expect_bytes(&b, round + 1, "the message has changed");
}

// polls: gives up after a fixed number of polls.
static void polls(int round)
{
	CHECK(!post(&a, &b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED));
	CHECK(await_completion(&a, right ? 0 : 200).status == IBV_WC_SUCCESS);
}

// length: uses the length of a completion before it has looked at the status.
static void length(int round)
{
	if (round)
		return;
	post_recv(&a);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	CHECK(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
	struct ibv_wc wc = await_completion(&a, 0);
	if (right && wc.status != IBV_WC_SUCCESS)
		return;
	if (wc.byte_len > LEN)
		fail("a message longer than the buffer");
}

// opcode: finds the queue of a failed request by the opcode of the completion (tensorpipe #416, libfabric #7365).
static void opcode(int round)
{
	if (round)
		return;
	struct ibv_sge sge = {(uintptr_t)a.buf, LEN, a.mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = IBV_WC_RECV, .sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(a.qp, &wr, &bad));
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	CHECK(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
	CHECK(!post(&a, &b, IBV_WR_SEND, IBV_SEND_SIGNALED));
	int sends = 0;
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = await_completion(&a, 0);
		sends += (right ? wc.wr_id : wc.opcode) == IBV_WC_SEND;
	}
	if (sends != 1)
		fail("a completion of another queue");
}

// fence: changes memory by a WRITE behind a READ of it, without a fence (ucx #7215).
static void fence(int round)
{
	struct ibv_sge sge = {(uintptr_t)a.buf, 8, a.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {(uintptr_t)b.buf, b.mr->rkey}}, *bad;
	b.buf[0] = round + 1;
	a.buf[8] = 0xee;
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	sge.addr += 8;
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.send_flags |= right ? IBV_SEND_FENCE : 0;
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	CHECK(await_completion(&a, 0).status == IBV_WC_SUCCESS);
	CHECK(await_completion(&a, 0).status == IBV_WC_SUCCESS);
	if (a.buf[0] != round + 1)
		fail("the READ has returned the data of the WRITE");
}

// order: treats a message on one queue pair as proof of a WRITE on another (mpich #7697).
static void order(int round)
{
	post_recv(&b);
	memset(c.buf, round + 1, LEN);
	CHECK(!post(&c, &d, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED));
	if (right)
		CHECK(await_completion(&c, 0).status == IBV_WC_SUCCESS);
	CHECK(!post(&a, &b, IBV_WR_SEND, IBV_SEND_SIGNALED));
	CHECK(await_completion(&b, 0).status == IBV_WC_SUCCESS);
	expect_bytes(&d, round + 1, "the message has overtaken the data");
	if (!right)
		CHECK(await_completion(&c, 0).status == IBV_WC_SUCCESS);
	CHECK(await_completion(&a, 0).status == IBV_WC_SUCCESS);
}

// written: treats the completion of a WRITE as proof that the peer sees the data.
static void written(int round)
{
	memset(a.buf, round + 1, LEN);
	CHECK(!post(&a, &b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED));
	CHECK(await_completion(&a, 0).status == IBV_WC_SUCCESS);
	if (right)
		announce();
	expect_bytes(&b, round + 1, "the data are not there");
}

// flag: waits for the data of a second WRITE as proof of the first one.
static void flag(int round)
{
	memset(a.buf, round + 1, LEN);
	for (int i = 0; i < 2; i++)
		CHECK(!post_at(&a, &b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, i * LEN / 2, LEN / 2));
	if (right)
		announce();
	while (*(volatile unsigned char *)&b.buf[LEN - 1] != round + 1)
		;
	expect_bytes(&b, round + 1, "the flag has overtaken the data");
	for (int i = 0; i < 2; i++)
		CHECK(await_completion(&a, 0).status == IBV_WC_SUCCESS);
}

// relaxed: does the same in a region with relaxed ordering.
static void relaxed(int round)
{
	if (!round) {
		CHECK(!ibv_dereg_mr(b.mr));
		b.mr = ibv_reg_mr(pd, b.buf, sizeof b.buf,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING);
		CHECK(b.mr);
	}
	flag(round);
}

// arm: arms an empty queue, and waits for an event without another poll.
static void arm(int round)
{
	CHECK(!post(&a, &b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED));
	struct ibv_wc wc;
	while (!ibv_poll_cq(a.cq, 1, &wc)) {
		CHECK(!ibv_req_notify_cq(a.cq, 0));
		if (right && ibv_poll_cq(a.cq, 1, &wc))
			break;
		struct pollfd p = {a.channel->fd, POLLIN};
		if (poll(&p, 1, 2000) != 1)
			fail("no event");
		struct ibv_cq *which;
		void *context;
		CHECK(!ibv_get_cq_event(a.channel, &which, &context));
		ibv_ack_cq_events(which, 1);
	}
	CHECK(wc.status == IBV_WC_SUCCESS);
}

// capacity: posts more requests than the capacity that it has requested.
static void capacity(int round)
{
	for (int i = 0; i < REQUESTED + !right; i++)
		if (post(&a, &b, IBV_WR_RDMA_WRITE, i >= REQUESTED - 1 ? IBV_SEND_SIGNALED : 0))
			fail("a request was refused");
	for (int i = 0; i < 1 + !right; i++)
		CHECK(await_completion(&a, 0).status == IBV_WC_SUCCESS);
}

// keys: names its own memory by the remote key.
static void keys(int round)
{
	if (!right)
		a.mr->lkey = a.mr->rkey;
	CHECK(!post(&a, &b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED));
	if (await_completion(&a, 0).status != IBV_WC_SUCCESS)
		fail("a request has failed");
}

// torchcomms #2469: the program finds the connection of a completion by the number of the queue pair. It has one queue
// pair on each of two devices.
static void numbers(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && list[1]);
	struct connection {
		struct ibv_context *ctx;
		struct ibv_pd *pd;
		struct ibv_cq *cq;
		struct ibv_qp *qp;
		struct connection *next; // with the same key
		int completions;
	} two[2], *table[256] = {0};
	for (int i = 0; i < 2; i++) {
		struct connection *x = &two[i];
		*x = (struct connection){.ctx = ibv_open_device(list[i])};
		CHECK(x->ctx && (x->pd = ibv_alloc_pd(x->ctx)) && (x->cq = ibv_create_cq(x->ctx, 4, NULL, NULL, 0)));
		CHECK(x->qp = create_qp(x->pd, x->cq, NULL));
		connect_qp(x->qp, x->qp);
		x->next = table[x->qp->qp_num & 255];
		table[x->qp->qp_num & 255] = x;
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
		CHECK(!ibv_post_send(two[i].qp, &wr, &bad));
		struct ibv_wc wc;
		while (!ibv_poll_cq(two[i].cq, 1, &wc))
			;
		struct connection *x = table[wc.qp_num & 255];
		while (x && (x->qp->qp_num != wc.qp_num || (right && x->ctx != two[i].ctx)))
			x = x->next;
		CHECK(x);
		x->completions++;
	}
	if (two[0].completions != 1 || two[1].completions != 1)
		fail("a connection has the completion of the other device");
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(two[i].qp) && !ibv_destroy_cq(two[i].cq) && !ibv_dealloc_pd(two[i].pd) &&
			!ibv_close_device(two[i].ctx));
	ibv_free_device_list(list);
}

static const struct {
	const char *name;
	void (*run)(int round);
} mistakes[] = {{"source", source}, {"polls", polls}, {"length", length}, {"opcode", opcode}, {"fence", fence},
	{"order", order}, {"arm", arm}, {"capacity", capacity}, {"keys", keys}, {"written", written}, {"flag", flag}, {"relaxed", relaxed}};

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	right = !strcmp(argv[2], "right");
	if (!strcmp(argv[1], "numbers")) { // without other queue pairs
		numbers();
		puts("ok");
		return 0;
	}
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	open_pair(&a, &b, REQUESTED);
	open_pair(&c, &d, REQUESTED);
	int known = 0;
	for (unsigned i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++)
		if (!strcmp(argv[1], mistakes[i].name)) {
			known = 1;
			for (int round = 0; round < ROUNDS; round++)
				mistakes[i].run(round);
		}
	CHECK(known);
	close_side(&a);
	close_side(&b);
	close_side(&c);
	close_side(&d);
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(ctx));
	printf("ok\n");
	return 0;
}
