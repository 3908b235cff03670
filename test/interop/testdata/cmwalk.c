// cmwalk makes random sequences of librdmacm calls, and writes the result of each call and event. The output does not
// depend on the host: IDs are slot numbers, and addresses, ports and queue pairs have the name of their role.
//
//   cmwalk [-w WORKERS] [-q QUIET] [-n STEPS] IPV4 IPV6 IF DIR FIRST COUNT     the walks of COUNT seeds, in DIR/WORKER
//   cmwalk [...] IPV4 IPV6 IF DIR -                                            the walks that stdin names: SEED [,STEP...]
//
// The seed, the number of the step and the earlier results determine a step. The steps after a seed on stdin are
// omitted, which shortens a walk.
//
// All sides of a walk are in this process. After each call the program waits for the expected events, and then until no
// event has arrived for QUIET milliseconds (15). The results therefore do not depend on timing. An eager walk takes
// events when they arrive. In a lazy walk, events wait until a step takes them.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "cmwalk.c:%d: %s: %m\n", __LINE__, #x); exit(1); } } while (0)
#define LEN(a) ((int)(sizeof(a) / sizeof(a)[0]))

enum { MADE = 5, SLOTS = 11, CHANNELS = 2, UNACKED = 24, GROUPS = 4 };

// The assumed state of a slot. It is used only to choose useful steps.
enum state { NONE, IDLE, BOUND, LISTENING, ADDR, ROUTE, CONNECTING, RESPONSE, CONNECTED, OVER, REQUEST, ACCEPTED };

static const char *const event_names[] = {
	"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE", "CONNECT_ERROR",
	"UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL", "MULTICAST_JOIN", "MULTICAST_ERROR", "ADDR_CHANGE",
	"TIMEWAIT_EXIT",
};

struct slot {
	struct rdma_cm_id *id;
	int channel;           // -1 means a synchronous ID, which waits for its own events
	enum state state;
	int ps, peer;          // peer is a slot, or -1
	uint32_t qpn;          // QPN of the last connect or accept
	struct rdma_cm_event *unacked[UNACKED];
	int n;
	int joined[GROUPS];
	int placed;            // the ID has, had or tried an address of an interface
	struct ibv_pd *pd;     // PD of the ID's own queue pair
	struct ibv_cq *cq;
	struct ibv_qp *own;
};

static struct slot slots[SLOTS];
static struct rdma_event_channel *channels[CHANNELS];
static struct sockaddr_storage own4, own6;
static unsigned scope;
static int quiet = 15, steps = 32, owed, asking = -1, lazy, space_of_walk, family_of_walk, listener_gone;
static uint64_t random_state;
static uint32_t next_qpn;
static uint16_t port_base;
static char *out;
static size_t out_len;
static FILE *trace;

static uint64_t random64(void)
{
	uint64_t z = random_state += 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static int rnd(int n) { return random64() % n; }

#define ONE_OF(...) ((const int[]){__VA_ARGS__}[rnd(LEN(((const int[]){__VA_ARGS__})))])

static __attribute__((format(printf, 1, 2))) void say(const char *format, ...)
{
	va_list ap;
	va_start(ap, format);
	vfprintf(trace, format, ap);
	va_end(ap);
}

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

// The roles of addresses.
enum { OWN4, OWN6, MAPPED, ANY4, ANY6, LINK_LOCAL, LINK_LOCAL_NO_SCOPE, NOBODY4, NOWHERE4, NOWHERE6, GROUP4, OTHER_GROUP4, NO_FAMILY, ADDRESSES };

static const char *const address_names[] = {
	"own4", "own6", "mapped", "any4", "any6", "link", "link-without-scope", "foreign4", "nowhere4", "nowhere6", "group4",
	"other-group4", "no-family",
};

// The roles of ports: 0 to 3 are ports of the walk itself.
static const char *const port_names[] = {"p0", "p1", "p2", "p3", "0"};

static struct sockaddr *address(int what, int port, struct sockaddr_storage *s)
{
	struct sockaddr_in *v4 = (void *)s;
	struct sockaddr_in6 *v6 = (void *)s;
	static const char *const text[ADDRESSES] = {
		[ANY4] = "0.0.0.0", [NOBODY4] = "10.77.0.77", [NOWHERE4] = "198.51.100.7", [GROUP4] = "239.7.7.7", [OTHER_GROUP4] = "239.7.7.8",
		[ANY6] = "::", [NOWHERE6] = "2001:db8::7", [LINK_LOCAL] = "", [NO_FAMILY] = "",
	};
	uint16_t p = port < 4 ? htons(port_base + port) : 0;
	memset(s, 0, sizeof *s);
	switch (what) {
	case OWN4: *s = own4; break;
	case OWN6: *s = own6; break;
	case MAPPED:
		v6->sin6_family = AF_INET6;
		v6->sin6_addr.s6_addr[10] = v6->sin6_addr.s6_addr[11] = 0xff;
		memcpy(v6->sin6_addr.s6_addr + 12, &((struct sockaddr_in *)&own4)->sin_addr, 4);
		break;
	case LINK_LOCAL: case LINK_LOCAL_NO_SCOPE: // an address without an owner
		v6->sin6_family = AF_INET6;
		inet_pton(AF_INET6, "fe80::7777", &v6->sin6_addr);
		v6->sin6_scope_id = what == LINK_LOCAL ? scope : 0;
		break;
	case NO_FAMILY:
		s->ss_family = 200;
		break;
	default:
		if (inet_pton(AF_INET, text[what], &v4->sin_addr) == 1) {
			v4->sin_family = AF_INET;
		} else {
			memset(s, 0, sizeof *s);
			CHECK(inet_pton(AF_INET6, text[what], &v6->sin6_addr) == 1);
			v6->sin6_family = AF_INET6;
		}
	}
	if (s->ss_family == AF_INET)
		v4->sin_port = p;
	else
		v6->sin6_port = p;
	return (void *)s;
}

// name returns the role of an address.
static const char *name(const struct sockaddr *a)
{
	static char text[64];
	struct sockaddr_storage s;
	if (!a->sa_family)
		return "none";
	for (int i = 0; i < ADDRESSES; i++) {
		address(i, 0, &s);
		if (s.ss_family == a->sa_family && (a->sa_family == AF_INET ?
			((struct sockaddr_in *)&s)->sin_addr.s_addr == ((struct sockaddr_in *)a)->sin_addr.s_addr : a->sa_family == AF_INET6 &&
			!memcmp(&((struct sockaddr_in6 *)&s)->sin6_addr, &((struct sockaddr_in6 *)a)->sin6_addr, 16)))
			return address_names[i];
	}
	snprintf(text, sizeof text, "family %d", a->sa_family);
	return text;
}

static const char *port_name(uint16_t p)
{
	p = ntohs(p);
	return !p ? "0" : p >= port_base && p < port_base + 4 ? port_names[p - port_base] : "some";
}

static const char *result(int r)
{
	static char text[64];
	int e = errno;
	const char *n = r ? strerrorname_np(e) : NULL;
	snprintf(text, sizeof text, r == 0 ? "0" : r == -1 ? "%s" : "%s (%d)", n ? n : "error", r);
	return text;
}

static uint32_t hash(const void *at, int n)
{
	const uint8_t *b = at;
	uint32_t h = 2166136261;
	for (int i = 0; i < n; i++)
		h = (h ^ b[i]) * 16777619;
	return h;
}

static int slot_of(const struct rdma_cm_id *id)
{
	for (int i = 0; i < SLOTS; i++)
		if (id && slots[i].id == id)
			return i;
	return -1;
}

static int slot_of_qpn(uint32_t qpn)
{
	for (int i = 0; qpn && i < SLOTS; i++)
		if (slots[i].qpn == qpn)
			return i;
	return -1;
}

static int is_datagram(const struct rdma_cm_id *id) { return id->qp_type == IBV_QPT_UD; }

static void ack(int i)
{
	struct slot *s = &slots[i];
	for (int k = 0; k < s->n; k++)
		rdma_ack_cm_event(s->unacked[k]);
	s->n = 0;
}

static void free_own(struct slot *s)
{
	if (s->own)
		ibv_destroy_qp(s->own);
	if (s->cq)
		ibv_destroy_cq(s->cq);
	if (s->pd)
		ibv_dealloc_pd(s->pd);
	s->own = NULL;
	s->cq = NULL;
	s->pd = NULL;
}

static int destroy(int i)
{
	struct slot *s = &slots[i];
	ack(i);
	free_own(s);
	if (s->id->qp)
		rdma_destroy_qp(s->id);
	if (s->state == LISTENING)
		listener_gone = 1;
	int r = rdma_destroy_id(s->id);
	memset(s, 0, sizeof *s);
	return r;
}

static void data(const void *at, int n) { say(" data %d:%08x", n, hash(at, n)); }

// show prints an event and records its effect.
static void show(struct rdma_cm_event *e)
{
	int request = e->event == RDMA_CM_EVENT_CONNECT_REQUEST, i = slot_of(request ? e->listen_id : e->id), new = -1;
	if (e->event == RDMA_CM_EVENT_TIMEWAIT_EXIT) { // arrives at any time
		rdma_ack_cm_event(e);
		return;
	}
	struct rdma_cm_id *id = e->id;
	if (request) {
		for (new = MADE; new < SLOTS && slots[new].id; new++)
			;
		say("  e%d %s new %d", i, event_names[e->event], new < SLOTS ? new : -1);
		say(" context %s qp_type %d ps %#x channel %s", id->context == e->listen_id->context ? "listener's" : "other", id->qp_type, id->ps,
			id->channel == e->listen_id->channel ? "same" : "other");
	} else {
		say("  e%d %s listen_id %s", i, event_names[e->event], e->listen_id ? "set" : "0");
	}
	say(" status %d", e->status);
	int from = -1;
	if (is_datagram(id)) {
		struct rdma_ud_param *p = &e->param.ud;
		from = slot_of_qpn(p->qp_num);
		data(p->private_data, p->private_data_len);
		say(" ud qpn %s%d Q_Key %#x ah global %d port %d hops %d class %d dlid %#x sl %d", p->qp_num == 0xffffff ? "group" : p->qp_num ? "of " : "none", from,
			p->qkey, p->ah_attr.is_global, p->ah_attr.port_num, p->ah_attr.grh.hop_limit, p->ah_attr.grh.traffic_class, p->ah_attr.dlid,
			p->ah_attr.sl);
	} else {
		struct rdma_conn_param *p = &e->param.conn;
		from = slot_of_qpn(p->qp_num);
		data(p->private_data, p->private_data_len);
		say(" conn %d %d flow %d retry %d %d srq %d qpn %s%d", p->responder_resources, p->initiator_depth, p->flow_control, p->retry_count,
			p->rnr_retry_count, p->srq, p->qp_num ? "of " : "none", from);
	}
	say("\n");
	struct slot *s = i >= 0 ? &slots[i] : NULL;
	if (s)
		switch (e->event) {
		case RDMA_CM_EVENT_ADDR_RESOLVED: s->state = ADDR; break;
		case RDMA_CM_EVENT_ADDR_ERROR: s->state = BOUND; break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED: s->state = ROUTE; break;
		case RDMA_CM_EVENT_CONNECT_RESPONSE: s->state = RESPONSE; break;
		case RDMA_CM_EVENT_ESTABLISHED: s->state = CONNECTED; break;
		case RDMA_CM_EVENT_CONNECT_ERROR: case RDMA_CM_EVENT_REJECTED: case RDMA_CM_EVENT_UNREACHABLE: case RDMA_CM_EVENT_DISCONNECTED:
			s->state = OVER;
			break;
		default: break;
		}
	if (s && s->n < UNACKED)
		s->unacked[s->n++] = e;
	else
		rdma_ack_cm_event(e);
	if (!request)
		return;
	if (new < SLOTS) {
		if (from < 0)
			from = asking;
		slots[new] = (struct slot){.id = id, .channel = s ? s->channel : 0, .state = REQUEST, .ps = id->ps, .peer = from};
		if (from >= 0)
			slots[from].peer = new;
	} else {
		rdma_destroy_id(id);
	}
}

// drain takes the events of a channel, grouped by ID.
static int drain(int c)
{
	struct rdma_cm_event *got[64];
	int n = 0;
	while (n < 64 && !rdma_get_cm_event(channels[c], &got[n]))
		n++;
	if (errno != EAGAIN)
		say("  get_event %s\n", result(-1));
	int shown = n;
	for (int i = -1; i < SLOTS; i++)
		for (int k = 0; k < n; k++)
			if (got[k] && slot_of(got[k]->event == RDMA_CM_EVENT_CONNECT_REQUEST ? got[k]->listen_id : got[k]->id) == i) {
				if (got[k]->event == RDMA_CM_EVENT_TIMEWAIT_EXIT)
					shown--;
				show(got[k]);
				got[k] = NULL;
			}
	return shown;
}

// take takes the pending and expected events, at least need of them.
static void take(int need)
{
	long end = now() + (lazy ? 600 : 4000);
	for (;;) {
		struct pollfd p[CHANNELS];
		for (int c = 0; c < CHANNELS; c++)
			p[c] = (struct pollfd){.fd = channels[c]->fd, .events = POLLIN};
		int n = poll(p, CHANNELS, need > 0 && now() < end ? 50 : quiet);
		CHECK(n >= 0);
		for (int c = 0; c < CHANNELS; c++)
			if (p[c].revents)
				need -= drain(c);
		if (!n && (need <= 0 || now() >= end))
			break;
	}
	if (need > 0 && !lazy)
		say("  an event that is due has not come\n");
}

// settle waits until the effects of a call are complete. need is the minimum number of expected events; -1 means none.
static void settle(int need)
{
	if (need < 0)
		return;
	if (!lazy) {
		take(need);
		return;
	}
	owed += need;
	usleep(1000 * (need && listener_gone ? 800 : 4 * quiet));
}

static int alive(int i) { return i >= 0 && i < SLOTS && slots[i].id; }

// hears reports whether the peer of a slot is notified of the slot's end.
static int hears(int i)
{
	struct slot *s = &slots[i];
	if (!alive(s->peer) || slots[s->peer].peer != i || slots[s->peer].state == OVER || is_datagram(s->id) != is_datagram(slots[s->peer].id))
		return 0;
	if (is_datagram(s->id))
		return s->state == REQUEST;
	return s->state == REQUEST || s->state == CONNECTED || s->state == RESPONSE;
}

static uint8_t buffer[256];

static void pattern(int salt)
{
	for (int i = 0; i < 256; i++)
		buffer[i] = salt + i * 7;
}

static struct rdma_conn_param *params(int i, struct rdma_conn_param *p, int accept)
{
	struct slot *s = &slots[i];
	int usual = rnd(4) > 0;
	if (!rnd(12) && (!accept || s->id->qp)) { // librdmacm requires a queue pair
		say(" no params");
		s->qpn = s->id->qp ? s->id->qp->qp_num : 0;
		return NULL;
	}
	*p = (struct rdma_conn_param){.responder_resources = 2, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
	p->private_data_len = ONE_OF(0, 0, 1, 8, 20, 55, 56, 57);
	if (!usual) {
		p->private_data_len = ONE_OF(0, 1, 55, 56, 57, 92, 136, 137, 148, 180, 181, 196, 197, 216, 224, 255);
		p->responder_resources = ONE_OF(0, 1, 3, 16, 127, 128, 129, 255);
		p->initiator_depth = ONE_OF(0, 1, 3, 16, 127, 128, 129, 255);
		p->flow_control = rnd(2);
		p->retry_count = ONE_OF(0, 1, 6, 7, 8, 255);
		p->rnr_retry_count = ONE_OF(0, 1, 6, 7, 8, 255);
		p->srq = rnd(2);
	}
	int salt = rnd(256), reuse = rnd(30);
	pattern(salt);
	p->private_data = p->private_data_len ? buffer : NULL;
	p->qp_num = s->own ? s->own->qp_num : next_qpn++;
	const char *which = s->own ? "own" : "made-up";
	if (!s->own && !s->id->qp && !reuse && alive(s->peer = rnd(SLOTS)) && slots[s->peer].qpn) {
		p->qp_num = slots[s->peer].qpn;
		which = "another's";
	}
	if (s->id->qp)
		which = "the id's";
	say(" qpn %s data %d:%08x conn %d %d flow %d retry %d %d srq %d", which, p->private_data_len, hash(buffer, p->private_data_len),
		p->responder_resources, p->initiator_depth, p->flow_control, p->retry_count, p->rnr_retry_count, p->srq);
	s->qpn = s->id->qp ? s->id->qp->qp_num : p->qp_num & 0xffffff;
	return p;
}

// The following functions are the steps. Each step takes a slot, prints its line, and waits.

static void create(int i)
{
	struct slot *s = &slots[i];
	int c = rnd(3) ? 0 : 1;
	int ps = rnd(8) ? space_of_walk : ONE_OF(RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IB, RDMA_PS_IPOIB, 0x0107);
	int r = rdma_create_id(channels[c], &s->id, &slots[i], ps);
	say("create_id %d ps %#x channel %d = %s\n", i, ps, c, result(r));
	if (r)
		s->id = NULL;
	else
		*s = (struct slot){.id = s->id, .channel = c, .state = IDLE, .ps = ps, .peer = -1};
}

// local returns an address of this host, or none. Linux remembers the interface of an ID that ever had a local address.
static int local(struct slot *s)
{
	int own = family_of_walk ? OWN6 : OWN4, any = family_of_walk ? ANY6 : ANY4;
	return rnd(4) ? rnd(2) ? own : any : s->placed ? ONE_OF(OWN4, OWN6, ANY4, ANY6) :
		ONE_OF(OWN4, OWN6, MAPPED, ANY4, ANY6, LINK_LOCAL, LINK_LOCAL_NO_SCOPE, NOBODY4, NOWHERE4, NOWHERE6, GROUP4, NO_FAMILY);
}

static void bind_addr(int i)
{
	struct sockaddr_storage a;
	struct slot *s = &slots[i];
	int what = local(s), port = i == 0 && rnd(4) ? 0 : ONE_OF(0, 1, 2, 4);
	s->placed |= what != ANY4 && what != ANY6;
	int r = rdma_bind_addr(s->id, address(what, port, &a));
	say("bind_addr %d %s %s = %s\n", i, address_names[what], port_names[port], result(r));
	if (!r && s->state == IDLE)
		s->state = BOUND;
}

static void listen_(int i)
{
	int backlog = ONE_OF(0, 1, 2, 8, 8, -1, 100000);
	int r = rdma_listen(slots[i].id, backlog);
	say("listen %d backlog %d = %s\n", i, backlog, result(r));
	if (!r)
		slots[i].state = LISTENING;
}

static void resolve_addr(int i)
{
	struct sockaddr_storage a, b;
	struct slot *s = &slots[i];
	int own = family_of_walk ? OWN6 : OWN4;
	int src = rnd(3) ? -1 : rnd(2) ? own : local(s);
	int dst = rnd(6) ? own : ONE_OF(OWN4, OWN6, MAPPED, NOWHERE4, NOWHERE6, GROUP4, NO_FAMILY);
	if ((dst == NOWHERE4 || dst == GROUP4) && (src >= 0 || s->placed))
		dst = own; // Linux sends a neighbour solicitation
	s->placed = 1;
	int sport = src < 0 ? 4 : ONE_OF(4, 4, 3, 1), dport = rnd(8) ? 0 : ONE_OF(1, 2, 3, 4);
	int r = rdma_resolve_addr(s->id, src < 0 ? NULL : address(src, sport, &a), address(dst, dport, &b), 2000);
	say("resolve_addr %d from %s %s to %s %s = %s\n", i, src < 0 ? "-" : address_names[src], port_names[sport], address_names[dst],
		port_names[dport], result(r));
	settle(r ? -1 : 1);
	if (!r && lazy)
		s->state = ADDR;
}

static void resolve_route(int i)
{
	if (!slots[i].id->verbs)
		return;
	int r = rdma_resolve_route(slots[i].id, 2000);
	say("resolve_route %d = %s\n", i, result(r));
	settle(r ? -1 : 1);
	if (!r && lazy)
		slots[i].state = ROUTE;
}

static void create_qp(int i)
{
	struct rdma_cm_id *id = slots[i].id;
	struct ibv_qp_init_attr a = {
		.qp_type = rnd(10) ? is_datagram(id) ? IBV_QPT_UD : IBV_QPT_RC : IBV_QPT_UC,
		.cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1},
	};
	if (!id->verbs || id->qp || slots[i].own) // librdmacm requires a device
		return;
	int type = a.qp_type, r = rdma_create_qp(id, NULL, &a);
	say("create_qp %d type %d = %s\n", i, type, result(r));
}

static void own_qp(int i)
{
	struct slot *s = &slots[i];
	if (!s->id->verbs || s->id->qp || s->own)
		return;
	CHECK(s->pd = ibv_alloc_pd(s->id->verbs));
	CHECK(s->cq = ibv_create_cq(s->id->verbs, 4, NULL, NULL, 0));
	struct ibv_qp_init_attr a = {
		.qp_type = is_datagram(s->id) ? IBV_QPT_UD : IBV_QPT_RC, .send_cq = s->cq, .recv_cq = s->cq,
		.cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1},
	};
	s->own = ibv_create_qp(s->pd, &a);
	say("own_qp %d %s\n", i, s->own ? "made" : "failed");
}

static void init_qp_attr(int i)
{
	struct slot *s = &slots[i];
	static const int usual[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
	struct ibv_qp_attr a = {.qp_state = rnd(5) ? usual[rnd(3)] : ONE_OF(IBV_QPS_RESET, IBV_QPS_SQD, IBV_QPS_ERR, 9)};
	int mask = 0, state = a.qp_state;
	int r = rdma_init_qp_attr(s->id, &a, &mask);
	say("init_qp_attr %d %d = %s", i, state, result(r));
	if (!r) {
		say(" mask %#x state %d access %#x port %d pkey %d Q_Key %#x mtu %d rnr_timer %d timeout %d retry %d %d rd %d %d", mask, a.qp_state,
			a.qp_access_flags, a.port_num, a.pkey_index, a.qkey, a.path_mtu, a.min_rnr_timer, a.timeout, a.retry_cnt, a.rnr_retry, a.max_rd_atomic,
			a.max_dest_rd_atomic);
		if (mask & IBV_QP_AV)
			say(" ah global %d hops %d class %d dlid %#x sl %d port %d dest %d", a.ah_attr.is_global, a.ah_attr.grh.hop_limit, a.ah_attr.grh.traffic_class,
				a.ah_attr.dlid, a.ah_attr.sl, a.ah_attr.port_num, slot_of_qpn(a.dest_qp_num));
		if (s->own)
			say(" modify %s", result(ibv_modify_qp(s->own, &a, mask) ? -1 : 0));
	}
	say("\n");
}

static void connect_(int i)
{
	struct slot *s = &slots[i];
	struct rdma_conn_param p;
	if (!s->id->verbs)
		return;
	say("connect %d", i);
	struct rdma_conn_param *q = params(i, &p, 0);
	int r = rdma_connect(s->id, q);
	say(" = %s\n", result(r));
	if (!r)
		s->state = CONNECTING;
	asking = i;
	settle(r ? -1 : 1);
	asking = -1;
}

static void accept_(int i)
{
	struct slot *s = &slots[i];
	struct rdma_conn_param p;
	if (!s->id->verbs)
		return;
	say("accept %d", i);
	int peer = s->peer;
	struct rdma_conn_param *q = params(i, &p, 1);
	s->peer = peer;
	int r = rdma_accept(s->id, q);
	say(" = %s\n", result(r));
	int both = !r && s->state == REQUEST && alive(peer) && slots[peer].state == CONNECTING;
	if (!r)
		s->state = ACCEPTED;
	settle(r ? -1 : both ? is_datagram(s->id) || !slots[peer].id->qp ? 1 : 2 : 0);
}

static void reject(int i)
{
	struct slot *s = &slots[i];
	int n = rnd(2) ? ONE_OF(0, 1, 8) : ONE_OF(0, 1, 135, 136, 137, 147, 148, 149, 196, 255), salt = rnd(256), ece = !rnd(8);
	pattern(salt);
	int told = hears(i), r = ece ? rdma_reject_ece(s->id, buffer, n) : rdma_reject(s->id, n ? buffer : NULL, n);
	say("reject%s %d data %d:%08x = %s\n", ece ? "_ece" : "", i, n, hash(buffer, n), result(r));
	if (!r && (s->state == REQUEST || s->state == RESPONSE))
		s->state = OVER;
	settle(r ? -1 : told);
}

static void disconnect(int i)
{
	struct slot *s = &slots[i];
	int told = s->state == CONNECTED && hears(i) && slots[s->peer].state == CONNECTED, r = rdma_disconnect(s->id);
	say("disconnect %d = %s\n", i, result(r));
	settle(r ? -1 : told);
}

static void disconnect_both(int i)
{
	struct slot *s = &slots[i];
	int peer = s->peer;
	if (!alive(peer) || slots[peer].peer != i)
		return disconnect(i);
	int r = rdma_disconnect(s->id);
	say("disconnect %d = %s", i, result(r));
	r = rdma_disconnect(slots[peer].id);
	say(" and %d = %s\n", peer, result(r));
	settle(s->state == CONNECTED && slots[peer].state == CONNECTED && !is_datagram(s->id) ? 2 : 0);
}

static void establish(int i)
{
	struct slot *s = &slots[i];
	int told = s->state == RESPONSE && alive(s->peer) && slots[s->peer].state == ACCEPTED, r = rdma_establish(s->id);
	say("establish %d = %s\n", i, result(r));
	if (!r && s->state == RESPONSE)
		s->state = CONNECTED;
	settle(r ? -1 : told);
}

static void notify(int i)
{
	int event = rnd(4) ? IBV_EVENT_COMM_EST : IBV_EVENT_QP_FATAL, r = rdma_notify(slots[i].id, event);
	say("notify %d %d = %s\n", i, event, result(r));
	settle(r ? -1 : 0);
}

static void migrate(int i)
{
	struct slot *s = &slots[i];
	int to = rnd(CHANNELS);
	ack(i);
	int r = rdma_migrate_id(s->id, channels[to]);
	say("migrate_id %d to %d = %s\n", i, to, result(r));
	if (!r)
		s->channel = to;
	settle(0);
}

static void set_option(int i)
{
	static const struct { int level, name; const char *text; } all[] = {
		{RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, "TOS"}, {RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, "REUSEADDR"},
		{RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, "AFONLY"}, {RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, "ACK_TIMEOUT"},
		{RDMA_OPTION_ID, 9, "ID 9"}, {RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, "PATH"}, {RDMA_OPTION_IB, 7, "IB 7"}, {7, 0, "level 7"},
	};
	int o = rnd(3) ? rnd(4) : rnd(LEN(all));
	int size = o == 1 || o == 2 ? 4 : 1, bytes = rnd(8) ? size : ONE_OF(0, 1, 2, 3, 4, 8);
	union { uint8_t b[128]; uint32_t v; } v = {.b = {0}};
	v.v = o == 0 ? ONE_OF(0, 0x20, 0xe8, 0xff) : o == 3 ? ONE_OF(0, 1, 5, 14, 20, 31, 32, 255) : ONE_OF(0, 1, 1, 1, 256);
	int r = rdma_set_option(slots[i].id, all[o].level, all[o].name, &v, bytes);
	say("set_option %d %s %d bytes %d = %s\n", i, all[o].text, v.v, bytes, result(r));
}

static const int group_addresses[GROUPS] = {GROUP4, OTHER_GROUP4, ANY4, ANY6};

static void join(int i)
{
	struct slot *s = &slots[i];
	struct sockaddr_storage a;
	int g = rnd(5) ? family_of_walk : rnd(GROUPS), only = rnd(3) == 0, r;
	if (s->joined[g])
		return;
	if (only) {
		struct rdma_cm_join_mc_attr_ex x = {
			.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, .join_flags = ONE_OF(0, 1, 1, 1, 2),
			.addr = address(group_addresses[g], 4, &a),
		};
		r = rdma_join_multicast_ex(s->id, &x, NULL);
		say("join_multicast_ex %d %s flags %d = %s\n", i, address_names[group_addresses[g]], x.join_flags, result(r));
	} else {
		r = rdma_join_multicast(s->id, address(group_addresses[g], 4, &a), NULL);
		say("join_multicast %d %s = %s\n", i, address_names[group_addresses[g]], result(r));
	}
	s->joined[g] = !r;
	settle(r ? -1 : 1);
}

static void leave(int i)
{
	struct slot *s = &slots[i];
	struct sockaddr_storage a;
	int g = rnd(5) ? family_of_walk : rnd(GROUPS);
	ack(i);
	int r = rdma_leave_multicast(s->id, address(group_addresses[g], 4, &a));
	say("leave_multicast %d %s = %s\n", i, address_names[group_addresses[g]], result(r));
	if (!r)
		s->joined[g] = 0;
	settle(0);
}

static void addresses(int i)
{
	struct rdma_cm_id *id = slots[i].id;
	say("addresses %d src %s %s", i, name(rdma_get_local_addr(id)), port_name(rdma_get_src_port(id)));
	say(" dst %s %s verbs %s port %d paths %d", name(rdma_get_peer_addr(id)), port_name(rdma_get_dst_port(id)), id->verbs ? "set" : "0", id->port_num,
		id->route.num_paths);
	if (id->route.num_paths) {
		struct ibv_sa_path_rec *p = id->route.path_rec;
		say(" pkey %#x hops %d class %d mtu %d %d rate %d reversible %d sl %d", ntohs(p->pkey), p->hop_limit, p->traffic_class, p->mtu_selector, p->mtu,
			p->rate_selector, p->reversible, p->sl);
	}
	say("\n");
}

struct call {
	int slot;
	volatile int done, result, error;
};

static void *destroy_thread(void *p)
{
	struct call *c = p;
	c->result = rdma_destroy_id(slots[c->slot].id);
	c->error = errno;
	c->done = 1;
	return NULL;
}

// destroy_waiting destroys an ID with events that are not acknowledged. The call waits until the events are acknowledged.
static void destroy_waiting(int i)
{
	struct slot *s = &slots[i];
	struct call c = {.slot = i};
	pthread_t t;
	int unacked = s->n, told = hears(i) && (is_datagram(s->id) || s->state != RESPONSE || s->id->qp || 1);
	free_own(s);
	if (s->id->qp)
		rdma_destroy_qp(s->id);
	if (s->state == LISTENING)
		listener_gone = 1;
	CHECK(!pthread_create(&t, NULL, destroy_thread, &c));
	if (unacked) {
		usleep(20000);
		say("destroy_id %d %s", i, c.done ? "does not wait" : "waits");
		ack(i);
	} else {
		say("destroy_id %d", i);
	}
	pthread_join(t, NULL);
	errno = c.error;
	say(" = %s\n", result(c.result));
	memset(s, 0, sizeof *s);
	settle(told);
}

static void destroy_(int i)
{
	int told = hears(i);
	int r = destroy(i);
	say("destroy_id %d = %s\n", i, result(r));
	settle(told);
}

// close_channel closes a channel and its IDs. To the peers, this is the exit of a program.
static void close_channel(void)
{
	int c = rnd(CHANNELS), told = 0;
	for (int i = 0; i < SLOTS; i++)
		if (slots[i].id && slots[i].channel == c) {
			ack(i);
			free_own(&slots[i]);
			if (slots[i].id->qp)
				rdma_destroy_qp(slots[i].id);
			if (slots[i].state == LISTENING)
				listener_gone = 1;
			told += hears(i) && slots[slots[i].peer].channel != c;
		}
	rdma_destroy_event_channel(channels[c]); // this leaks the memory of the IDs
	for (int i = 0; i < SLOTS; i++)
		if (slots[i].id && slots[i].channel == c)
			memset(&slots[i], 0, sizeof slots[i]);
	CHECK(channels[c] = rdma_create_event_channel());
	CHECK(!fcntl(channels[c]->fd, F_SETFL, O_NONBLOCK));
	say("close channel %d\n", c);
	settle(told);
}

static void get_events(void)
{
	say("get_events\n");
	take(owed);
	owed = 0;
}

// Blocking calls of IDs without a channel. A thread makes them while the other sides continue.

struct sync {
	struct rdma_cm_id *id;
	int what, param;
	uint32_t qpn;
	char text[400];
	int n;
	volatile int done, failed;
};

#define NOTE(...) (y->n += snprintf(y->text + y->n, sizeof y->text - y->n, __VA_ARGS__))

static void *sync_thread(void *p)
{
	struct sync *y = p;
	struct rdma_cm_id *request = NULL;
	uint8_t b[1] = {7};
	struct rdma_conn_param cp = {.private_data = b, .private_data_len = 1, .retry_count = 7, .rnr_retry_count = 7, .qp_num = y->qpn};
	int r;
	switch (y->what) {
	case 0: // connect
		r = rdma_connect(y->id, &cp);
		NOTE(" connect %s", result(r));
		y->failed = r;
		if (y->id->event) {
			NOTE(" event %s status %d", event_names[y->id->event->event], y->id->event->status);
		}
		if (!r && !is_datagram(y->id)) {
			r = rdma_disconnect(y->id);
			NOTE(" disconnect %s", result(r));
		}
		break;
	case 1: // listen, and accept a request
		r = rdma_get_request(y->id, &request);
		NOTE(" get_request %s", result(r));
		if (r)
			break;
		NOTE(" data %d", is_datagram(request) ? request->event->param.ud.private_data_len : request->event->param.conn.private_data_len);
		if (y->param) {
			r = rdma_accept(request, &cp);
			NOTE(" accept %s", result(r));
		} else {
			r = rdma_reject(request, b, 1);
			NOTE(" reject %s", result(r));
		}
		if (request->qp)
			rdma_destroy_qp(request);
		rdma_destroy_ep(request);
	}
	y->done = 1;
	return NULL;
}

static void numeric(int what, int port, char *host, char *service)
{
	struct sockaddr_storage a;
	struct sockaddr *s = address(what, port, &a);
	CHECK(!getnameinfo(s, sizeof a, host, 64, service, 16, NI_NUMERICHOST | NI_NUMERICSERV));
}

// sync_client creates an endpoint that connects to a listener, which answers.
static void sync_client(int listener)
{
	struct sync y = {.what = 0};
	struct rdma_addrinfo hints = {.ai_port_space = slots[listener].ps}, *res;
	struct ibv_qp_init_attr a = {.cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1}};
	char host[64], service[16];
	int port = rnd(5) ? 0 : 2, with_qp = rnd(3) > 0, answer = rnd(3), before = SLOTS;
	hints.ai_qp_type = a.qp_type = hints.ai_port_space == RDMA_PS_UDP || hints.ai_port_space == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC;
	numeric(family_of_walk ? OWN6 : OWN4, port, host, service);
	say("sync client port %s qp %d answer %d:", port_names[port], with_qp, answer);
	int r = rdma_getaddrinfo(host, service, &hints, &res);
	say(" getaddrinfo %s", result(r));
	if (!r) {
		r = rdma_create_ep(&y.id, res, NULL, with_qp ? &a : NULL);
		say(" create_ep %s\n", result(r));
		rdma_freeaddrinfo(res);
	}
	if (r) {
		say("\n");
		return;
	}
	pthread_t t;
	y.qpn = next_qpn++;
	CHECK(!pthread_create(&t, NULL, sync_thread, &y));
	for (long end = now() + 6000; !y.done && now() < end;) {
		for (int c = 0; c < CHANNELS; c++)
			drain(c);
		for (before = MADE; before < SLOTS; before++)
			if (slots[before].id && slots[before].state == REQUEST && slots[before].peer < 0) {
				struct rdma_conn_param cp = {.retry_count = 7, .qp_num = next_qpn++};
				slots[before].state = answer == 1 ? OVER : ACCEPTED;
				if (answer == 0)
					r = rdma_accept(slots[before].id, &cp), say("  accept %d %s\n", before, result(r));
				else if (answer == 1)
					r = rdma_reject(slots[before].id, NULL, 0), say("  reject %d %s\n", before, result(r));
				else
					r = destroy(before), say("  destroy_id %d %s\n", before, result(r));
			}
		usleep(2000);
	}
	if (!y.done) {
		say("  the call does not return\n");
		fflush(trace);
		return;
	}
	pthread_join(t, NULL);
	int up = 0;
	for (int i = MADE; i < SLOTS; i++)
		up += slots[i].id && slots[i].state == ACCEPTED && slots[i].peer < 0;
	take(!is_datagram(y.id) && up && !y.failed);
	say("  sync:%s\n", y.text);
	if (y.id->qp)
		rdma_destroy_qp(y.id);
	rdma_destroy_ep(y.id);
	take(0);
}

// sync_server creates an endpoint that listens and accepts one request; the client is a slot.
static void sync_server(int i)
{
	struct sync y = {.what = 1, .param = rnd(2)};
	struct slot *s = &slots[i];
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = s->ps}, *res;
	char host[64], service[16];
	struct sockaddr_storage a;
	int own = family_of_walk ? OWN6 : OWN4, with_qp = rnd(2);
	struct ibv_qp_init_attr qa = {.cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1}};
	hints.ai_qp_type = qa.qp_type = s->ps == RDMA_PS_UDP || s->ps == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC;
	numeric(own, 3, host, service);
	say("sync server qp %d accepts %d client %d:", with_qp, y.param, i);
	int r = rdma_getaddrinfo(host, service, &hints, &res);
	say(" getaddrinfo %s", result(r));
	if (r) {
		say("\n");
		return;
	}
	r = rdma_create_ep(&y.id, res, NULL, with_qp ? &qa : NULL);
	say(" create_ep %s", result(r));
	rdma_freeaddrinfo(res);
	if (r) {
		say("\n");
		return;
	}
	r = rdma_listen(y.id, 4);
	say(" listen %s\n", result(r));
	if (!r) {
		r = rdma_resolve_addr(s->id, NULL, address(own, 3, &a), 2000);
		say("  resolve_addr %d %s\n", i, result(r));
		if (!r) {
			take(1);
			r = rdma_resolve_route(s->id, 2000);
			take(r ? 0 : 1);
			struct rdma_conn_param cp = {.retry_count = 7, .qp_num = s->qpn = next_qpn++};
			r = rdma_connect(s->id, &cp);
			say("  connect %d %s\n", i, result(r));
			if (!r) {
				pthread_t t;
				s->state = CONNECTING;
				y.qpn = next_qpn++;
				CHECK(!pthread_create(&t, NULL, sync_thread, &y));
				for (long end = now() + 6000; !y.done && now() < end; usleep(2000)) {
					for (int c = 0; c < CHANNELS; c++)
						drain(c);
					if (s->state == RESPONSE) {
						r = rdma_establish(s->id);
						say("  establish %d %s\n", i, result(r));
						s->state = CONNECTED;
					}
				}
				if (!y.done) {
					say("  the call does not return\n");
					return;
				}
				pthread_join(t, NULL);
				take(s->state != OVER && !(is_datagram(s->id) && s->state == CONNECTED));
				say("  sync:%s\n", y.text);
			}
		}
	}
	rdma_destroy_ep(y.id);
	listener_gone = 1;
	take(0);
}

// step executes one step.
static void step(void)
{
	static void (*const any[])(int) = {
		bind_addr, listen_, resolve_addr, resolve_route, create_qp, own_qp, init_qp_attr, connect_, accept_, reject, disconnect, establish,
		notify, migrate, set_option, join, leave, addresses, disconnect_both, destroy_, destroy_waiting,
	};
	if (lazy && !rnd(3))
		return get_events();
	if (!rnd(70))
		return close_channel();
	int i = rnd(SLOTS), tries = 0;
	while (!slots[i].id && i >= MADE && tries++ < 4)
		i = rnd(SLOTS);
	struct slot *s = &slots[i];
	if (!s->id) {
		if (i < MADE)
			return create(i);
		return get_events();
	}
	if (!rnd(3))
		return any[rnd(LEN(any))](i);
	if (!rnd(6))
		return rnd(2) ? init_qp_attr(i) : addresses(i);
	if (!lazy && !rnd(40) && s->state == LISTENING)
		return sync_client(i);
	if (!lazy && !rnd(16) && s->state == IDLE)
		return sync_server(i);
	switch (s->state) {
	case IDLE:
		return i <= 1 ? bind_addr(i) : rnd(8) ? resolve_addr(i) : rnd(2) ? bind_addr(i) : set_option(i);
	case BOUND:
		return i <= 1 ? listen_(i) : rnd(3) ? resolve_addr(i) : is_datagram(s->id) ? join(i) : listen_(i);
	case LISTENING:
		return rnd(3) || lazy ? get_events() : set_option(i);
	case ADDR:
		return is_datagram(s->id) && !rnd(4) ? join(i) : rnd(4) ? resolve_route(i) : create_qp(i);
	case ROUTE:
		return !s->id->qp && !s->own && rnd(2) ? rnd(2) ? create_qp(i) : own_qp(i) : rnd(8) ? connect_(i) : set_option(i);
	case CONNECTING:
		return get_events();
	case RESPONSE:
		return rnd(3) ? establish(i) : rnd(2) ? reject(i) : init_qp_attr(i);
	case REQUEST:
		if (!s->id->qp && !s->own && rnd(2))
			return rnd(2) ? create_qp(i) : own_qp(i);
		return rnd(4) ? accept_(i) : rnd(2) ? reject(i) : destroy_(i);
	case ACCEPTED:
		return rnd(3) ? get_events() : notify(i);
	case CONNECTED:
		return rnd(3) ? init_qp_attr(i) : rnd(3) ? disconnect(i) : rnd(2) ? disconnect_both(i) : destroy_(i);
	case OVER:
		return rnd(2) ? destroy_(i) : rnd(2) ? disconnect(i) : destroy_waiting(i);
	default:
		return;
	}
}

static void walk(uint64_t seed, const char *without)
{
	uint8_t left_out[256] = {0};
	for (const char *p = without; p && (p = strchr(p, ',')); p++)
		left_out[atoi(p + 1) & 255] = 1;
	random_state = seed * 0xd1342543de82ef95;
	random64();
	lazy = rnd(4) == 0;
	space_of_walk = ONE_OF(RDMA_PS_TCP, RDMA_PS_TCP, RDMA_PS_TCP, RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_UDP, RDMA_PS_UDP, RDMA_PS_IB);
	family_of_walk = rnd(3) == 0;
	port_base = 2000 + 4 * (seed % 7500);
	next_qpn = 0x800000 | (seed * 128 & 0x7fffff);
	listener_gone = owed = 0;
	say("walk %llu %s space %#x family %d\n", (unsigned long long)seed, lazy ? "lazy" : "eager", space_of_walk, family_of_walk ? 6 : 4);
	for (int c = 0; c < CHANNELS; c++) {
		CHECK(channels[c] = rdma_create_event_channel());
		CHECK(!fcntl(channels[c]->fd, F_SETFL, O_NONBLOCK));
	}
	for (int k = 0; k < steps; k++) {
		random_state = (seed * 0xd1342543de82ef95) ^ ((k + 1) * 0x2545f4914f6cdd1d);
		random64();
		if (left_out[k])
			continue;
		say("%d ", k);
		long before = ftell(trace);
		step();
		if (ftell(trace) == before)
			say("-\n");
	}
	say("end\n");
	take(0);
	for (int i = 0; i < SLOTS; i++)
		if (slots[i].id)
			destroy(i);
	for (int c = 0; c < CHANNELS; c++)
		rdma_destroy_event_channel(channels[c]);
}

static void hangs(int sig)
{
	static const char text[] = "\nthe walk hangs\n";
	fflush(trace);
	if (write(2, out, out_len) < 0 || write(2, text, sizeof text - 1) < 0)
		_exit(3);
	_exit(3);
}

struct job {
	uint64_t seed;
	char without[256];
};

// work executes the walks of a worker, beginning with the given one. A blocked walk ends the process.
static int work(struct job *jobs, int n, int worker, int workers, const char *dir, int from)
{
	char file[512], progress[512];
	snprintf(file, sizeof file, "%s/%d", dir, worker);
	snprintf(progress, sizeof progress, "%s/%d.at", dir, worker);
	for (int k = from; k < n; k += workers) {
		FILE *p = fopen(progress, "w");
		CHECK(p);
		fprintf(p, "%d\n", k);
		fclose(p);
		CHECK(trace = open_memstream(&out, &out_len));
		alarm(60);
		walk(jobs[k].seed, jobs[k].without);
		alarm(0);
		fclose(trace);
		FILE *f = fopen(file, "a");
		CHECK(f && fwrite(out, 1, out_len, f) == out_len && !fclose(f));
		free(out);
		memset(slots, 0, sizeof slots);
	}
	unlink(progress);
	return 0;
}

int main(int argc, char **argv)
{
	int workers = 1, o, n = 0;
	while ((o = getopt(argc, argv, "w:q:n:")) != -1)
		switch (o) {
		case 'w': workers = atoi(optarg); break;
		case 'q': quiet = atoi(optarg); break;
		case 'n': steps = atoi(optarg); break;
		default: return 2;
		}
	argv += optind;
	argc -= optind;
	if (argc != 5 && argc != 6) {
		fprintf(stderr, "usage: cmwalk [-w WORKERS] [-q QUIET] [-n STEPS] IPV4 IPV6 IF DIR FIRST COUNT | -\n");
		return 2;
	}
	struct sockaddr_in *v4 = (void *)&own4;
	struct sockaddr_in6 *v6 = (void *)&own6;
	v4->sin_family = AF_INET;
	v6->sin6_family = AF_INET6;
	CHECK(inet_pton(AF_INET, argv[0], &v4->sin_addr) == 1 && inet_pton(AF_INET6, argv[1], &v6->sin6_addr) == 1);
	CHECK(scope = if_nametoindex(argv[2]));
	struct job *jobs = NULL;
	if (argc == 6) {
		n = atoi(argv[5]);
		CHECK(jobs = calloc(n, sizeof *jobs));
		for (int i = 0; i < n; i++)
			jobs[i].seed = strtoull(argv[4], NULL, 0) + i;
	} else {
		struct job j;
		char line[512];
		while (fgets(line, sizeof line, stdin)) {
			memset(&j, 0, sizeof j);
			if (sscanf(line, "%ju %255s", &j.seed, j.without) < 1)
				continue;
			CHECK(jobs = realloc(jobs, (n + 1) * sizeof *jobs));
			jobs[n++] = j;
		}
	}
	signal(SIGALRM, hangs);
	pid_t *pids = calloc(workers, sizeof *pids);
	CHECK(pids);
	for (int w = 0; w < workers; w++)
		if (!(pids[w] = fork()))
			_exit(work(jobs, n, w, workers, argv[3], w));
	int failed = 0;
	for (int left = workers; left > 0;) {
		int status;
		pid_t p = wait(&status);
		CHECK(p > 0);
		for (int w = 0; w < workers; w++) {
			if (pids[w] != p)
				continue;
			left--;
			if (!status)
				break;
			char progress[512];
			int k = -1;
			snprintf(progress, sizeof progress, "%s/%d.at", argv[3], w);
			FILE *f = fopen(progress, "r");
			if (!f || fscanf(f, "%d", &k) != 1)
				k = n;
			if (f)
				fclose(f);
			char file[512];
			snprintf(file, sizeof file, "%s/%d", argv[3], w);
			if (k < n && (f = fopen(file, "a"))) {
				fprintf(f, "walk %ju failed: status %#x\n", (uintmax_t)jobs[k].seed, status);
				fclose(f);
			}
			if (k >= n || ++failed > 100)
				break;
			left++;
			if (!(pids[w] = fork()))
				_exit(work(jobs, n, w, workers, argv[3], k + workers));
		}
	}
	free(pids);
	free(jobs);
	return failed > 0;
}
