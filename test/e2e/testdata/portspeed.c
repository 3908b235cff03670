// A program that waits for changes of the speed of its port. For each of its arguments it receives the event, and prints
// the width, the speed and the effective speed of the port. The constants are of rdma-core 62 and later.
#include "verbs.h"

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>

#define EVENT_DEVICE_SPEED_CHANGE 20 // IBV_EVENT_DEVICE_SPEED_CHANGE
#define METHOD_QUERY_PORT_SPEED 7    // UVERBS_METHOD_QUERY_PORT_SPEED
#define ATTR_PORT_NUM 0              // UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM
#define ATTR_RESP 1                  // UVERBS_ATTR_QUERY_PORT_SPEED_RESP

// query_port_speed makes the call of ibv_query_port_speed, which the rxe provider does not make.
static int query_port_speed(struct ibv_context *ctx, uint64_t port, uint64_t *speed)
{
	struct {
		struct ib_uverbs_ioctl_hdr hdr;
		struct ib_uverbs_attr attrs[2];
	} c = {
		.hdr = {.length = sizeof c, .object_id = UVERBS_OBJECT_DEVICE, .method_id = METHOD_QUERY_PORT_SPEED,
			.num_attrs = 2, .driver_id = RDMA_DRIVER_RXE},
		.attrs = {
			{.attr_id = ATTR_PORT_NUM, .len = 8, .flags = UVERBS_ATTR_F_MANDATORY, .data = port},
			{.attr_id = ATTR_RESP, .len = 8, .flags = UVERBS_ATTR_F_MANDATORY, .data = (uintptr_t)speed},
		},
	};
	return ioctl(ctx->cmd_fd, RDMA_VERBS_IOCTL, &c);
}

static void print_speed(struct ibv_context *ctx)
{
	struct ibv_port_attr port;
	uint64_t speed = 0;
	CHECK(!ibv_query_port(ctx, 1, &port));
	CHECK(!query_port_speed(ctx, 1, &speed));
	CHECK(query_port_speed(ctx, 2, &speed) && errno == EINVAL);
	printf("width %d speed %d effective %llu\n", port.active_width, port.active_speed, (unsigned long long)speed);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct ibv_context *ctx = open_device();
	int events = argc > 1 ? atoi(argv[1]) : 0;
	print_speed(ctx);
	for (int i = 0; i < events; i++) {
		struct ibv_async_event e;
		CHECK(!ibv_get_async_event(ctx, &e));
		CHECK((int)e.event_type == EVENT_DEVICE_SPEED_CHANGE && e.element.port_num == 0);
		ibv_ack_async_event(&e);
		print_speed(ctx);
	}
	CHECK(!ibv_close_device(ctx));
	return 0;
}
