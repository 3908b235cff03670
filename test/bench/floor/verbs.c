// verbs -d DEVICE -g GID_INDEX -s SIZE -n N [-i] -p PORT [HOST]
//
// A ping-pong of SENDs between two polling processes, with inline data (-i) or without. perftest supports inline data only for
// devices of known vendors. Without HOST the program is the server. The client prints half a round trip.
#include "floor.h"
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <sys/socket.h>

struct end {
	uint32_t qpn;
	union ibv_gid gid;
};

static struct ibv_context *open_device(const char *name)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);

	for (int i = 0; list && i < n; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name)) {
			struct ibv_context *c = ibv_open_device(list[i]);

			if (!c)
				die("ibv_open_device");
			return c;
		}
	fail("no such device");
	return NULL;
}

static int rendezvous(int port, const char *host)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_ANY)};
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	if (fd < 0)
		die("socket");
	if (host) {
		if (inet_pton(AF_INET, host, &at.sin_addr) != 1)
			fail("HOST: want an IPv4 address");
		if (connect(fd, (void *)&at, sizeof at))
			die("connect");
		return fd;
	}
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(fd, (void *)&at, sizeof at) || listen(fd, 1) || (fd = accept(fd, NULL, NULL)) < 0)
		die("listen");
	return fd;
}

static void exchange(int fd, const void *mine, void *its, size_t size)
{
	if (write(fd, mine, size) != (ssize_t)size)
		die("write");
	if (recv(fd, its, size, MSG_WAITALL) != (ssize_t)size)
		fail("the peer ended");
}

static void connect_qp(struct ibv_qp *qp, const struct end *peer, int gid_index)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer->qpn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .sgid_index = gid_index, .hop_limit = 64}}};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};

	if ((errno = ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)))
		die("ibv_modify_qp to INIT");
	if ((errno = ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)))
		die("ibv_modify_qp to RTR");
	if ((errno = ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)))
		die("ibv_modify_qp to RTS");
}

static void await(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	if (n < 0)
		fail("ibv_poll_cq failed");
	if (wc.status != IBV_WC_SUCCESS)
		fail(ibv_wc_status_str(wc.status));
}

int main(int argc, char **argv)
{
	const char *device = "", *host;
	long size = 64, n = 1000, port = 0, gid_index = 0;
	int inlined = 0, o;

	while ((o = getopt(argc, argv, "d:g:s:n:ip:")) != -1)
		switch (o) {
		case 'd': device = optarg; break;
		case 'g': gid_index = number(optarg, 0); break;
		case 's': size = number(optarg, 1); break;
		case 'n': n = number(optarg, 1); break;
		case 'i': inlined = 1; break;
		case 'p': port = number(optarg, 1); break;
		default: return 2;
		}
	host = argv[optind];
	char *buf = map(2 * size, MAP_PRIVATE);
	double *t = calloc(n, sizeof *t);
	struct ibv_context *context = open_device(device);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, buf, 2 * size, IBV_ACCESS_LOCAL_WRITE) : NULL;
	struct ibv_cq *scq = ibv_create_cq(context, 16, NULL, NULL, 0), *rcq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = {.send_cq = scq, .recv_cq = rcq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1,
			.max_inline_data = inlined ? size : 0}};
	struct ibv_qp *qp = pd && scq && rcq ? ibv_create_qp(pd, &attr) : NULL;
	struct end mine = {0}, its;

	if (!t || !mr || !qp)
		die("create PD, MR, CQ or QP");
	if (ibv_query_gid(context, 1, gid_index, &mine.gid))
		die("ibv_query_gid");
	mine.qpn = qp->qp_num;
	int fd = rendezvous(port, host);
	exchange(fd, &mine, &its, sizeof its);
	connect_qp(qp, &its, gid_index);

	struct ibv_sge out = {(uintptr_t)buf, size, mr->lkey}, in = {(uintptr_t)buf + size, size, mr->lkey};
	struct ibv_recv_wr recv = {.sg_list = &in, .num_sge = 1}, *bad_recv;
	struct ibv_send_wr send = {.sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | (inlined ? IBV_SEND_INLINE : 0)}, *bad_send;

	if ((errno = ibv_post_recv(qp, &recv, &bad_recv)))
		die("ibv_post_recv");
	char ready = 0, go;
	exchange(fd, &ready, &go, 1);
	for (long i = 0; i < n; i++) {
		double begin = now_us();

		if (!host) {
			await(rcq);
			if ((errno = ibv_post_recv(qp, &recv, &bad_recv)))
				die("ibv_post_recv");
		}
		if ((errno = ibv_post_send(qp, &send, &bad_send)))
			die("ibv_post_send");
		if (host) {
			await(rcq);
			if ((errno = ibv_post_recv(qp, &recv, &bad_recv)))
				die("ibv_post_recv");
		}
		await(scq);
		t[i] = (now_us() - begin) / 2;
	}
	exchange(fd, &ready, &go, 1);
	if (host)
		print_times(t, n);
	return 0;
}
