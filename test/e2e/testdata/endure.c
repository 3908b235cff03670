// A program that survives resets and unplugs of its device, and checks its behaviour: every accepted work request
// completes exactly once, the last event is the fatal one, and a zombie can only be destroyed.
//
//	endure QPS poll|wait|idle
//
// The program keeps its queue pairs busy, and polls for completions or sleeps until they arrive. In mode idle it only
// has a receive outstanding in each queue pair, and sleeps until its device is removed. It prints "up" when a session
// starts to work, and "ended" with figures on SIGTERM.
#include "verbs.h"
#include <signal.h>
#include <stdbool.h>

enum { DEPTH = 8, SIZE = 256, MAX_QPS = 1000, ZOMBIES = 2, WARM = 50 };

// The number of a work request consists of its slot in the queue and the use count of the slot.
struct place {
	uint32_t use;
	enum { FREE, POSTED, TAKEN } state; // POSTED: the device may not have seen the request
};

struct session {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp[MAX_QPS];
	struct place send[MAX_QPS][DEPTH], recv[MAX_QPS][2 * DEPTH];
	long completions;
	bool flushed;
};

static int qps;
static bool waits, idles;
static char data[2 * MAX_QPS][SIZE];
static long sessions, completions, flushes;
static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

// gone reports whether an error of any call means that the device has been removed.
static bool gone(const char *call)
{
	if (errno == EIO || errno == ENODEV || errno == ENOENT || errno == ENXIO || errno == EINTR)
		return true;
	fprintf(stderr, "endure: %s: %s\n", call, strerror(errno));
	exit(1);
}

#define TRY(what)                          \
	do {                               \
		errno = 0;                 \
		if (!(what)) {             \
			gone(#what);       \
			return false;      \
		}                          \
	} while (0)

// MODIFY is for calls that return the error.
#define MODIFY(what)                       \
	do {                               \
		if ((errno = (what))) {    \
			gone(#what);       \
			return false;      \
		}                          \
	} while (0)

// DONE checks a call that returns the error, and repeats it if a signal interrupts it.
#define DONE(want, what)                                 \
	do {                                             \
		while ((errno = (what)) == EINTR)        \
			;                                \
		CHECK(errno == (want));                  \
	} while (0)

static struct place *place_of(struct session *s, uint64_t id)
{
	unsigned q = id >> 16 & 0xffff, n = id >> 1 & 0x7f;
	return id & 1 ? &s->recv[q][n] : &s->send[q][n];
}

static uint64_t take(struct session *s, int q, int n, int is_recv)
{
	uint64_t id = (uint64_t)q << 16 | n << 1 | is_recv;
	struct place *p = place_of(s, id);
	CHECK(p->state == FREE);
	p->state = POSTED;
	return (uint64_t)++p->use << 32 | id;
}

// post_recv posts the receive of a slot. A failure means that the device has been removed.
static void post_recv(struct session *s, int q, int n)
{
	struct ibv_sge sge = {(uintptr_t)data[q], SIZE, s->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = take(s, q, n, 1), .sg_list = &sge, .num_sge = 1}, *bad;
	if ((errno = ibv_post_recv(s->qp[q], &wr, &bad)))
		gone("ibv_post_recv");
}

// post_sends fills the send queue.
static bool post_sends(struct session *s, int q)
{
	struct ibv_sge sge = {(uintptr_t)data[MAX_QPS + q], SIZE, s->mr->lkey};
	for (int n = 0; n < DEPTH; n++) {
		if (s->send[q][n].state != FREE)
			continue;
		struct ibv_send_wr wr = {.wr_id = take(s, q, n, 0), .sg_list = &sge, .num_sge = 1,
			.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
		MODIFY(ibv_post_send(s->qp[q], &wr, &bad));
		// A response of the device shows that it has seen all earlier posts.
		s->send[q][n].state = TAKEN;
	}
	return true;
}

static void taken(struct session *s)
{
	for (int q = 0; q < qps; q++)
		for (int n = 0; n < 2 * DEPTH; n++)
			if (s->recv[q][n].state == POSTED)
				s->recv[q][n].state = TAKEN;
}

// poll_all takes the completions. It returns false if some of them were flushed.
static bool poll_all(struct session *s)
{
	struct ibv_wc wc[32];
	int got;
	while ((got = ibv_poll_cq(s->cq, 32, wc)) > 0)
		for (int i = 0; i < got; i++) {
			struct place *p = place_of(s, wc[i].wr_id);
			if (p->state == FREE || p->use != wc[i].wr_id >> 32) {
				fprintf(stderr, "endure: work request %#lx completed twice\n", (unsigned long)wc[i].wr_id);
				exit(1);
			}
			p->state = FREE;
			s->completions++;
			completions++;
			if (wc[i].status == IBV_WC_WR_FLUSH_ERR) {
				flushes++;
				s->flushed = true;
			} else if (wc[i].status != IBV_WC_SUCCESS) {
				fprintf(stderr, "endure: work request %#lx failed: %s\n", (unsigned long)wc[i].wr_id, ibv_wc_status_str(wc[i].status));
				exit(1);
			} else if (wc[i].wr_id & 1 && !s->flushed) {
				post_recv(s, wc[i].wr_id >> 16 & 0xffff, wc[i].wr_id >> 1 & 0x7f);
			}
		}
	CHECK(got == 0);
	return !s->flushed;
}

static bool connect_to(struct session *s, struct ibv_qp *qp, struct ibv_qp *to)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	MODIFY(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qp_num, .min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}}};
	TRY(ibv_query_gid(s->ctx, 1, 1, &a.ah_attr.grh.dgid) == 0);
	MODIFY(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	// Four seconds, so that a slow machine does not cause a failure.
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7};
	MODIFY(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
	return true;
}

static bool begin(struct session *s)
{
	struct ibv_device **list;
	TRY(list = ibv_get_device_list(NULL));
	errno = ENODEV;
	if (list[0])
		s->ctx = ibv_open_device(list[0]);
	int err = errno;
	ibv_free_device_list(list);
	errno = err;
	if (!s->ctx)
		return !gone("ibv_open_device");
	TRY(s->pd = ibv_alloc_pd(s->ctx));
	TRY(s->mr = ibv_reg_mr(s->pd, data, sizeof(data), IBV_ACCESS_LOCAL_WRITE));
	TRY(s->channel = ibv_create_comp_channel(s->ctx));
	TRY(s->cq = ibv_create_cq(s->ctx, qps * 4 * DEPTH, NULL, s->channel, 0));
	struct ibv_qp_init_attr init = {.send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = 2 * DEPTH, .max_send_sge = 1, .max_recv_sge = 1}};
	for (int q = 0; q < qps; q++)
		TRY(s->qp[q] = ibv_create_qp(s->pd, &init));
	for (int q = 0; q < qps; q++) {
		if (!connect_to(s, s->qp[q], s->qp[(q ^ 1) < qps ? q ^ 1 : q]))
			return false;
		for (int n = 0; n < (idles ? 1 : 2 * DEPTH); n++)
			post_recv(s, q, n);
	}
	return true;
}

// work keeps all queue pairs busy, until the device is removed or the program must exit.
static bool work(struct session *s)
{
	for (int q = 0; q < qps; q++)
		if (!post_sends(s, q))
			return false;
	taken(s);
	if (waits) {
		struct ibv_cq *cq;
		void *context;
		MODIFY(ibv_req_notify_cq(s->cq, 0));
		long before = s->completions;
		if (!poll_all(s))
			return false;
		if (s->completions == before) {
			errno = 0; // the end of a channel does not change it
			if (ibv_get_cq_event(s->channel, &cq, &context))
				return errno == 0 ? false : !gone("ibv_get_cq_event");
			ibv_ack_cq_events(cq, 1);
		}
	}
	return poll_all(s);
}

// idle sleeps until an event. It returns false for the fatal one.
static bool idle(struct session *s)
{
	struct ibv_async_event event;
	errno = 0;
	if (ibv_get_async_event(s->ctx, &event))
		return errno == EINTR;
	ibv_ack_async_event(&event);
	return event.event_type != IBV_EVENT_DEVICE_FATAL;
}

static void up(void)
{
	puts("up");
	fflush(stdout);
}

// outstanding returns the number of accepted work requests without a completion.
static int outstanding(struct session *s)
{
	int sum = 0;
	poll_all(s);
	for (int q = 0; q < qps; q++)
		for (int n = 0; n < 2 * DEPTH; n++)
			sum += (s->recv[q][n].state == TAKEN) + (n < DEPTH && s->send[q][n].state == TAKEN);
	return sum;
}

// fatal takes the events of a removed device.
static void fatal(struct session *s)
{
	struct ibv_async_event event;
	enum ibv_event_type last = IBV_EVENT_COMM_EST;
	do {
		errno = 0;
		while (!ibv_get_async_event(s->ctx, &event)) {
			last = event.event_type;
			ibv_ack_async_event(&event);
		}
	} while (errno == EINTR);
	CHECK(last == IBV_EVENT_DEVICE_FATAL);
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	DONE(EIO, ibv_alloc_pd(s->ctx) ? 0 : errno);
	DONE(EIO, ibv_modify_qp(s->qp[0], &a, IBV_QP_STATE));
}

static void end(struct session *s)
{
	for (int q = 0; q < qps; q++)
		if (s->qp[q])
			DONE(0, ibv_destroy_qp(s->qp[q]));
	if (s->mr)
		DONE(0, ibv_dereg_mr(s->mr));
	if (s->cq)
		DONE(0, ibv_destroy_cq(s->cq));
	if (s->channel)
		DONE(0, ibv_destroy_comp_channel(s->channel));
	if (s->pd)
		DONE(0, ibv_dealloc_pd(s->pd));
	if (s->ctx)
		DONE(0, ibv_close_device(s->ctx) ? errno : 0);
	free(s);
}

// drain ends a session while the device is present: all outstanding requests are flushed. It returns false if the
// device has been removed since.
static bool drain(struct session *s)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	for (int q = 0; q < qps; q++) {
		int err;
		while ((err = ibv_modify_qp(s->qp[q], &a, IBV_QP_STATE)) == EINTR)
			;
		MODIFY(err);
	}
	taken(s);
	return true;
}

int main(int argc, char **argv)
{
	CHECK(argc == 3 && (qps = atoi(argv[1])) >= 1 && qps <= MAX_QPS);
	waits = !strcmp(argv[2], "wait");
	idles = !strcmp(argv[2], "idle");
	struct sigaction sa = {.sa_handler = on_signal}; // this interrupts sleeping calls
	CHECK(!sigaction(SIGTERM, &sa, NULL));
	struct session *zombies[ZOMBIES] = {0};
	while (!stop) {
		struct session *s = calloc(1, sizeof(*s));
		CHECK(s);
		if (!begin(s)) {
			end(s);
			usleep(200);
			continue;
		}
		sessions++;
		if (idles) {
			up();
			taken(s); // the device is reset afterwards
			while (!stop && idle(s))
				;
		}
		for (bool warm = false; !stop && !idles && work(s);)
			if (!warm && s->completions >= WARM) {
				warm = true;
				up();
			}
		if (!stop || !drain(s)) {
			fatal(s);
			CHECK(outstanding(s) == 0);
			// Zombies stay for a while next to later sessions.
			struct session **z = &zombies[rand() % ZOMBIES];
			if (*z)
				end(*z);
			*z = s;
			continue;
		}
		while (outstanding(s) > 0)
			;
		end(s);
	}
	for (int i = 0; i < ZOMBIES; i++)
		if (zombies[i])
			end(zombies[i]);
	printf("ended %ld %ld %ld\n", sessions, completions, flushes);
	return 0;
}
