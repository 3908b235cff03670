// scale -d DEVICE -g GID_INDEX [-c CONTEXTS] [-q QPS] [-s rts|err|post] -n N
//
// Opens contexts and creates queue pairs in them. The queue pairs are connected in pairs and stay idle: in RTS, in ERR (-s err),
// or in ERR while the program posts receives to them in rotation (-s post). Then the program times other operations in the
// first context: N messages of 64 bytes of each kind, and up to 500 creations and destructions of a queue pair and of a region.
// It prints a line "NAME mean=US typical=US p99=US" for each, then "ready", and waits for the end of its standard input.
#include "loop.h"
#include <poll.h>
#include <sys/resource.h>

static double *times;
static long n;

static void to_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	if ((errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE)))
		die("ibv_modify_qp to ERR");
}

static void print(const char *name)
{
	printf("%s ", name);
	print_times(times, n);
}

static void time_objects(struct context *c, void *buf)
{
	struct ibv_qp *peer = create(c, 4), **qps = calloc(n, sizeof *qps);
	struct ibv_mr **mrs = calloc(n, sizeof *mrs);

	if (!qps || !mrs)
		die("calloc");
#define EACH(name, what) \
	for (long i = 0; i < n; i++) { \
		double begin = now_us(); \
		what; \
		times[i] = now_us() - begin; \
	} \
	print(name);
	EACH("create", qps[i] = create(c, 4))
	EACH("connect", connect_qp(qps[i], peer))
	EACH("destroy", ibv_destroy_qp(qps[i]))
	EACH("register", mrs[i] = reg(c, buf, 4096))
	EACH("deregister", ibv_dereg_mr(mrs[i]))
	ibv_destroy_qp(peer);
	free(qps);
	free(mrs);
}

static void time_messages(struct context *c, char *buf)
{
	struct ibv_qp *from = create(c, 4), *to = create(c, 4);
	struct ibv_mr *mr = reg(c, buf, 4096);
	struct ibv_sge sge = {(uintptr_t)buf, 64, mr->lkey}, in = {(uintptr_t)buf + 2048, 64, mr->lkey};
	struct ibv_recv_wr recv = {.sg_list = &in, .num_sge = 1}, *bad_recv;
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = (uintptr_t)buf + 1024, .rkey = mr->rkey}}, *bad_send;

	connect_qp(from, to);
	connect_qp(to, from);
	for (int send = 0; send < 2; send++) {
		wr.opcode = send ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
		for (long i = 0; i < n; i++) {
			if (send && (errno = ibv_post_recv(to, &recv, &bad_recv)))
				die("ibv_post_recv");
			double begin = now_us();

			if ((errno = ibv_post_send(from, &wr, &bad_send)))
				die("ibv_post_send");
			await(c->cq);
			if (send)
				await(c->cq);
			times[i] = now_us() - begin;
		}
		print(send ? "send" : "write");
	}
	ibv_destroy_qp(from);
	ibv_destroy_qp(to);
	ibv_dereg_mr(mr);
}

// ended reports whether standard input is at its end.
static int ended(int timeout)
{
	struct pollfd in = {.fd = 0, .events = POLLIN};
	char c;

	return poll(&in, 1, timeout) == 1 && read(0, &c, 1) <= 0;
}

int main(int argc, char **argv)
{
	const char *device = "", *state = "rts";
	long contexts = 1, count = 0, o;
	struct rlimit limit;

	while ((o = getopt(argc, argv, "d:g:c:q:s:n:")) != -1)
		switch (o) {
		case 'd': device = optarg; break;
		case 'g': gid_index = number(optarg, 0); break;
		case 'c': contexts = number(optarg, 1); break;
		case 'q': count = number(optarg, 0); break;
		case 's': state = optarg; break;
		case 'n': n = number(optarg, 1); break;
		default: return 2;
		}
	if (n < 1)
		fail("how many messages: -n N");
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	struct context *c = calloc(contexts, sizeof *c);
	struct ibv_qp **qps = calloc(count + 1, sizeof *qps);
	char *buf = map(4096, MAP_PRIVATE);
	double began = now_us();

	times = calloc(n + 1, sizeof *times);
	if (!c || !qps || !times)
		die("calloc");
	struct ibv_device *dev = find_device(device);

	for (long i = 0; i < contexts; i++)
		open_context(&c[i], dev, 16);
	for (long i = 0; i < count; i++)
		qps[i] = create(&c[i / 2 % contexts], 4);
	for (long i = 0; i < count; i++)
		connect_qp(qps[i], qps[(i ^ 1) < count ? i ^ 1 : i]);
	for (long i = 0; i < count && strcmp(state, "rts"); i++)
		to_error(qps[i]);
	double took = now_us() - began;

	long messages = n;

	n = n < 500 ? n : 500;
	time_objects(&c[0], buf);
	n = messages;
	time_messages(&c[0], buf);
	printf("ready contexts=%ld qps=%ld after %.0f ms\n", contexts, count, took / 1e3);
	fflush(stdout);
	if (strcmp(state, "post")) {
		while (!ended(-1))
			;
		return 0;
	}
	for (long i = 0; i % 256 || !ended(0); i++) {
		struct ibv_recv_wr recv = {.wr_id = i}, *bad;
		struct ibv_wc wc[16];

		ibv_post_recv(qps[i % count], &recv, &bad);
		ibv_poll_cq(c[i % count / 2 % contexts].cq, 16, wc);
	}
	return 0;
}
