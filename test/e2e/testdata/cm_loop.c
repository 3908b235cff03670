// An event loop with few slots in a program with other open files.
//
//   cm_loop SLOTS OWN    OWN files are open first; all descriptors are below SLOTS, unless that is 0
#include "verbs.h"
#include <poll.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <rdma/rdma_cma.h>

struct slot {
	int used;
	uint32_t mask;
};

static int slots;
static struct slot *table;

// enter adds a descriptor to the loop. Like a loop with a table, it fails for high numbers.
static void enter(int ep, int fd)
{
	struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
	if (slots) {
		if (fd >= slots)
			fprintf(stderr, "descriptor %d does not fit into %d slots\n", fd, slots);
		CHECK(fd < slots && !table[fd].used);
		table[fd].used = 1;
	}
	CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	slots = atoi(argv[1]);
	table = calloc(slots + 1, sizeof *table);
	int own = atoi(argv[2]), *files = calloc(own + 1, sizeof *files);
	for (int i = 0; i < own; i++)
		CHECK((files[i] = eventfd(0, EFD_NONBLOCK)) >= 0);

	struct rlimit before, after;
	CHECK(!getrlimit(RLIMIT_NOFILE, &before));
	struct ibv_context *ctx = open_device();
	struct rdma_event_channel *channels[20];
	struct rdma_cm_id *id;
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = 1};
	int ep = epoll_create1(0);
	CHECK(ep >= 0);
	for (int i = 0; i < 20; i++) {
		CHECK(channels[i] = rdma_create_event_channel());
		enter(ep, channels[i]->fd);
	}
	enter(ep, ctx->async_fd);
	CHECK(!slots || ctx->cmd_fd < slots);

	int fd = channels[0]->fd;
	CHECK(!rdma_create_id(channels[0], &id, NULL, RDMA_PS_TCP) && !rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000));
	struct pollfd p = {fd, POLLIN};
	CHECK(poll(&p, 1, 10000) == 1 && p.revents == POLLIN);
	struct epoll_event e;
	CHECK(epoll_wait(ep, &e, 1, 10000) == 1 && e.data.fd == fd);
	if (fd < FD_SETSIZE) {
		struct timeval at_once = {0};
		fd_set set;
		FD_ZERO(&set);
		FD_SET(fd, &set);
		FD_SET(ctx->async_fd, &set);
		CHECK(select(FD_SETSIZE, &set, NULL, NULL, NULL) == 1 && FD_ISSET(fd, &set));
		FD_ZERO(&set);
		FD_SET(ctx->async_fd, &set);
		CHECK(select(FD_SETSIZE, &set, NULL, NULL, &at_once) == 0);
		FD_SET(ctx->cmd_fd, &set);
		CHECK(select(FD_SETSIZE, NULL, &set, NULL, &at_once) >= 1 && FD_ISSET(ctx->cmd_fd, &set));
	}
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channels[0], &event) && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	rdma_ack_cm_event(event);
	CHECK(!rdma_destroy_id(id));

	// The program keeps its own files, also at descriptor numbers of device files, and its limit.
	for (uint64_t i = 0, n; i < own; i++) {
		n = i + 1;
		CHECK(write(files[i], &n, 8) == 8);
	}
	for (uint64_t i = 0, n; i < own; i++)
		CHECK(read(files[i], &n, 8) == 8 && n == i + 1);
	CHECK(!getrlimit(RLIMIT_NOFILE, &after) && after.rlim_cur == before.rlim_cur && after.rlim_max == before.rlim_max);
	for (int i = 0; i < 20; i++)
		rdma_destroy_event_channel(channels[i]);
	CHECK(!ibv_close_device(ctx));
	puts("ok");
	return 0;
}
