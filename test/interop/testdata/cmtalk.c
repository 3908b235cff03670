// cmtalk tests all ways in which a connection between two hosts can begin and end. It prints the events of the
// connection manager, one in a line. A line begins with the letter of its dialogue.
//
//   cmtalk -s ADDR tcp|udp    the passive side, which ends on request
//   cmtalk -c ADDR tcp|udp    the active side, which runs all dialogues
//
// The first byte of a request's private data is the letter of its dialogue:
//
//   e, f   no private data, and the maximum; the active side disconnects
//   s      the passive side disconnects
//   x, y   the active side's ID is destroyed while connected; the passive side's ID is destroyed while connected
//   r, R   the passive side rejects, with the maximum of private data, and with none
//   d      the passive side destroys the new ID without an answer
//   n      no listener
//   h, q   probe for the server, and request to end; neither is printed
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

#define CHECK(x) do { if (!(x)) { printf("cmtalk.c:%d: %s: %m\n", __LINE__, #x); exit(1); } } while (0)

static const char *port = "7479";
static int udp;
static struct rdma_event_channel *channel;

// pattern fills a buffer with n bytes, which begin with the letter.
static void pattern(uint8_t *b, int n, char letter)
{
	for (int i = 0; i < n; i++)
		b[i] = letter + i * 7;
}

// data prints the number of bytes of the pattern, and the number of zeros after it.
static const char *data(const void *at, int n)
{
	static char text[64];
	const uint8_t *b = at;
	int k = 0, zeros = 0;
	while (k < n && b[k] == (uint8_t)(b[0] + k * 7) && b[0])
		k++;
	while (k + zeros < n && !b[k + zeros])
		zeros++;
	snprintf(text, sizeof text, "data %d+%d%s", k, zeros, k + zeros < n ? " and what nobody sent" : "");
	return text;
}

static void show(char letter, const struct rdma_cm_event *e)
{
	const char *d = udp ? data(e->param.ud.private_data, e->param.ud.private_data_len) :
		data(e->param.conn.private_data, e->param.conn.private_data_len);
	printf("%c %s status %d %s", letter, rdma_event_str(e->event), e->status, d);
	if (udp && e->event == RDMA_CM_EVENT_ESTABLISHED)
		printf(" Q_Key %#x", e->param.ud.qkey);
	if (!udp && (e->event == RDMA_CM_EVENT_CONNECT_REQUEST || e->event == RDMA_CM_EVENT_ESTABLISHED))
		printf(" depths %d %d", e->param.conn.responder_resources, e->param.conn.initiator_depth);
	printf("\n");
	fflush(stdout);
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr a = {
		.qp_type = udp ? IBV_QPT_UD : IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	};
	CHECK(!rdma_create_qp(id, NULL, &a));
}

static struct rdma_conn_param params(uint8_t *b, int n, char letter)
{
	pattern(b, n, letter);
	return (struct rdma_conn_param){
		.private_data = n ? b : NULL, .private_data_len = n, .responder_resources = 3, .initiator_depth = 2, .retry_count = 7,
		.rnr_retry_count = 7,
	};
}

static struct addrinfo *address(const char *host, const char *service)
{
	struct addrinfo *ai, hints = {.ai_socktype = SOCK_STREAM};
	CHECK(!getaddrinfo(host, service, &hints, &ai));
	return ai;
}

static void serve(const char *host)
{
	uint8_t b[256];
	struct rdma_cm_id *listener;
	struct rdma_cm_event *e;
	CHECK(!rdma_create_id(channel, &listener, NULL, udp ? RDMA_PS_UDP : RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, address(host, port)->ai_addr));
	CHECK(!rdma_listen(listener, 8));
	for (int more = 1; more;) {
		CHECK(!rdma_get_cm_event(channel, &e));
		struct rdma_cm_id *id = e->id;
		char letter = (intptr_t)id->context;
		int gone = 0;
		switch (e->event) {
		case RDMA_CM_EVENT_CONNECT_REQUEST: {
			const uint8_t *d = udp ? e->param.ud.private_data : e->param.conn.private_data;
			letter = d && d[0] ? d[0] : 'e';
			id->context = (void *)(intptr_t)letter;
			if (letter != 'h' && letter != 'q')
				show(letter, e);
			int full = udp ? 136 : strchr("rR", letter) ? 148 : 196;
			switch (letter) {
			case 'h': case 'q': case 'R':
				CHECK(!rdma_reject(id, NULL, 0));
				more = letter != 'q';
				gone = 1;
				break;
			case 'r':
				pattern(b, full, 'r');
				CHECK(!rdma_reject(id, b, full));
				gone = 1;
				break;
			case 'd':
				gone = 1;
				break;
			default: {
				make_qp(id);
				struct rdma_conn_param p = params(b, letter == 'f' ? full : 0, letter);
				p.responder_resources = 2;
				p.initiator_depth = 1;
				CHECK(!rdma_accept(id, &p));
			}
			}
			break;
		}
		case RDMA_CM_EVENT_ESTABLISHED:
			show(letter, e);
			if (letter == 's')
				CHECK(!rdma_disconnect(id));
			gone = letter == 'y';
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			show(letter, e);
			if (letter != 's')
				rdma_disconnect(id);
			gone = 1;
			break;
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			break;
		default:
			show(letter, e);
		}
		CHECK(!rdma_ack_cm_event(e));
		if (gone) {
			if (id->qp)
				rdma_destroy_qp(id);
			CHECK(!rdma_destroy_id(id));
		}
	}
	CHECK(!rdma_destroy_id(listener));
}

// talk runs a dialogue, and returns the event that answers the request.
static enum rdma_cm_event_type talk(const char *host, char letter, int *status)
{
	uint8_t b[256];
	struct rdma_cm_id *id;
	struct rdma_cm_event *e;
	int quiet = letter == 'h' || letter == 'q', full = udp ? 180 : 56;
	enum rdma_cm_event_type answer = 0;
	CHECK(!rdma_create_id(channel, &id, NULL, udp ? RDMA_PS_UDP : RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, address(host, letter == 'n' ? "7999" : port)->ai_addr, 5000));
	for (int over = 0; !over;) {
		CHECK(!rdma_get_cm_event(channel, &e));
		enum rdma_cm_event_type event = e->event;
		int leave = 0;
		if (event > RDMA_CM_EVENT_ROUTE_RESOLVED && event != RDMA_CM_EVENT_TIMEWAIT_EXIT && !quiet)
			show(letter, e);
		if (event >= RDMA_CM_EVENT_CONNECT_RESPONSE && event <= RDMA_CM_EVENT_ESTABLISHED && !answer) {
			answer = event;
			*status = e->status;
		}
		CHECK(!rdma_ack_cm_event(e));
		switch (event) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			CHECK(!rdma_resolve_route(id, 5000));
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED: {
			make_qp(id);
			struct rdma_conn_param p = params(b, letter == 'e' ? 0 : letter == 'f' ? full : 1, letter);
			CHECK(!rdma_connect(id, &p));
			break;
		}
		case RDMA_CM_EVENT_ESTABLISHED:
			leave = udp || letter == 'x';
			if (!leave && strchr("ef", letter))
				CHECK(!rdma_disconnect(id));
			break;
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			rdma_disconnect(id);
			// fallthrough
		default:
			leave = 1;
		}
		over = leave;
	}
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
	return answer;
}

int main(int argc, char **argv)
{
	int status = 0;
	if (argc != 4 || (strcmp(argv[1], "-s") && strcmp(argv[1], "-c")) || (strcmp(argv[3], "tcp") && strcmp(argv[3], "udp"))) {
		fprintf(stderr, "usage: cmtalk -s|-c ADDR tcp|udp\n");
		return 2;
	}
	udp = !strcmp(argv[3], "udp");
	alarm(60);
	CHECK(channel = rdma_create_event_channel());
	if (!strcmp(argv[1], "-s")) {
		serve(argv[2]);
		return 0;
	}
	for (int i = 0; i < 100; i++) { // connections are rejected until the server listens
		enum rdma_cm_event_type answer = talk(argv[2], 'h', &status);
		if (udp ? answer == RDMA_CM_EVENT_UNREACHABLE && status == 2 : answer == RDMA_CM_EVENT_REJECTED && status == 28)
			break;
		usleep(200000);
	}
	for (const char *l = udp ? "efrRdn" : "efsxyrRdn"; *l; l++)
		talk(argv[2], *l, &status);
	talk(argv[2], 'q', &status);
	return 0;
}
