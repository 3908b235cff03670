/*
 * A long and lossy way, and a receiver that is late. The times that a reliable connection allows for have to fit: the timeout must
 * be longer than the way there and back, the retries must last for losses in a row, and a receiver that has no receive posted
 * must be waited for. With BUG=1 timeout and retries are those of a short cable, with BUG=2 a receiver must always be ready.
 *
 *	lossy recv DEVICE PORT MESSAGES
 *	lossy send DEVICE PORT MESSAGES
 */
#include "common.h"

enum { WINDOW = 8, SIZE = 32 * 1024, LATE_MS = 100 };

#if BUG == 1
static const struct retries retries = {.timeout = 8 /* 1 ms */, .count = 1, .rnr = 7};
#elif BUG == 2
static const struct retries retries = {.timeout = 15, .count = 7, .rnr = 0};
#else
static const struct retries retries = {.timeout = 15 /* 134 ms */, .count = 7, .rnr = 7 /* for ever */};
#endif

static char memory[WINDOW][SIZE];

static int receiver(struct rail *r, int tcp, uint32_t count)
{
	uint32_t got = 0, posted = 0;
	struct ibv_wc wc;

	usleep(LATE_MS * 1000);
	while (got < count) {
		for (; posted < count && posted - got < WINDOW; posted++)
			if (post_recv(r, r->qp, memory[posted % WINDOW], SIZE, posted))
				die("post_recv");
		if (ibv_poll_cq(r->cq, 1, &wc) < 1) {
			if (readable(tcp))
				quit("the sender has ended after %u of %u", got, count);
			rest();
			continue;
		}
		uint32_t seq;
		memcpy(&seq, memory[wc.wr_id % WINDOW], sizeof seq);
		if (wc.status != IBV_WC_SUCCESS || seq != got)
			quit("message %u: %s, it is %u", got, ibv_wc_status_str(wc.status), seq);
		got++;
	}
	say("received %u", got);
	/* Not gone before the sender has its last acknowledge. */
	char end;
	return tcp_get(tcp, &end, 1) == 0;
}

static int sender(struct rail *r, uint32_t count)
{
	uint32_t done = 0, posted = 0;
	long began = now_ms();
	struct ibv_wc wc;

	while (done < count) {
		for (; posted < count && posted - done < WINDOW; posted++) {
			memcpy(memory[posted % WINDOW], &posted, sizeof posted);
			if (post_send(r, r->qp, memory[posted % WINDOW], SIZE, posted))
				die("post_send");
		}
		if (ibv_poll_cq(r->cq, 1, &wc) < 1) {
			rest();
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS)
			quit("message %u of %u: %s", done, count, ibv_wc_status_str(wc.status));
		done++;
	}
	long took = now_ms() - began;
	say("throughput %.1f Mbit/s", 8e-3 * SIZE * done / (double)(took ? took : 1));
	return 0;
}

int main(int argc, char **argv)
{
	struct rail r;
	struct peer to;

	if (argc != 5)
		quit("usage: lossy recv|send DEVICE PORT MESSAGES");
	int receives = argv[1][0] == 'r';
	int tcp = receives ? accept(tcp_listen(argv[3]), NULL, NULL) : tcp_connect(argv[3]);
	if (rail_open(&r, argv[2], memory, sizeof memory) || !(r.qp = create_qp(&r, IBV_QPT_RC)) ||
	    meet(tcp, &r, r.qp, 0, &to, retries))
		die("connect");
	int bad = receives ? receiver(&r, tcp, (uint32_t)atoi(argv[4])) : sender(&r, (uint32_t)atoi(argv[4]));
	return rail_close(&r) || bad;
}
