// mix -d DEVICE -g GID_INDEX [-q QPS] [-s SEED] N
//
// Sends N WRITEs of four sizes, at most 16 at a time. Most messages are small, and most bytes are in large messages. With -s the
// order is random, and each message uses a random one of QPS queue pairs. Otherwise the messages are sent in the order of their
// sizes. The messages are the same in both cases. Prints the mean time of a message.
#include "loop.h"

enum { depth = 16, largest = 1 << 20, max_qps = 1000 };

// Of 100 messages, 60 have 64 bytes, 30 have 4 KB, 9 have 64 KB, and one has 1 MB.
static const struct {
	int share;
	uint32_t size;
} sizes[] = {{60, 64}, {30, 4096}, {9, 65536}, {1, largest}};

static uint64_t state;

static uint64_t next(void) // splitmix64
{
	uint64_t z = state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

int main(int argc, char **argv)
{
	static struct ibv_qp *qps[max_qps];
	const char *device = "";
	long count = 1, total = 0;
	struct context c;
	int o;

	while ((o = getopt(argc, argv, "d:g:q:s:")) != -1)
		switch (o) {
		case 'd': device = optarg; break;
		case 'g': gid_index = number(optarg, 0); break;
		case 'q': count = number(optarg, 1); break;
		case 's': state = number(optarg, 1); break;
		default: return 2;
		}
	if (optind + 1 != argc || count > max_qps)
		fail("usage: mix -d DEVICE -g GID_INDEX [-q QPS, up to 1000] [-s SEED] N");
	long n = number(argv[optind], 100) / 100 * 100;
	uint32_t *list = calloc(n, sizeof *list);

	if (!list)
		die("calloc");
	for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++)
		for (long i = 0; i < n / 100 * sizes[s].share; i++)
			list[total++] = sizes[s].size;
	if (state)
		for (long i = n - 1; i > 0; i--) {
			long k = next() % (i + 1);
			uint32_t size = list[i];

			list[i] = list[k];
			list[k] = size;
		}
	open_context(&c, find_device(device), 2 * depth);
	char *buf = map(2 * largest, MAP_PRIVATE);
	struct ibv_mr *mr = reg(&c, buf, 2 * largest);

	for (long i = 0; i < count; i++) {
		struct ibv_qp *peer = create(&c, depth);

		qps[i] = create(&c, depth);
		connect_qp(qps[i], peer);
		connect_qp(peer, qps[i]);
	}
	double began = now_us();

	for (long i = 0; i < n + depth; i++) {
		if (i >= depth)
			await(c.cq);
		if (i >= n)
			continue;
		struct ibv_sge sge = {(uintptr_t)buf, list[i], mr->lkey};
		struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {.remote_addr = (uintptr_t)buf + largest, .rkey = mr->rkey}};

		if ((errno = ibv_post_send(qps[state ? next() % count : 0], &wr, &bad)))
			die("ibv_post_send");
	}
	print_mean(now_us() - began, n);
	return 0;
}
