// Programs with other uses of event channels than one thread that waits on one: loops with epoll(7), many threads on
// one channel, channels that are closed, duplicated or left open, identifiers without a channel, endpoints, and many
// identifiers.
//
//   cm_channels [NAME]    all parts, or one
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define CHECK(x) do { if (!(x)) { printf("line %d: %s: errno %d\n", __LINE__, #x, errno); fflush(stdout); _exit(1); } } while (0)

static const char *host = "127.0.0.1"; // the first device
static char port[16];

static struct rdma_addrinfo *address(const char *node, int flags)
{
	struct rdma_addrinfo *r, hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP};
	CHECK(!rdma_getaddrinfo(node, port, &hints, &r));
	return r;
}

static struct sockaddr *destination(void) { return address(host, 0)->ai_dst_addr; }

static struct ibv_qp_init_attr attributes(void)
{
	return (struct ibv_qp_init_attr){.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1}, .sq_sig_all = 1};
}

static struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};

static struct rdma_cm_id *new_id(struct rdma_event_channel *c, void *context)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(c, &id, context, RDMA_PS_TCP));
	return id;
}

static void expect(struct rdma_event_channel *c, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *e;
	CHECK(!rdma_get_cm_event(c, &e));
	if (e->event != want)
		printf("%s, status %d; want %s\n", rdma_event_str(e->event), e->status, rdma_event_str(want));
	CHECK(e->event == want);
	rdma_ack_cm_event(e);
}

static struct rdma_cm_id *resolved(struct rdma_event_channel *c)
{
	struct rdma_cm_id *id = new_id(c, NULL);
	CHECK(!rdma_resolve_addr(id, NULL, destination(), 2000));
	expect(c, RDMA_CM_EVENT_ADDR_RESOLVED);
	return id;
}

// Two threads, each with a loop, a channel and one side of 60 connections. The active side's epoll is edge-triggered.
enum { CONNECTIONS = 60 };

struct loop {
	struct rdma_event_channel *channel;
	uint32_t how;
	int established, ended;
};

static void *loop(void *arg)
{
	struct loop *l = arg;
	struct epoll_event ev = {.events = EPOLLIN | l->how};
	struct rdma_cm_event *e;
	int ep = epoll_create1(0);
	CHECK(ep >= 0 && !fcntl(l->channel->fd, F_SETFL, O_NONBLOCK) && !epoll_ctl(ep, EPOLL_CTL_ADD, l->channel->fd, &ev));
	while (l->ended < CONNECTIONS) {
		CHECK(epoll_wait(ep, &ev, 1, 10000) == 1);
		while (!rdma_get_cm_event(l->channel, &e)) {
			struct ibv_qp_init_attr a = attributes();
			struct rdma_cm_id *id = e->id;
			enum rdma_cm_event_type what = e->event;
			rdma_ack_cm_event(e);
			switch (what) {
			case RDMA_CM_EVENT_ADDR_RESOLVED:
				CHECK(!rdma_resolve_route(id, 2000));
				break;
			case RDMA_CM_EVENT_ROUTE_RESOLVED:
				CHECK(!rdma_create_qp(id, NULL, &a) && !rdma_connect(id, &parameters));
				break;
			case RDMA_CM_EVENT_CONNECT_REQUEST:
				CHECK(!rdma_create_qp(id, NULL, &a) && !rdma_accept(id, &parameters));
				break;
			case RDMA_CM_EVENT_ESTABLISHED:
				l->established++;
				if (id->context)
					CHECK(!rdma_disconnect(id));
				break;
			case RDMA_CM_EVENT_DISCONNECTED:
				if (!id->context)
					rdma_disconnect(id);
				rdma_destroy_qp(id);
				CHECK(!rdma_destroy_id(id));
				l->ended++;
				break;
			case RDMA_CM_EVENT_TIMEWAIT_EXIT:
				break;
			default:
				printf("%s\n", rdma_event_str(what));
				CHECK(0);
			}
		}
		CHECK(errno == EAGAIN);
	}
	close(ep);
	return NULL;
}

static void loops(void)
{
	struct loop passive = {rdma_create_event_channel()}, active = {rdma_create_event_channel(), EPOLLET};
	struct rdma_cm_id *listener = new_id(passive.channel, NULL);
	pthread_t p, a;
	CHECK(!rdma_bind_addr(listener, address(NULL, RAI_PASSIVE)->ai_src_addr) && !rdma_listen(listener, 0));
	CHECK(!pthread_create(&p, NULL, loop, &passive) && !pthread_create(&a, NULL, loop, &active));
	for (int i = 0; i < CONNECTIONS; i++)
		CHECK(!rdma_resolve_addr(new_id(active.channel, ""), NULL, destination(), 2000));
	CHECK(!pthread_join(a, NULL) && !pthread_join(p, NULL));
	CHECK(passive.established == CONNECTIONS && active.established == CONNECTIONS);
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(passive.channel);
	rdma_destroy_event_channel(active.channel);
}

// Threads wait on one channel, and each event is delivered to one of them.
enum { THREADS = 8, EVENTS = 100 };
static struct rdma_event_channel *shared;
static int taken;

static void *take(void *arg)
{
	struct rdma_cm_event *e;
	do {
		CHECK(!rdma_get_cm_event(shared, &e) && e->event == RDMA_CM_EVENT_ADDR_RESOLVED);
		rdma_ack_cm_event(e);
	} while (__sync_add_and_fetch(&taken, 1) < EVENTS);
	return NULL;
}

static void threads(void)
{
	enum { ALL = EVENTS + THREADS - 1 }; // each thread takes one more event
	pthread_t t[THREADS];
	struct rdma_cm_id *id[ALL];
	CHECK(shared = rdma_create_event_channel());
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&t[i], NULL, take, NULL));
	for (int i = 0; i < ALL; i++) {
		id[i] = new_id(shared, NULL);
		CHECK(!rdma_resolve_addr(id[i], NULL, destination(), 2000));
	}
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(t[i], NULL));
	CHECK(taken == ALL);
	for (int i = 0; i < ALL; i++)
		CHECK(!rdma_destroy_id(id[i]));
	rdma_destroy_event_channel(shared);
}

// A waiting thread keeps the file of a channel open after another thread has closed it, as in the kernel. A signal ends
// the wait.
static volatile int ended;

static void *wait_for_event(void *channel)
{
	struct rdma_cm_event *e;
	CHECK(rdma_get_cm_event(channel, &e) == -1 && errno == EINTR);
	ended = 1;
	return NULL;
}

static void handler(int s) { (void)s; }

static void closing(void)
{
	struct sigaction a = {.sa_handler = handler};
	struct rdma_event_channel *c = rdma_create_event_channel();
	pthread_t t;
	new_id(c, NULL);
	CHECK(!sigaction(SIGUSR1, &a, NULL) && !pthread_create(&t, NULL, wait_for_event, c));
	usleep(50000);
	CHECK(!close(c->fd));
	usleep(200000);
	CHECK(!ended);
	CHECK(!pthread_kill(t, SIGUSR1) && !pthread_join(t, NULL));
}

// A duplicate by dup(2) or fcntl(2) refers to the channel, also after the other descriptors have been closed.
static void duplicates(void)
{
	struct rdma_event_channel *c = rdma_create_event_channel();
	struct rdma_cm_id *id = resolved(c);
	int fd = dup(c->fd);
	CHECK(fd >= 0 && !close(c->fd));
	c->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	CHECK(c->fd >= 0 && !close(fd));
	CHECK(!rdma_resolve_route(id, 2000));
	expect(c, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(c);
}

// An identifier moves with its pending event, and the old channel can be closed.
static void migration(void)
{
	struct rdma_event_channel *c = rdma_create_event_channel(), *d = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(c, NULL);
	CHECK(!rdma_resolve_addr(id, NULL, destination(), 2000));
	usleep(100000);
	CHECK(!rdma_migrate_id(id, d));
	rdma_destroy_event_channel(c);
	expect(d, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 2000));
	expect(d, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(d);
}

// Destruction of an identifier waits until the program has acknowledged its events.
static struct rdma_cm_id *dying;

static void *destroy(void *arg)
{
	CHECK(!rdma_destroy_id(dying));
	ended = 1;
	return NULL;
}

static void acknowledgement(void)
{
	struct rdma_event_channel *c = rdma_create_event_channel();
	struct rdma_cm_event *e;
	pthread_t t;
	dying = new_id(c, NULL);
	CHECK(!rdma_resolve_addr(dying, NULL, destination(), 2000) && !rdma_get_cm_event(c, &e));
	CHECK(!pthread_create(&t, NULL, destroy, NULL));
	usleep(100000);
	CHECK(!ended);
	rdma_ack_cm_event(e);
	CHECK(!pthread_join(t, NULL));
	rdma_destroy_event_channel(c);
}

// Endpoints from rdma_getaddrinfo with several hints, each side in a thread.
static void exchange(struct rdma_cm_id *id, int first)
{
	struct ibv_wc wc;
	char in[8] = "", out[8] = "hello";
	struct ibv_mr *mi = rdma_reg_msgs(id, in, sizeof in), *mo = rdma_reg_msgs(id, out, sizeof out);
	CHECK(mi && mo && !rdma_post_recv(id, NULL, in, sizeof in, mi));
	CHECK(first ? !rdma_connect(id, NULL) : !rdma_accept(id, NULL));
	CHECK(!rdma_post_send(id, NULL, out, sizeof out, mo, 0));
	CHECK(rdma_get_send_comp(id, &wc) == 1 && !wc.status);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && !wc.status && !strcmp(in, "hello"));
	CHECK(!rdma_disconnect(id) || errno == EINVAL); // the peer was first
	rdma_dereg_mr(mi);
	rdma_dereg_mr(mo);
	rdma_destroy_ep(id);
}

static void *accept_one(void *listener)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_get_request(listener, &id));
	exchange(id, 0);
	return NULL;
}

static void endpoints(void)
{
	static const struct { const char *node; int flags; } hints[] = {
		{"127.0.0.1", 0}, {"127.0.0.1", RAI_NUMERICHOST}, {"127.0.0.1", RAI_NOROUTE}, {"localhost", 0}, {"::1", RAI_NUMERICHOST},
	};
	for (unsigned i = 0; i < sizeof hints / sizeof *hints; i++) {
		struct rdma_cm_id *listener, *id;
		struct ibv_qp_init_attr a = attributes();
		pthread_t t;
		struct rdma_addrinfo *here = address(strchr(hints[i].node, ':') ? "::" : NULL, RAI_PASSIVE), *there;
		CHECK(!rdma_create_ep(&listener, here, NULL, &a) && !rdma_listen(listener, 0));
		CHECK(!pthread_create(&t, NULL, accept_one, listener));
		there = address(hints[i].node, hints[i].flags);
		a = attributes();
		CHECK(!rdma_create_ep(&id, there, NULL, &a));
		exchange(id, 1);
		CHECK(!pthread_join(t, NULL));
		rdma_destroy_ep(listener);
		rdma_freeaddrinfo(here);
		rdma_freeaddrinfo(there);
	}
}

// An identifier without a channel: each call waits for its event. The port has no listener.
static void synchronous(void)
{
	struct rdma_cm_id *id = new_id(NULL, NULL);
	struct ibv_qp_init_attr a = attributes();
	CHECK(!rdma_resolve_addr(id, NULL, destination(), 2000) && !rdma_resolve_route(id, 2000) && !rdma_create_qp(id, NULL, &a));
	CHECK(rdma_connect(id, &parameters) == -1 && errno == ECONNREFUSED);
	rdma_destroy_ep(id);
}

// Many identifiers, each with an event in the queue. Half of them are left to the end of the process.
static void many(void)
{
	enum { MANY = 10000 };
	static struct rdma_cm_id *id[MANY];
	struct rdma_event_channel *c = rdma_create_event_channel();
	struct sockaddr *to = destination();
	for (int i = 0; i < MANY; i++) {
		id[i] = new_id(c, NULL);
		CHECK(!rdma_resolve_addr(id[i], NULL, to, 2000));
	}
	for (int i = 0; i < MANY; i++)
		expect(c, RDMA_CM_EVENT_ADDR_RESOLVED);
	for (int i = 0; i < MANY; i += 2)
		CHECK(!rdma_destroy_id(id[i]));
}

static const struct { const char *name; void (*run)(void); } parts[] = {
	{"loops", loops}, {"threads", threads}, {"closing", closing}, {"duplicates", duplicates}, {"migration", migration},
	{"acknowledgement", acknowledgement}, {"endpoints", endpoints}, {"synchronous", synchronous}, {"many", many},
};

int main(int argc, char **argv)
{
	int failed = 0;
	for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
		int status;
		pid_t pid;
		if (argc > 1 && strcmp(argv[1], parts[i].name))
			continue;
		snprintf(port, sizeof port, "%d", 7500 + i);
		CHECK((pid = fork()) >= 0);
		if (!pid) { // each part in a process of its own, which ends even after a failure
			alarm(50);
			parts[i].run();
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		if (status)
			printf("%s: status %#x\n", parts[i].name, status);
		failed |= status;
	}
	puts(failed ? "failed" : "ok");
	return !!failed;
}
