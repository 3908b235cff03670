/*
 * A target whose device is removed while it serves, and returns. The event DEVICE_FATAL or a failed call reports the removal.
 * The target then polls the outstanding completions, destroys all objects of the device, waits for the device, and continues.
 * It does not wait for receives of the shared receive queue, because they are not flushed. With BUG it destroys only the queue
 * pair, and uses the other objects of the removed device for the next connection.
 *
 *	target serve DEVICE PORT
 *	target ask DEVICE PORT COUNT
 */
#include "common.h"

enum { SLOTS = 32, WINDOW = 8, SIZE = 256, MAX = 10000, TIMEOUT_MS = 10000, DRAIN_MS = 1000 };

static char memory[SLOTS][SIZE];

/* ---- The target ---- */

static uint32_t served;

/* prepare waits until the device exists, opens it, and posts the receives. */
static void prepare(struct rail *r, const char *device)
{
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = SLOTS, .max_sge = 1}};

	for (long limit = now_ms() + TIMEOUT_MS; now_ms() < limit; usleep(5000)) {
		int bad = rail_open(r, device, memory, sizeof memory) || !(r->srq = ibv_create_srq(r->pd, &attr));

		for (uint64_t i = 0; !bad && i < SLOTS; i++)
			bad = post_recv(r, NULL, memory[i], SIZE, i);
		if (!bad)
			return;
		rail_close(r); /* the device may have been removed again */
	}
	quit("%s does not come", device);
}

/* gone reads the asynchronous events, and reports whether DEVICE_FATAL was one of them. */
static int gone(struct rail *r)
{
	enum ibv_event_type type;
	int port, fatal = 0;

	while (next_event(r->ctx, &type, &port)) {
		say("%s: %s", r->name, ibv_event_type_str(type));
		fatal |= type == IBV_EVENT_DEVICE_FATAL;
	}
	return fatal;
}

/* step handles one completion. A request is answered from its own slot, which receives again once the answer has been sent. */
static int step(struct rail *r)
{
	struct ibv_wc wc;

	if (ibv_poll_cq(r->cq, 1, &wc) < 1)
		return 0;
	if (wc.opcode != IBV_WC_RECV || wc.status != IBV_WC_SUCCESS)
		r->outstanding -= r->outstanding > 0;
	if (wc.status != IBV_WC_SUCCESS)
		return -1;
	if (wc.opcode != IBV_WC_RECV)
		return post_recv(r, NULL, memory[wc.wr_id], SIZE, wc.wr_id) ? -1 : 1;
	if (++served % 400 == 0)
		say("served %u", served);
	return post_send(r, r->qp, memory[wc.wr_id], SIZE, wc.wr_id) ? -1 : 1;
}

/* drain polls the completions of a removed device. It gives up after DRAIN_MS, because some devices do not flush. */
static void drain(struct rail *r)
{
	struct ibv_wc wc;

	for (long limit = now_ms() + DRAIN_MS; r->outstanding > 0 && now_ms() < limit;)
		if (ibv_poll_cq(r->cq, 1, &wc) < 1)
			rest();
		else if (wc.opcode != IBV_WC_RECV || wc.status != IBV_WC_SUCCESS)
			r->outstanding--; /* receives of the SRQ are not flushed */
}

/*
 * serve serves one connection. It returns 1 if the client is done, 0 if the connection has ended, -1 if the device was removed,
 * and -2 if the queue pair cannot be created for another reason.
 */
static int serve(struct rail *r, int tcp)
{
	struct peer to;
	char end;

	if (!(r->qp = create_qp(r, IBV_QPT_RC))) {
		int e = errno;

		if (gone(r) || (!BUG && e == EIO)) /* a removed device returns EIO; the event may follow later */
			return -1;
		say("create_qp: %s", strerror(e));
		return -2;
	}
	if (meet(tcp, r, r->qp, 0, &to, usual))
		return gone(r) ? -1 : 0;
	for (;;) {
		if (gone(r))
			return -1;
		int did = step(r);
		if (readable(tcp))
			return tcp_get(tcp, &end, 1) == 0;
		if (did < 1)
			rest();
	}
}

static int target(const char *device, const char *port)
{
	int listening = tcp_listen(port);
	struct rail r;

	prepare(&r, device);
	for (;;) {
		int device_gone, tcp, how = -1;

		while (!(device_gone = gone(&r)) && !readable(listening))
			rest();
		if (!device_gone) {
			tcp = accept(listening, NULL, NULL);
			how = serve(&r, tcp);
			close(tcp);
		}
		if (how == -2)
			quit("gave up, served %u", served);
		if (how == 1)
			break;
		drain(&r);
		if (r.qp)
			ibv_destroy_qp(r.qp);
		r.qp = NULL;
		if (how == 0 || BUG)
			continue;
		int left = rail_close(&r);
		say("everything is destroyed, %d left", left);
		if (left)
			return 1;
		prepare(&r, device);
		say("%s is there again", device);
	}
	say("served all, %u", served);
	return rail_close(&r);
}

/* ---- The client ---- */

static unsigned char answered[MAX];

/* ask sends the unanswered requests on one connection. It returns the total number of answers. */
static uint32_t ask(struct rail *r, int tcp, uint32_t count, uint32_t have)
{
	uint32_t asked = 0, waiting = 0, slot = 0;
	struct peer to;
	struct ibv_wc wc;
	char dummy;

	if (!(r->qp = create_qp(r, IBV_QPT_RC)))
		die("create_qp");
	for (uint64_t i = 0; i < WINDOW; i++)
		if (post_recv(r, r->qp, memory[i], SIZE, i))
			die("post_recv");
	if (meet(tcp, r, r->qp, 0, &to, usual))
		return have;
	while (have < count) {
		for (; asked < count && waiting < WINDOW; asked++) {
			if (answered[asked])
				continue;
			char *at = memory[WINDOW + slot++ % (2 * WINDOW)];
			memcpy(at, &asked, sizeof asked);
			if (post_send(r, r->qp, at, SIZE, 0))
				return have;
			waiting++;
		}
		int n = ibv_poll_cq(r->cq, 1, &wc);
		if (n < 1) {
			if (readable(tcp) && recv(tcp, &dummy, 1, MSG_PEEK) < 1)
				return have;
			rest();
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS)
			return have;
		if (wc.opcode == IBV_WC_RECV) {
			uint32_t seq;

			memcpy(&seq, memory[wc.wr_id], sizeof seq);
			if (seq >= count || answered[seq]++)
				quit("answer %u is not wanted", seq);
			have++;
			waiting--;
			if (post_recv(r, r->qp, memory[wc.wr_id], SIZE, wc.wr_id))
				return have;
		}
	}
	return have;
}

static int client(const char *device, const char *port, uint32_t count)
{
	uint32_t have = 0, connections = 0;
	struct rail r;

	if (rail_open(&r, device, memory, sizeof memory))
		die(device);
	for (long limit = now_ms() + TIMEOUT_MS; have < count && now_ms() < limit; connections++) {
		int tcp = tcp_connect(port);
		struct ibv_wc wc;

		have = ask(&r, tcp, count, have);
		if (have == count)
			tcp_put(tcp, "", 1);
		close(tcp);
		ibv_destroy_qp(r.qp);
		r.qp = NULL;
		while (ibv_poll_cq(r.cq, 1, &wc) > 0) /* completions of this connection */
			;
	}
	say("%u of %u answered, by %u connections", have, count, connections);
	return rail_close(&r) || have != count;
}

int main(int argc, char **argv)
{
	if (argc == 4 && argv[1][0] == 's')
		return target(argv[2], argv[3]);
	if (argc == 5 && argv[1][0] == 'a' && atoi(argv[4]) <= MAX)
		return client(argv[2], argv[3], (uint32_t)atoi(argv[4]));
	quit("usage: target serve DEVICE PORT | target ask DEVICE PORT COUNT");
}
