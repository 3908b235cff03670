#include "attack.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdarg.h>

static const struct {
	const char *name;
	int (*run)(int, char **);
} attacks[] = {
	{"neighbour", neighbour}, {"swap", swap}, {"stall-command", stall_command}, {"reuse", reuse},
	{"exec-region", exec_region}, {"victim", victim}, {"user-namespace", user_namespace}, {"read-only", read_only},
	{"stall-region", stall_region}, {"close-storm", close_storm}, {"slow-open", slow_open}, {"main-exit", main_exit},
	{"number-race", number_race}, {"paths", paths}, {"sessions", sessions}, {"exec-races", exec_races},
	{"descriptors", descriptors}, {"tree-writes", tree_writes}, {"tree-climb", tree_climb}, {"remap", remap}, {"stall-close", stall_close},
	{"hidden-execs", hidden_execs}, {"stall-stat", stall_stat}, {"impostor", impostor}, {"connections", connections}, {"unreceived", unreceived}, {"kept", kept}, {"kept-channels", kept_channels},
	{"unfinished", unfinished}, {"garbage", garbage}, {"attach", attach},
	{"stall-userfault", stall_userfault}, {"names", names}, {"lock-directories", lock_directories}, {"own-answers", own_answers}, {"thread-user", thread_user},
	{"flip-paths", flip_paths}, {"limits", limits}, {"recycle", recycle},
	{"swap-device", swap_device}, {"linger-netlink", linger_netlink}, {"linger-control", linger_control}, {"grow", grow},
	{"keep-descriptor", keep_descriptor}, {"give-device", give_device}, {"unread", unread}, {"subordinate", subordinate}, {"flood", flood},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof attacks / sizeof *attacks; i++)
		if (!strcmp(argv[1], attacks[i].name))
			return attacks[i].run(argc - 2, argv + 2);
	fprintf(stderr, "usage: attack NAME [ARGUMENT...]\n");
	return 2;
}

void say(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	putchar('\n');
	fflush(stdout);
}

// await_line waits for a line of the test. The end of the test ends the program.
void await_line(void)
{
	char c;
	do {
		if (read(0, &c, 1) != 1)
			exit(0);
	} while (c != '\n');
}

double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

char *map_at(char *at, size_t length)
{
	char *p = mmap(at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static void connect_loop(struct ibv_qp *qp, struct ibv_qp *to)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}}};
	CHECK(!ibv_query_gid(qp->context, 1, 1, &a.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

struct loop make_loop(void)
{
	struct loop l = {.ctx = open_device()};
	CHECK(l.pd = ibv_alloc_pd(l.ctx));
	CHECK(l.cq = ibv_create_cq(l.ctx, 64, NULL, NULL, 0));
	for (int i = 0; i < 2; i++)
		l.qp[i] = create_qp(l.pd, l.cq, NULL);
	for (int i = 0; i < 2; i++)
		connect_loop(l.qp[i], l.qp[1 - i]);
	l.buf = map_at(NULL, 4 * PAGE);
	CHECK(l.mr = ibv_reg_mr(l.pd, l.buf, 4 * PAGE, ALL));
	return l;
}

// renew replaces the queue pairs, because a queue pair in error cannot be used again.
void renew(struct loop *l)
{
	struct ibv_wc wc;
	while (ibv_poll_cq(l->cq, 1, &wc) > 0)
		;
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(l->qp[i]) && (l->qp[i] = create_qp(l->pd, l->cq, NULL)));
	for (int i = 0; i < 2; i++)
		connect_loop(l->qp[i], l->qp[1 - i]);
}

// share_loop gives a child the same objects, with memory of its own.
struct loop share_loop(struct loop *parent)
{
	struct loop l = *parent;
	l.buf = map_at(NULL, 4 * PAGE);
	l.mr = ibv_reg_mr(l.pd, l.buf, 4 * PAGE, ALL);
	if (!l.mr)
		say("child: register: %s", strerror(errno));
	return l;
}

void post(struct loop *l, enum ibv_wr_opcode op, char *at, unsigned length, void *remote, uint32_t rkey)
{
	struct ibv_sge sge = {(uintptr_t)at, length, l->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED}, *bad;
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = (uintptr_t)remote;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)remote;
		wr.wr.rdma.rkey = rkey;
	}
	CHECK(!ibv_post_send(l->qp[0], &wr, &bad));
}

// finish waits for a completion. It returns 0 after a timeout.
int finish(struct loop *l, double seconds, enum ibv_wc_status *status)
{
	struct ibv_wc wc;
	for (double end = now() + seconds;;) {
		int n = ibv_poll_cq(l->cq, 1, &wc);
		CHECK(n >= 0);
		if (n) {
			*status = wc.status;
			return 1;
		}
		if (now() > end)
			return 0;
		sched_yield();
	}
}

enum ibv_wc_status move(struct loop *l, enum ibv_wr_opcode op, char *at, unsigned length, void *remote, uint32_t rkey)
{
	enum ibv_wc_status s;
	post(l, op, at, length, remote, rkey);
	return finish(l, 30, &s) ? s : -1;
}

// put_command stores a command for a plain write(2), and returns the size of the command.
size_t put_command(char *at, unsigned command, const void *core, size_t core_size, size_t response)
{
	struct ib_uverbs_cmd_hdr h = {command, (sizeof h + core_size) / 4, response / 4};
	memcpy(at, &h, sizeof h);
	memcpy(at + sizeof h, core, core_size);
	return sizeof h + core_size;
}

int raw_command(int fd, unsigned command, const void *core, size_t core_size, size_t response)
{
	char b[512];
	return write(fd, b, put_command(b, command, core, core_size, response));
}

// listener_for installs a filter on the calling thread that traps one system call and RDMA_VERBS_IOCTL. It returns the
// listener.
int listener_for(long nr)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, VERBS_IOCTL, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = {sizeof f / sizeof *f, f};
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &p);
}
