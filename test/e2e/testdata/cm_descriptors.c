// Prints the results of system calls on each file of verbs, one in a line: a device file, its asynchronous events, a
// completion channel, and the connection manager. test/abi/descriptors.kernel.txt has the results of the kernel's rxe.
#define _GNU_SOURCE
#include "verbs.h"
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>

static const char *file;
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_qp *sender, *receiver;
static struct ibv_comp_channel *channel;
static struct ibv_mr *mr;
static struct rdma_event_channel *cm;
static char buf[4096], *volatile nowhere;

static void result(const char *call, long r)
{
	if (r < 0)
		printf("%s %s: %s\n", file, call, strerrorname_np(errno));
	else
		printf("%s %s: %ld\n", file, call, r);
	fflush(stdout);
}

#define DO(call) (errno = 0, result(#call, call))

// complete posts a SEND, which completes on both sides. It raises an event of the completion channel, if the queue is
// armed, and a limit event of the shared receive queue.
static void complete(void)
{
	struct ibv_sge sge = {(uintptr_t)buf, 8, mr->lkey};
	struct ibv_recv_wr rr = {.sg_list = &sge, .num_sge = 1}, *badr;
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_wc wc;
	CHECK(!ibv_post_srq_recv(srq, &rr, &badr) && !ibv_post_send(sender, &wr, &bad));
	for (int n = 0; n < 2;) {
		int got = ibv_poll_cq(cq, 1, &wc);
		CHECK(got >= 0 && (!got || !wc.status));
		n += got;
	}
}

static int ready(int fd, int timeout)
{
	struct pollfd p = {fd, POLLIN};
	return poll(&p, 1, timeout) == 1 && p.revents & POLLIN;
}

// Functions that raise an event of each file, and read it. A second event is pending shortly afterwards.
enum { PAUSE = 30000 };

static void async_event(void)
{
	struct ibv_srq_attr a = {.srq_limit = 1};
	CHECK(!ibv_modify_srq(srq, &a, IBV_SRQ_LIMIT));
	complete();
	CHECK(ready(ctx->async_fd, 5000));
	usleep(PAUSE);
}

static void completion_event(void)
{
	CHECK(!ibv_req_notify_cq(cq, 0));
	complete();
	CHECK(ready(channel->fd, 5000));
	usleep(PAUSE);
}

static void cm_event(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = 1};
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(cm, &id, NULL, RDMA_PS_TCP) && !rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000));
	CHECK(ready(cm->fd, 5000));
}

static void cm_take(void)
{
	struct rdma_cm_event *e;
	CHECK(!rdma_get_cm_event(cm, &e));
	rdma_ack_cm_event(e);
}

static void show_poll(const char *call, int fd)
{
	struct pollfd p = {fd, POLLIN | POLLOUT | POLLPRI | POLLRDNORM | POLLWRNORM | POLLRDHUP};
	CHECK(poll(&p, 1, 0) >= 0);
	printf("%s %s:%s%s%s%s%s%s%s%s%s\n", file, call, p.revents ? "" : " nothing", p.revents & POLLIN ? " IN" : "", p.revents & POLLPRI ? " PRI" : "",
		p.revents & POLLOUT ? " OUT" : "", p.revents & POLLERR ? " ERR" : "", p.revents & POLLHUP ? " HUP" : "", p.revents & POLLRDNORM ? " RDNORM" : "",
		p.revents & POLLWRNORM ? " WRNORM" : "", p.revents & POLLNVAL ? " NVAL" : "");
}

static void show_select(const char *call, int fd)
{
	fd_set r, w, x;
	struct timeval at_once = {0};
	FD_ZERO(&r);
	FD_ZERO(&w);
	FD_ZERO(&x);
	FD_SET(fd, &r);
	FD_SET(fd, &w);
	FD_SET(fd, &x);
	int n = select(fd + 1, &r, &w, &x, &at_once);
	printf("%s %s: %d%s%s%s\n", file, call, n, FD_ISSET(fd, &r) ? " readable" : "", FD_ISSET(fd, &w) ? " writable" : "", FD_ISSET(fd, &x) ? " exceptional" : "");
}

static void show_epoll(const char *call, int fd, uint32_t how)
{
	int ep = epoll_create1(0);
	struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | how}, got;
	int r = epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
	if (r)
		result(call, r);
	else {
		int n = epoll_wait(ep, &got, 1, 0);
		printf("%s %s: %d events", file, call, n);
		if (n > 0)
			printf(", %#x", got.events);
		puts("");
	}
	close(ep);
}

// uring executes one request, and returns the result of its completion, or -1 with ETIME after a timeout.
static long uring(int op, int fd, void *addr, unsigned len, unsigned poll_events)
{
	struct io_uring_params p = {0};
	int ring = syscall(SYS_io_uring_setup, 1, &p);
	if (ring < 0)
		return -1;
	size_t size = p.sq_off.array + p.sq_entries * 4;
	if (size < p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe))
		size = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	char *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
	struct io_uring_sqe *e = mmap(NULL, sizeof *e, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
	CHECK(m != MAP_FAILED && e != MAP_FAILED);
	memset(e, 0, sizeof *e);
	e->opcode = op;
	e->fd = fd;
	e->addr = (uintptr_t)addr;
	e->len = len;
	e->poll32_events = poll_events;
	e->off = op == IORING_OP_READ ? -1 : 0;
	*(uint32_t *)(m + p.sq_off.array) = 0;
	__atomic_store_n((uint32_t *)(m + p.sq_off.tail), 1, __ATOMIC_RELEASE);
	long r = -1;
	CHECK(syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) == 1);
	errno = ETIME;
	for (int i = 0; i < 100; i++) {
		if (__atomic_load_n((uint32_t *)(m + p.cq_off.tail), __ATOMIC_ACQUIRE) != 0) {
			r = ((struct io_uring_cqe *)(m + p.cq_off.cqes))->res;
			if (r < 0)
				errno = -r, r = -1;
			break;
		}
		usleep(1000);
	}
	int was = errno;
	munmap(m, size);
	munmap(e, sizeof *e);
	close(ring);
	errno = was;
	return r;
}

static void handler(int s) { (void)s; }

// interrupted reads without O_NONBLOCK until a timer sends a signal.
static long interrupted(int fd)
{
	struct sigaction a = {.sa_handler = handler};
	struct itimerval t = {.it_value.tv_usec = 200000, .it_interval.tv_usec = 200000}, off = {0};
	CHECK(!sigaction(SIGALRM, &a, NULL) && !setitimer(ITIMER_REAL, &t, NULL));
	long r = read(fd, buf, 64);
	int was = errno;
	setitimer(ITIMER_REAL, &off, NULL);
	errno = was;
	return r;
}

static void link_of(int fd)
{
	char name[64], target[256] = "";
	snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
	CHECK(readlink(name, target, sizeof target - 1) > 0);
	if (!strncmp(target, "pipe:", 5) || !strncmp(target, "/memfd:", 7))
		*strchr(target, ':') = 0; // a number, or the name of a session
	printf("%s readlink of /proc/self/fd: %s\n", file, target);
}

// mode is the file mode without the permissions of a pipe, which depend on the user of the service.
static unsigned mode(unsigned m) { return S_ISFIFO(m) ? S_IFIFO : m; }

// common tests the calls on each file without pending events.
static void common(int fd)
{
	struct stat st;
	struct statx stx;
	int n = 0;
	CHECK(!fstat(fd, &st));
	printf("%s fstat: mode %#o, device %d:%s, size %ld, links %ld\n", file, mode(st.st_mode), major(st.st_rdev),
		major(st.st_rdev) == 10 ? "*" : minor(st.st_rdev) == 192 ? "192" : minor(st.st_rdev) ? "?" : "0", (long)st.st_size, (long)st.st_nlink);
	CHECK(!statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &stx));
	printf("%s statx: mode %#o, device %d\n", file, mode(stx.stx_mode), stx.stx_rdev_major);
	link_of(fd);
	printf("%s fcntl(F_GETFL): %#o\n", file, fcntl(fd, F_GETFL));
	printf("%s fcntl(F_GETFD): %d\n", file, fcntl(fd, F_GETFD));
	DO(fcntl(fd, F_SETFD, 0));
	DO(fcntl(fd, F_GETFD));
	DO(fcntl(fd, F_SETFD, FD_CLOEXEC));
	DO(fcntl(fd, F_SETFL, O_NONBLOCK));
	printf("%s fcntl(F_GETFL) then: %#o\n", file, fcntl(fd, F_GETFL));
	DO(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK));
	printf("%s fcntl(F_GETFL) then: %#o\n", file, fcntl(fd, F_GETFL));
	DO(fcntl(fd, F_SETFL, O_NONBLOCK));
	DO(fcntl(fd, F_GETPIPE_SZ));
	DO(fcntl(fd, F_GET_SEALS));
	DO(ioctl(fd, FIONREAD, &n));
	n = 1;
	DO(ioctl(fd, FIONBIO, &n));
	DO(ioctl(fd, TIOCGWINSZ, buf));
	DO(lseek(fd, 0, SEEK_CUR));
	DO(lseek(fd, 10, SEEK_SET));
	DO(lseek(fd, 0, SEEK_END));
	DO(read(fd, buf, 64));
	DO(read(fd, buf, 0));
	DO(read(fd, nowhere, 64));
	DO(pread(fd, buf, 8, 0));
	struct iovec v = {buf, 64};
	DO(readv(fd, &v, 1));
	memset(buf, 0, sizeof buf);
	DO(write(fd, buf, 0));
	DO(write(fd, buf, 4));
	DO(write(fd, buf, 8));
	DO(pwrite(fd, buf, 8, 0));
	DO(writev(fd, &v, 1));
	DO(ftruncate(fd, 0));
	DO(fsync(fd));
	DO(fallocate(fd, 0, 0, 4096));
	DO(flock(fd, LOCK_EX | LOCK_NB));
	DO(flock(fd, LOCK_UN));
	errno = 0;
	void *m = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	result("mmap(fd, 4096, 0)", m == MAP_FAILED ? -1 : 0);
	errno = 0;
	m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 1 << 20);
	result("mmap(fd, 4096, 1 << 20)", m == MAP_FAILED ? -1 : 0);
	int p[2];
	CHECK(!pipe2(p, O_NONBLOCK));
	DO(splice(fd, NULL, p[1], NULL, 64, SPLICE_F_NONBLOCK));
	close(p[0]);
	close(p[1]);
	DO(syscall(SYS_connect, fd, buf, 16));
	DO(fchdir(fd));
	show_poll("poll", fd);
	show_select("select", fd);
	show_epoll("epoll", fd, 0);
	DO(uring(IORING_OP_READ, fd, buf, 64, 0));
	DO(uring(IORING_OP_POLL_ADD, fd, NULL, 0, POLLIN));
	int d = dup(fd);
	CHECK(d >= 0 && !fstat(d, &st));
	printf("%s fstat of a duplicate: mode %#o\n", file, mode(st.st_mode));
	DO(fcntl(d, F_GETFD));
	DO(close(d));
}

// events tests the calls on a file with events.
static void events(int fd, void (*event)(void), void (*take)(void))
{
	event();
	show_poll("poll with an event", fd);
	show_select("select with an event", fd);
	show_epoll("epoll with an event", fd, 0);
	show_epoll("epoll with an event, edge-triggered", fd, EPOLLET);
	int n = -1;
	DO(ioctl(fd, FIONREAD, &n));
	DO(uring(IORING_OP_POLL_ADD, fd, NULL, 0, POLLIN));
	if (take) {
		DO(read(fd, buf, 64));
		take();
		show_poll("poll afterwards", fd);
		return;
	}
	DO(read(fd, buf, 4));
	DO(read(fd, nowhere, 64));
	show_poll("poll after a short read", fd);
	DO(pread(fd, buf, 64, 0));
	show_poll("poll after that", fd);
	if (!ready(fd, 0))
		event();
	event();
	DO(read(fd, buf, 64));
	DO(read(fd, buf, 64));
	DO(read(fd, buf, 64));
	event();
	struct iovec v[2] = {{buf, 4}, {buf + 4, 60}};
	DO(readv(fd, v, 2));
	while (ready(fd, 0))
		read(fd, buf, 64);
	event();
	DO(uring(IORING_OP_READ, fd, buf, 64, 0));
	while (ready(fd, 0))
		read(fd, buf, 64);
	CHECK(!fcntl(fd, F_SETFL, 0));
	DO(interrupted(fd));
	int d = dup(fd);
	event();
	DO(read(d, buf, 64));
	DO(close(d));
	DO(fcntl(fd, F_SETFL, O_NONBLOCK));
	DO(read(fd, buf, 64));
}

int main(void)
{
	ctx = open_device();
	pd = ibv_alloc_pd(ctx);
	channel = ibv_create_comp_channel(ctx);
	CHECK(pd && channel && (cq = ibv_create_cq(ctx, 16, NULL, channel, 0)) && (mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE)));
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = 16, .max_sge = 1}};
	CHECK(srq = ibv_create_srq(pd, &sa));
	sender = create_qp(pd, cq, NULL);
	receiver = create_qp(pd, cq, srq);
	connect_qp(sender, receiver);
	connect_qp(receiver, sender);
	CHECK(cm = rdma_create_event_channel());

	file = "uverbs";
	common(ctx->cmd_fd);
	file = "async";
	common(ctx->async_fd);
	events(ctx->async_fd, async_event, NULL);
	file = "completion";
	common(channel->fd);
	events(channel->fd, completion_event, NULL);
	file = "rdma_cm";
	common(cm->fd);
	events(cm->fd, cm_event, cm_take);
	return 0;
}
