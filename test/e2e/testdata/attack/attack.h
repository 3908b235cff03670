// Common functions of the attack programs. Each program prints its observations on standard output, one per line, and the
// test judges them. The exit code is 0 whether or not the attack succeeds, and 1 if a preparatory step fails.
#define _GNU_SOURCE
#include "../verbs.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

// The member of a request with the number of the control protocol, which the test passes.
#define PROTOCOL_OF(n) "\"Protocol\":" #n
#define PROTOCOL_AS(n) PROTOCOL_OF(n)
#define PROTOCOL PROTOCOL_AS(CONTROL_PROTOCOL)

// Addresses that are the same in every program here.
#define SECRET_AT ((char *)0x300000000)
#define ANSWER_AT ((char *)0x310000000)
#define PAGE 4096
#define VERBS_IOCTL _IOC(_IOC_READ | _IOC_WRITE, 0x1b, 1, 24) // RDMA_VERBS_IOCTL

// loop is two connected queue pairs of one context with memory of their own.
struct loop {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	char *buf;
	struct ibv_mr *mr;
};

struct loop make_loop(void);
struct loop share_loop(struct loop *);
void renew(struct loop *);
enum ibv_wc_status move(struct loop *, enum ibv_wr_opcode, char *at, unsigned length, void *remote, uint32_t rkey);
int finish(struct loop *, double seconds, enum ibv_wc_status *);
void post(struct loop *, enum ibv_wr_opcode, char *at, unsigned length, void *remote, uint32_t rkey);
char *map_at(char *at, size_t length);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void await_line(void);
double now(void);
int raw_command(int fd, unsigned command, const void *core, size_t core_size, size_t response);
size_t put_command(char *at, unsigned command, const void *core, size_t core_size, size_t response);
int listener_for(long nr);

extern const char *control; // the control socket's path
int connect_control(void);
int send_with(int s, const char *text, int fd);

int neighbour(int, char **), swap(int, char **), stall_command(int, char **), reuse(int, char **), exec_region(int, char **),
	victim(int, char **), user_namespace(int, char **), read_only(int, char **), stall_region(int, char **),
	close_storm(int, char **), slow_open(int, char **), main_exit(int, char **), number_race(int, char **), paths(int, char **),
	sessions(int, char **), exec_races(int, char **), descriptors(int, char **), tree_writes(int, char **), tree_climb(int, char **), remap(int, char **),
	stall_close(int, char **), hidden_execs(int, char **), stall_stat(int, char **), impostor(int, char **),
	connections(int, char **), unreceived(int, char **), kept(int, char **), kept_channels(int, char **), unfinished(int, char **), garbage(int, char **), attach(int, char **), stall_userfault(int, char **),
	names(int, char **), lock_directories(int, char **), own_answers(int, char **), thread_user(int, char **), flip_paths(int, char **), limits(int, char **), recycle(int, char **),
	swap_device(int, char **), linger_netlink(int, char **), linger_control(int, char **), grow(int, char **),
	keep_descriptor(int, char **), give_device(int, char **), unread(int, char **), subordinate(int, char **), flood(int, char **);
