/*
 * Common functions of the failover examples: a device with one queue pair, the exchange of its address over TCP, and posting.
 * Each program is built twice, with and without -DBUG; README.md describes the programs.
 */
#ifndef COMMON_H
#define COMMON_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef BUG
#define BUG 0
#endif

#define unused __attribute__((unused))

/* say prints a line. */
static unused __attribute__((format(printf, 1, 2))) void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

/* quit prints a line and ends the program with exit code 1. */
#define quit(...) (say(__VA_ARGS__), exit(1))

/* die is quit with the text of errno. */
#define die(what) quit("%s: %s", what, strerror(errno))

static unused long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000L + t.tv_nsec / 1000000;
}

/* ---- TCP, over which the two ends exchange their queue pairs ---- */

static unused struct sockaddr_in tcp_address(const char *host, const char *port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};

	inet_pton(AF_INET, host, &a.sin_addr);
	return a;
}

static unused int tcp_listen(const char *port)
{
	struct sockaddr_in a = tcp_address("127.0.0.1", port);
	int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 8))
		die("listen");
	return fd;
}

static unused int tcp_connect(const char *port)
{
	struct sockaddr_in a = tcp_address("127.0.0.1", port);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a))
		die("connect");
	return fd;
}

/* tcp_put and tcp_get return 0, or -1 if the other end has closed. */
static unused int tcp_put(int fd, const void *data, size_t size)
{
	for (size_t at = 0; at < size;) {
		ssize_t n = send(fd, (const char *)data + at, size - at, MSG_NOSIGNAL);
		if (n <= 0)
			return -1;
		at += (size_t)n;
	}
	return 0;
}

static unused int tcp_get(int fd, void *data, size_t size)
{
	for (size_t at = 0; at < size;) {
		ssize_t n = recv(fd, (char *)data + at, size - at, 0);
		if (n <= 0)
			return -1;
		at += (size_t)n;
	}
	return 0;
}

static unused int readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) > 0;
}

/* ---- A device ---- */

enum { DEPTH = 64, GID_INDEX = 1 /* of the first IPv4 address */ };

struct rail {
	const char *name;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	int outstanding; /* sends that have not completed */
};

/* peer describes one end to the other. */
struct peer {
	uint32_t qpn, psn, rkey, next; /* next: the first message that has not arrived at this end */
	uint64_t addr;
	union ibv_gid gid;
};

static unused struct ibv_context *open_device(const char *name)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *ctx = NULL;

	for (int i = 0; i < n; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			ctx = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	if (ctx)
		fcntl(ctx->async_fd, F_SETFL, fcntl(ctx->async_fd, F_GETFL) | O_NONBLOCK);
	return ctx;
}

/* next_event takes an asynchronous event without waiting. It returns 0 if there is none. */
static unused int next_event(struct ibv_context *ctx, enum ibv_event_type *type, int *port)
{
	struct ibv_async_event e;

	if (!readable(ctx->async_fd) || ibv_get_async_event(ctx, &e))
		return 0;
	*type = e.event_type;
	*port = e.element.port_num;
	ibv_ack_async_event(&e);
	return 1;
}

/* rail_open opens a device, and registers memory. It returns -1 if the device is missing, or if a call fails. */
static unused int rail_open(struct rail *r, const char *name, void *memory, size_t size)
{
	memset(r, 0, sizeof *r);
	r->name = name;
	if (!(r->ctx = open_device(name)) || !(r->pd = ibv_alloc_pd(r->ctx)) ||
	    !(r->cq = ibv_create_cq(r->ctx, 4 * DEPTH, NULL, NULL, 0)) ||
	    !(r->mr = ibv_reg_mr(r->pd, memory, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)))
		return -1;
	return 0;
}

static unused struct ibv_qp *create_qp(struct rail *r, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {.send_cq = r->cq, .recv_cq = r->cq, .srq = r->srq, .qp_type = type,
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
	struct ibv_qp *qp = ibv_create_qp(r->pd, &init);

	if (qp && ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) {
		ibv_destroy_qp(qp);
		return NULL;
	}
	return qp;
}

/* retries holds the timeout and the retry counts of a reliable connection. */
struct retries {
	uint8_t timeout; /* 4.096 us * 2^timeout until a retransmission */
	uint8_t count;   /* retransmissions without progress */
	uint8_t rnr;     /* retries after RNR NAKs; 7: no limit */
};

static const unused struct retries usual = {.timeout = 12, .count = 3, .rnr = 7};

static unused int connect_qp(struct ibv_qp *qp, const struct peer *to, uint32_t psn, struct retries t)
{
	int rc = qp->qp_type == IBV_QPT_RC;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qpn, .rq_psn = to->psn,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = to->gid, .sgid_index = GID_INDEX, .hop_limit = 8}}};

	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)))
		return -1;
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = t.timeout, .retry_cnt = t.count,
		.rnr_retry = t.rnr};
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)) ? -1 : 0;
}

static unused struct peer describe(struct rail *r, struct ibv_qp *qp)
{
	struct peer p = {.qpn = qp->qp_num, .psn = qp->qp_num & 0xffffff, .rkey = r->mr->rkey, .addr = (uintptr_t)r->mr->addr};

	ibv_query_gid(r->ctx, 1, GID_INDEX, &p.gid);
	return p;
}

/* meet exchanges the descriptions of the queue pairs over TCP, and connects them. It returns -1 after a failure. */
static unused int meet(int tcp, struct rail *r, struct ibv_qp *qp, uint32_t next, struct peer *to, struct retries t)
{
	struct peer mine = describe(r, qp);
	char ready;

	mine.next = next;
	if (tcp_put(tcp, &mine, sizeof mine) || tcp_get(tcp, to, sizeof *to) || connect_qp(qp, to, mine.psn, t))
		return -1;
	/* Wait until the other end can receive. */
	return tcp_put(tcp, "", 1) || tcp_get(tcp, &ready, 1) ? -1 : 0;
}

/* rail_close destroys the existing objects of a device in the required order. It returns the number of failed calls. */
static unused int rail_close(struct rail *r)
{
	int left = 0;

	left += r->qp && ibv_destroy_qp(r->qp);
	left += r->srq && ibv_destroy_srq(r->srq);
	left += r->mr && ibv_dereg_mr(r->mr);
	left += r->cq && ibv_destroy_cq(r->cq);
	left += r->pd && ibv_dealloc_pd(r->pd);
	left += r->ctx && ibv_close_device(r->ctx);
	memset(r, 0, sizeof *r);
	return left;
}

static unused int post_recv(struct rail *r, struct ibv_qp *qp, void *at, uint32_t size, uint64_t id)
{
	struct ibv_sge sge = {(uintptr_t)at, size, r->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = size ? 1 : 0}, *bad;

	return r->srq ? ibv_post_srq_recv(r->srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
}

static unused int post_send(struct rail *r, struct ibv_qp *qp, void *at, uint32_t size, uint64_t id)
{
	struct ibv_sge sge = {(uintptr_t)at, size, r->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED}, *bad;
	int e = ibv_post_send(qp, &wr, &bad);

	r->outstanding += !e;
	return e;
}

/* rest sleeps briefly after an empty poll. */
static unused void rest(void) { usleep(200); }

#endif
