// Event files: all ways to wait for them, several queues on one file, children, and the counts at destruction.
#include "verbs.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>

enum { CQS = 5 };
static struct ibv_comp_channel *channel;
static struct ibv_cq *cqs[CQS];
static struct ibv_qp *from[CQS], *to[CQS];
static struct ibv_mr *mr;
static char buf[64];

// complete completes a request in an armed queue.
static void complete(int i)
{
	CHECK(!ibv_req_notify_cq(cqs[i], 0));
	struct ibv_sge sge = {(uintptr_t)buf, 8, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)buf + 32;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(!ibv_post_send(from[i], &wr, &bad));
}

static void drain(int i)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(cqs[i], 1, &wc)))
		;
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
}

// expect takes one event of queue i from the channel.
static void expect(int i)
{
	struct ibv_cq *cq;
	void *context;
	CHECK(!ibv_get_cq_event(channel, &cq, &context));
	CHECK(cq == cqs[i] && context == &cqs[i]);
	ibv_ack_cq_events(cq, 1);
	drain(i);
}

static void nothing(int fd)
{
	struct pollfd p = {fd, POLLIN};
	CHECK(poll(&p, 1, 0) == 0);
}

static void ways_to_wait(void)
{
	int fd = channel->fd;
	struct pollfd p = {fd, POLLIN};
	fd_set set;
	FD_ZERO(&set);
	FD_SET(fd, &set);
	struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
	int ep = epoll_create1(0);
	CHECK(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));

	complete(0);
	expect(0); // a blocking read
	nothing(fd);

	complete(1);
	CHECK(poll(&p, 1, 10000) == 1 && p.revents == POLLIN);
	expect(1);
	complete(2);
	CHECK(select(fd + 1, &set, NULL, NULL, NULL) == 1 && FD_ISSET(fd, &set));
	expect(2);
	complete(3);
	CHECK(epoll_wait(ep, &e, 1, 10000) == 1 && e.events == EPOLLIN);
	expect(3);
	close(ep);

	int flags = fcntl(fd, F_GETFL);
	CHECK(!fcntl(fd, F_SETFL, flags | O_NONBLOCK));
	struct ibv_cq *cq;
	void *context;
	CHECK(ibv_get_cq_event(channel, &cq, &context) && errno == EAGAIN);
	complete(4);
	CHECK(poll(&p, 1, 10000) == 1);
	expect(4);
	CHECK(!fcntl(fd, F_SETFL, flags));
}

// Several queues raise events on one channel: one event each, in the order of their completions.
static void several(void)
{
	for (int i = 0; i < CQS; i++) {
		complete(i);
		drain(i);
		struct pollfd p = {channel->fd, POLLIN};
		CHECK(poll(&p, 1, 10000) == 1);
	}
	for (int i = 0; i < CQS; i++) {
		struct ibv_cq *cq;
		void *context;
		CHECK(!ibv_get_cq_event(channel, &cq, &context));
		CHECK(cq == cqs[i]);
		ibv_ack_cq_events(cq, 1);
	}
	nothing(channel->fd);
}

// A child shares the channel. The first reader gets the event.
static void children(void)
{
	complete(0);
	struct pollfd p = {channel->fd, POLLIN};
	CHECK(poll(&p, 1, 10000) == 1);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		uint64_t record;
		_exit(read(channel->fd, &record, 8) == 8 ? 0 : 1);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	nothing(channel->fd);
	drain(0);
	ibv_ack_cq_events(cqs[0], 1); // the child has read the event, and the count is that of read events
}

// asynchronous tests the events of the last receive of a shared queue and of a limit. Destruction waits for the
// acknowledgement of read events only.
static void asynchronous(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 10, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	CHECK(srq);
	for (int read = 0; read < 2; read++) {
		struct ibv_qp *a = create_qp(pd, cqs[0], NULL), *b = create_qp(pd, cqs[0], srq);
		connect_qp(a, b);
		connect_qp(b, a);
		for (int i = 0; i < 2; i++) {
			struct ibv_sge sge = {(uintptr_t)buf, 8, mr->lkey};
			struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
			CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
		}
		struct ibv_srq_attr limit = {.srq_limit = 2};
		CHECK(!ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
		CHECK(transfer(a, IBV_WR_SEND, buf, 8, mr->lkey, NULL, 0) == IBV_WC_SUCCESS);
		struct pollfd p = {ctx->async_fd, POLLIN};
		CHECK(poll(&p, 1, 10000) == 1);
		if (read) {
			struct ibv_async_event e;
			CHECK(!ibv_get_async_event(ctx, &e));
			CHECK(e.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && e.element.srq == srq);
			ibv_ack_async_event(&e);
			nothing(ctx->async_fd);
		}
		CHECK(!ibv_destroy_qp(a));
		CHECK(!ibv_destroy_qp(b));
		if (!read) { // destruction of the queue removes the unread event
			CHECK(!ibv_destroy_srq(srq));
			nothing(ctx->async_fd);
			CHECK(srq = ibv_create_srq(pd, &init));
		}
	}
	CHECK(!ibv_destroy_srq(srq));
}

int main(void)
{
	alarm(60); // limit for calls that block forever
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	CHECK(mr = ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	CHECK(channel = ibv_create_comp_channel(ctx));
	for (int i = 0; i < CQS; i++) {
		CHECK(cqs[i] = ibv_create_cq(ctx, 10, &cqs[i], channel, 0));
		from[i] = create_qp(pd, cqs[i], NULL);
		to[i] = create_qp(pd, cqs[i], NULL);
		connect_qp(from[i], to[i]);
		connect_qp(to[i], from[i]);
	}
	ways_to_wait();
	several();
	children();
	CHECK(ibv_destroy_cq(cqs[0]) == EBUSY); // queue pairs use it
	complete(1); // and the event stays unread
	struct pollfd p = {channel->fd, POLLIN};
	CHECK(poll(&p, 1, 10000) == 1);
	for (int i = 0; i < CQS; i++) {
		CHECK(!ibv_destroy_qp(from[i]));
		CHECK(!ibv_destroy_qp(to[i]));
		if (i)
			CHECK(!ibv_destroy_cq(cqs[i])); // does not wait for an unread event
	}
	nothing(channel->fd);
	asynchronous(ctx, pd);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_destroy_cq(cqs[0]));
	CHECK(!ibv_destroy_comp_channel(channel));
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(ctx));
	puts("ok");
	return 0;
}
