/*
 * A long and lossy path, and a receiver that posts late. The timeout must exceed the round trip time, the retries must suffice
 * for several losses in sequence, and the RNR retries for a receiver without a posted receive. With BUG=1 the timeout and the
 * retries suit a short cable. With BUG=2 there are no RNR retries.
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
static const struct retries retries = {.timeout = 15 /* 134 ms */, .count = 7, .rnr = 7 /* no limit */};
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
	/* Stay until the sender has received its last acknowledgement. */
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
