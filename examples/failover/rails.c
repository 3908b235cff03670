/*
 * Two rails, and a port event of one of them. The context from which the event was read identifies the device, and
 * element.port_num the port; only both together identify a rail. With BUG the handler uses the port number alone, as if both
 * rails were ports of one device, and takes down the working rail. The sender moves failed messages to the other rail. The
 * receiver drops duplicates.
 *
 *	rails recv PORT COUNT DEVICE DEVICE
 *	rails send PORT COUNT DEVICE DEVICE
 */
#include "common.h"

enum { RAILS = 2, WINDOW = 16, SIZE = 1024, MAX = 100000 };

static char memory[RAILS][DEPTH][SIZE];
static struct rail rail[RAILS];
static int down[RAILS];
static unsigned char arrived[MAX];
static uint32_t again[RAILS * WINDOW], agains; /* messages to send again */

static void open_rails(char **devices, int tcp, int receives)
{
	struct peer to;

	for (int i = 0; i < RAILS; i++) {
		struct rail *r = &rail[i];

		if (rail_open(r, devices[i], memory[i], sizeof memory[i]) || !(r->qp = create_qp(r, IBV_QPT_RC)))
			die(devices[i]);
		for (uint64_t j = 0; receives && j < DEPTH; j++)
			if (post_recv(r, r->qp, memory[i][j], SIZE, j))
				die("post_recv");
		if (meet(tcp, r, r->qp, 0, &to, usual))
			die("meet");
	}
}

static int close_rails(void)
{
	return rail_close(&rail[0]) + rail_close(&rail[1]);
}

static int receiver(const char *port, uint32_t count, char **devices)
{
	int tcp = accept(tcp_listen(port), NULL, NULL);
	uint32_t got = 0, on[RAILS] = {0}, twice = 0;
	struct ibv_wc wc;

	open_rails(devices, tcp, 1);
	for (;;) {
		int idle = 1, ended = readable(tcp); /* all messages arrive before the sender closes the connection */

		for (int i = 0; i < RAILS; i++)
			while (ibv_poll_cq(rail[i].cq, 1, &wc) > 0 && wc.status == IBV_WC_SUCCESS) {
				uint32_t seq;

				memcpy(&seq, memory[i][wc.wr_id], sizeof seq);
				post_recv(&rail[i], rail[i].qp, memory[i][wc.wr_id], SIZE, wc.wr_id);
				if (seq >= count)
					quit("message %u of %u", seq, count);
				if (arrived[seq]++)
					twice++;
				else
					got++, on[i]++;
				idle = 0;
			}
		if (idle && ended)
			break;
		if (idle)
			rest();
	}
	say("received %u of %u, %u and %u by the rails, %u dropped as doubles", got, count, on[0], on[1], twice);
	return close_rails() || got != count;
}

/* take_down moves the queue pair of a rail to the error state, which flushes its outstanding work requests. */
static void take_down(int i)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};

	if (down[i])
		return;
	down[i] = 1;
	say("rail %d (%s) is taken down", i, rail[i].name);
	if (ibv_modify_qp(rail[i].qp, &a, IBV_QP_STATE))
		die("modify_qp");
	if (down[0] && down[1])
		quit("no rail is left, %u messages wait", agains + (uint32_t)(rail[0].outstanding + rail[1].outstanding));
}

static void handle_events(int i)
{
	enum ibv_event_type type;
	int port;

	while (next_event(rail[i].ctx, &type, &port)) {
		say("%s: %s of port %d", rail[i].name, ibv_event_type_str(type), port);
		if (type == IBV_EVENT_PORT_ERR)
			take_down(BUG ? port - 1 : i);
	}
}

static int sender(const char *port, uint32_t count, char **devices)
{
	int tcp = tcp_connect(port), next_rail = 0;
	uint32_t next = 0, done = 0, moved = 0, slots[RAILS] = {0};
	struct ibv_wc wc;

	open_rails(devices, tcp, 0);
	say("connected");
	while (done < count) {
		int i = next_rail++ % RAILS, idle = 1;
		struct rail *r = &rail[i];

		handle_events(i);
		while (!down[i] && r->outstanding < WINDOW && (agains || next < count)) {
			uint32_t seq = agains ? again[--agains] : next++;
			char *at = memory[i][slots[i]++ % WINDOW];

			memcpy(at, &seq, sizeof seq);
			if (post_send(r, r->qp, at, SIZE, seq)) {
				again[agains++] = seq;
				take_down(i);
			}
			idle = 0;
		}
		while (ibv_poll_cq(r->cq, 1, &wc) > 0) {
			r->outstanding--;
			idle = 0;
			if (wc.status == IBV_WC_SUCCESS) {
				done++;
				continue;
			}
			again[agains++] = (uint32_t)wc.wr_id;
			moved++;
			if (wc.status != IBV_WC_WR_FLUSH_ERR) {
				handle_events(i);
				take_down(i); /* the event may be missing */
			}
		}
		if (idle && i)
			rest();
	}
	say("sent %u, %u moved to the other rail", done, moved);
	return close_rails();
}

int main(int argc, char **argv)
{
	if (argc != 6 || atoi(argv[3]) > MAX)
		quit("usage: rails recv|send PORT COUNT DEVICE DEVICE");
	return (argv[1][0] == 'r' ? receiver : sender)(argv[2], (uint32_t)atoi(argv[3]), argv + 4);
}
