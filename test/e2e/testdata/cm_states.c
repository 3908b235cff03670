// One side of a connection that stays in a state until it is disturbed, and then prints the events.
//
//   cm_states -s ADDR PORT STATE    the passive side
//   cm_states -c ADDR PORT STATE    the active side
//
// STATE is the last state of the connection: resolved, asked, accepted, connected or disconnecting. In this state the
// side prints `held`, and waits for a line or the end of its standard input. It then prints its events, one in a line,
// until none has arrived for a while, destroys its objects, and prints `ok`.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

#define CHECK(x) do { if (!(x)) { printf("line %d: %s: errno %d\n", __LINE__, #x, errno); exit(1); } } while (0)

enum state { RESOLVED, ASKED, ACCEPTED, CONNECTED, DISCONNECTING, NONE };
static const char *names[] = {"resolved", "asked", "accepted", "connected", "disconnecting"};

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener, *id;
static struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};

static struct rdma_addrinfo *address(char *host, char *port, int flags)
{
	struct rdma_addrinfo *r, hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP};
	CHECK(!rdma_getaddrinfo(host, port, &hints, &r));
	return r;
}

static void expect(enum rdma_cm_event_type want)
{
	struct rdma_cm_event *e;
	CHECK(!rdma_get_cm_event(channel, &e));
	if (e->event != want)
		printf("%s, status %d; want %s\n", rdma_event_str(e->event), e->status, rdma_event_str(want));
	CHECK(e->event == want);
	if (want == RDMA_CM_EVENT_CONNECT_REQUEST)
		id = e->id;
	rdma_ack_cm_event(e);
}

static void make_qp(void)
{
	struct ibv_qp_init_attr a = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1}};
	CHECK(!rdma_create_qp(id, NULL, &a));
}

static void active(char *host, char *port, enum state s)
{
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, address(host, port, 0)->ai_dst_addr, 2000));
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 2000));
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_qp();
	if (s == RESOLVED)
		return;
	CHECK(!rdma_connect(id, &parameters));
	if (s == ACCEPTED) { // the answer has arrived; librdmacm completes the connection in the call that takes the event
		struct pollfd p = {channel->fd, POLLIN};
		CHECK(poll(&p, 1, 10000) == 1);
	}
	if (s >= CONNECTED)
		expect(RDMA_CM_EVENT_ESTABLISHED);
	if (s == DISCONNECTING)
		CHECK(!rdma_disconnect(id));
}

static void passive(char *host, char *port, enum state s)
{
	CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, address(host, port, RAI_PASSIVE)->ai_src_addr) && !rdma_listen(listener, 0));
	puts("listening");
	if (s == RESOLVED)
		return;
	expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	if (s == ASKED)
		return;
	make_qp();
	CHECK(!rdma_accept(id, &parameters));
	if (s >= CONNECTED)
		expect(RDMA_CM_EVENT_ESTABLISHED);
	if (s == DISCONNECTING)
		expect(RDMA_CM_EVENT_DISCONNECTED);
}

int main(int argc, char **argv)
{
	enum state s = 0;
	CHECK(argc == 5);
	while (s < NONE && strcmp(argv[4], names[s]))
		s++;
	CHECK(s < NONE);
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(120);
	CHECK(channel = rdma_create_event_channel());
	(strcmp(argv[1], "-s") ? active : passive)(argv[2], argv[3], s);
	puts("held");
	getchar();
	// If librdmacm could not complete a connection, it skips the event with the reason, and would wait for another
	// event.
	CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	struct pollfd p = {channel->fd, POLLIN};
	while (poll(&p, 1, 300) == 1) {
		struct rdma_cm_event *e;
		if (rdma_get_cm_event(channel, &e)) {
			CHECK(errno == EAGAIN);
			continue;
		}
		printf("%s%s %d\n", e->id == listener ? "listener: " : "", rdma_event_str(e->event), e->status);
		rdma_ack_cm_event(e);
	}
	if (id && id->qp)
		rdma_destroy_qp(id);
	if (id)
		CHECK(!rdma_destroy_id(id) || errno == EIO);
	if (listener)
		CHECK(!rdma_destroy_id(listener) || errno == EIO);
	puts("ok");
	return 0;
}
