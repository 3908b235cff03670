// A program without libibverbs, for C libraries without one, such as musl. It uses the kernel's user ABI by write() and
// ioctl() on the device file, and fills the rings of rxe itself. One queue pair, connected to itself, executes an RDMA
// WRITE.
#include <errno.h>
#include <fcntl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <rdma/rdma_user_rxe.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(what)                                                                              \
	do {                                                                                     \
		if (!(what)) {                                                                   \
			fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
			exit(1);                                                                 \
		}                                                                                \
	} while (0)

// Parts of enum ib_qp_type, ib_qp_state, ib_access_flags, ib_qp_attr_mask and ib_wr_opcode. No header of the user ABI
// has all of them.
enum { RC = 2, INIT = 1, RTR = 2, RTS = 3, LOCAL_WRITE = 1, REMOTE_WRITE = 2, RDMA_WRITE = 0, SIGNALED = 2 };
enum {
	STATE = 1 << 0, ACCESS = 1 << 3, PKEY_INDEX = 1 << 4, PORT = 1 << 5, AV = 1 << 7, PATH_MTU = 1 << 8, TIMEOUT = 1 << 9,
	RETRY_CNT = 1 << 10, RNR_RETRY = 1 << 11, RQ_PSN = 1 << 12, MAX_RD = 1 << 13, MIN_RNR = 1 << 15, SQ_PSN = 1 << 16, MAX_DEST_RD = 1 << 17,
	DEST_QPN = 1 << 20,
};

static int fd;

// command executes a command by write(). The response goes to the address at the start of the command.
static int command(unsigned number, void *body, size_t size, void *response, size_t room)
{
	struct {
		struct ib_uverbs_cmd_hdr hdr;
		char body[256];
	} cmd = {{number, (sizeof cmd.hdr + size) / 4, room / 4}};
	if (response)
		memcpy(body, &(uint64_t){(uintptr_t)response}, 8);
	memcpy(cmd.body, body, size);
	ssize_t n = sizeof cmd.hdr + size;
	return write(fd, &cmd, n) == n ? 0 : -1;
}

// gid queries a GID by a method, with ioctl().
static void gid(uint32_t index, struct ib_uverbs_gid_entry *entry)
{
	struct {
		struct ib_uverbs_ioctl_hdr hdr;
		struct ib_uverbs_attr attrs[4];
	} cmd = {.hdr = {.object_id = UVERBS_OBJECT_DEVICE, .method_id = UVERBS_METHOD_QUERY_GID_ENTRY, .num_attrs = 4, .driver_id = RDMA_DRIVER_RXE,
		.length = sizeof cmd}};
	struct {
		uint16_t id, len;
		uint64_t data;
	} attrs[4] = {
		{UVERBS_ATTR_QUERY_GID_ENTRY_PORT, 8, 1},
		{UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, 8, index},
		{UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, 4, 0},
		{UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, sizeof *entry, (uintptr_t)entry},
	};
	for (int i = 0; i < 4; i++) {
		cmd.attrs[i].attr_id = attrs[i].id;
		cmd.attrs[i].len = attrs[i].len;
		cmd.attrs[i].flags = UVERBS_ATTR_F_MANDATORY;
		cmd.attrs[i].data = attrs[i].data;
	}
	CHECK(!ioctl(fd, RDMA_VERBS_IOCTL, &cmd));
}

static struct rxe_queue_buf *map(struct mminfo mi)
{
	void *m = mmap(NULL, mi.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, mi.offset);
	CHECK(m != MAP_FAILED);
	return m;
}

static void *slot(struct rxe_queue_buf *q, uint32_t i) { return q->data + ((size_t)(i & q->index_mask) << q->log2_elem_size); }

int main(int argc, char **argv)
{
	static char buf[8192] = "written by a program without a library";
	CHECK(argc == 2);
	fd = open(argv[1], O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);

	struct ib_uverbs_get_context get = {};
	struct ib_uverbs_get_context_resp context;
	CHECK(!command(IB_USER_VERBS_CMD_GET_CONTEXT, &get, sizeof get, &context, sizeof context));
	CHECK(context.num_comp_vectors > 0);
	struct ib_uverbs_query_device ask = {};
	struct ib_uverbs_query_device_resp device;
	CHECK(!command(IB_USER_VERBS_CMD_QUERY_DEVICE, &ask, sizeof ask, &device, sizeof device));
	CHECK(device.max_qp > 0 && device.phys_port_cnt == 1 && device.max_sge >= 1);
	struct ib_uverbs_alloc_pd alloc = {};
	struct ib_uverbs_alloc_pd_resp pd;
	CHECK(!command(IB_USER_VERBS_CMD_ALLOC_PD, &alloc, sizeof alloc, &pd, sizeof pd));
	struct ib_uverbs_reg_mr reg = {.start = (uintptr_t)buf, .length = sizeof buf, .hca_va = (uintptr_t)buf, .pd_handle = pd.pd_handle,
		.access_flags = LOCAL_WRITE | REMOTE_WRITE};
	struct ib_uverbs_reg_mr_resp mr;
	CHECK(!command(IB_USER_VERBS_CMD_REG_MR, &reg, sizeof reg, &mr, sizeof mr));

	// The response of the core, followed by that of the driver.
	struct {
		struct ib_uverbs_create_cq_resp core;
		struct mminfo mi;
	} cq;
	struct ib_uverbs_create_cq create = {.cqe = 10, .comp_channel = -1};
	CHECK(!command(IB_USER_VERBS_CMD_CREATE_CQ, &create, sizeof create, &cq, sizeof cq));
	CHECK(cq.core.cqe >= 10);
	struct {
		struct ib_uverbs_create_qp_resp core;
		struct rxe_create_qp_resp driver;
	} qp;
	struct ib_uverbs_create_qp make = {.pd_handle = pd.pd_handle, .send_cq_handle = cq.core.cq_handle, .recv_cq_handle = cq.core.cq_handle,
		.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .qp_type = RC};
	CHECK(!command(IB_USER_VERBS_CMD_CREATE_QP, &make, sizeof make, &qp, sizeof qp));
	struct rxe_queue_buf *done = map(cq.mi), *sends = map(qp.driver.sq_mi);

	struct ib_uverbs_gid_entry own;
	gid(1, &own);
	struct ib_uverbs_modify_qp m = {.qp_handle = qp.core.qp_handle, .qp_state = INIT, .attr_mask = STATE | ACCESS | PKEY_INDEX | PORT,
		.qp_access_flags = LOCAL_WRITE | REMOTE_WRITE, .port_num = 1};
	CHECK(!command(IB_USER_VERBS_CMD_MODIFY_QP, &m, sizeof m, NULL, 0));
	m = (struct ib_uverbs_modify_qp){.qp_handle = qp.core.qp_handle, .qp_state = RTR, .path_mtu = 3, .dest_qp_num = qp.core.qpn,
		.attr_mask = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD | MIN_RNR, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.dest = {.is_global = 1, .port_num = 1, .sgid_index = 1, .hop_limit = 1}};
	memcpy(m.dest.dgid, own.gid, sizeof m.dest.dgid);
	CHECK(!command(IB_USER_VERBS_CMD_MODIFY_QP, &m, sizeof m, NULL, 0));
	m = (struct ib_uverbs_modify_qp){.qp_handle = qp.core.qp_handle, .qp_state = RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.attr_mask = STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_RD, .max_rd_atomic = 1};
	CHECK(!command(IB_USER_VERBS_CMD_MODIFY_QP, &m, sizeof m, NULL, 0));

	for (uint32_t i = 0; i < 20; i++) { // around both rings
		char *from = buf, *to = buf + 4096;
		from[0] = 'A' + i;
		struct rxe_send_wqe *wqe = slot(sends, sends->producer_index);
		memset(wqe, 0, sizeof *wqe);
		wqe->wr.wr_id = 100 + i;
		wqe->wr.opcode = RDMA_WRITE;
		wqe->wr.send_flags = SIGNALED;
		wqe->wr.wr.rdma.remote_addr = (uintptr_t)to;
		wqe->wr.wr.rdma.rkey = mr.rkey;
		wqe->dma.length = wqe->dma.resid = 100;
		wqe->dma.num_sge = 1;
		wqe->dma.sge[0] = (struct rxe_sge){.addr = (uintptr_t)from, .length = 100, .lkey = mr.lkey};
		__atomic_store_n(&sends->producer_index, (sends->producer_index + 1) & sends->index_mask, __ATOMIC_RELEASE);
		struct ib_uverbs_post_send ring = {.qp_handle = qp.core.qp_handle};
		struct ib_uverbs_post_send_resp bad;
		CHECK(!command(IB_USER_VERBS_CMD_POST_SEND, &ring, sizeof ring, &bad, sizeof bad));
		while (__atomic_load_n(&done->producer_index, __ATOMIC_ACQUIRE) == done->consumer_index)
			;
		struct ib_uverbs_wc *wc = slot(done, done->consumer_index);
		CHECK(wc->wr_id == 100 + i && wc->status == 0 && wc->qp_num == qp.core.qpn);
		__atomic_store_n(&done->consumer_index, (done->consumer_index + 1) & done->index_mask, __ATOMIC_RELEASE);
		CHECK(!memcmp(from, to, 100));
	}

	struct ib_uverbs_reg_mr nothing = {.start = 1 << 12, .length = 4096, .hca_va = 1 << 12, .pd_handle = pd.pd_handle, .access_flags = LOCAL_WRITE};
	CHECK(command(IB_USER_VERBS_CMD_REG_MR, &nothing, sizeof nothing, &mr, sizeof mr) && errno == EFAULT);
	CHECK(!close(fd));
	printf("ok\n");
	return 0;
}
