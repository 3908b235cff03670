/*
 * A port that is down for longer than the retries last. A failed queue pair stays in the error state after the port has
 * returned. The sender therefore creates a new queue pair, and asks the receiver for the next message. Each message then
 * arrives exactly once, even if an acknowledgement was lost. With BUG the sender waits for the port, and continues to use the
 * failed queue pair.
 *
 *	portflap recv DEVICE PORT COUNT
 *	portflap send DEVICE PORT COUNT
 */
#include "common.h"

enum { WINDOW = 16, SIZE = 1024 };

static char memory[DEPTH][SIZE];

static void fill(struct rail *r)
{
	for (uint64_t i = 0; i < DEPTH; i++)
		if (post_recv(r, r->qp, memory[i], SIZE, i))
			die("post_recv");
}

static int receiver(const char *device, const char *port, uint32_t count)
{
	int listening = tcp_listen(port), tcp = accept(listening, NULL, NULL);
	uint32_t next = 0, twice = 0;
	struct rail r;
	struct peer to;

	if (rail_open(&r, device, memory, sizeof memory))
		die(device);
	for (;;) {
		struct ibv_wc wc[16];
		int n = ibv_poll_cq(r.cq, 16, wc);

		for (int i = 0; i < n; i++) {
			uint32_t seq;

			if (wc[i].status != IBV_WC_SUCCESS)
				continue; /* flushed; the sender will connect again */
			memcpy(&seq, memory[wc[i].wr_id], sizeof seq);
			if (seq == next)
				next++;
			else if (seq < next)
				twice++;
			else
				quit("message %u is missing", next);
			post_recv(&r, r.qp, memory[wc[i].wr_id], SIZE, wc[i].wr_id);
		}
		if (n > 0)
			continue;
		if (!readable(tcp)) {
			rest();
			continue;
		}
		/* The sender asks for a new queue pair, or has ended. */
		char wants;
		if (tcp_get(tcp, &wants, 1))
			break;
		if (r.qp)
			ibv_destroy_qp(r.qp);
		if (!(r.qp = create_qp(&r, IBV_QPT_RC)))
			die("create_qp");
		fill(&r);
		if (meet(tcp, &r, r.qp, next, &to, usual))
			die("meet");
	}
	say("received %u of %u, %u twice", next, count, twice);
	return rail_close(&r) || next != count || twice;
}

/* join connects a new queue pair. It returns the number of the next message that the receiver expects. */
static uint32_t join(int tcp, struct rail *r)
{
	struct peer to;

	if (tcp_put(tcp, "", 1) || !(r->qp = create_qp(r, IBV_QPT_RC)) || meet(tcp, r, r->qp, 0, &to, usual))
		die("connect");
	return to.next;
}

/*
 * reap polls completions, and sets done to the first message that has not completed. It returns the first error, or success.
 */
static enum ibv_wc_status reap(struct rail *r, uint32_t *done)
{
	struct ibv_wc wc[WINDOW];
	enum ibv_wc_status bad = IBV_WC_SUCCESS;
	int n = ibv_poll_cq(r->cq, WINDOW, wc);

	for (int i = 0; i < n; i++) {
		r->outstanding--;
		if (wc[i].status == IBV_WC_SUCCESS)
			*done = (uint32_t)wc[i].wr_id + 1;
		else if (bad == IBV_WC_SUCCESS)
			bad = wc[i].status;
	}
	if (n == 0)
		rest();
	return bad;
}

static void await_port(struct rail *r)
{
	enum ibv_event_type type;
	struct ibv_port_attr attr;
	int port;

	/* The event may be lost, or may precede the first query. The state of the port decides. */
	for (;;) {
		while (next_event(r->ctx, &type, &port))
			say("%s: %s", r->name, ibv_event_type_str(type));
		if (!ibv_query_port(r->ctx, 1, &attr) && attr.state == IBV_PORT_ACTIVE)
			return;
		rest();
	}
}

static int sender(const char *device, const char *port, uint32_t count)
{
	int tcp = tcp_connect(port);
	uint32_t posted, done = 0;
	struct rail r;

	if (rail_open(&r, device, memory, sizeof memory))
		die(device);
	posted = join(tcp, &r);
	say("connected");
	while (done < count) {
		while (posted < count && r.outstanding < WINDOW) {
			memcpy(memory[posted % WINDOW], &posted, sizeof posted);
			if (post_send(&r, r.qp, memory[posted % WINDOW], SIZE, posted))
				break;
			posted++;
		}
		enum ibv_wc_status bad = reap(&r, &done);
		if (bad == IBV_WC_SUCCESS)
			continue;
		say("message %u: %s", done, ibv_wc_status_str(bad));
		while (r.outstanding > 0) /* every send completes */
			reap(&r, &done);
		await_port(&r);
		say("the port is active");
#if BUG
		static int tries;
		if (++tries == 20)
			quit("gave up: message %u has failed %d times since the port is back", done, tries - 1);
		posted = done;
#else
		ibv_destroy_qp(r.qp);
		done = posted = join(tcp, &r);
		say("reconnected, message %u is next", done);
#endif
	}
	say("sent %u", done);
	return rail_close(&r);
}

int main(int argc, char **argv)
{
	if (argc != 5)
		quit("usage: portflap recv|send DEVICE PORT COUNT");
	return (argv[1][0] == 'r' ? receiver : sender)(argv[2], argv[3], (uint32_t)atoi(argv[4]));
}
