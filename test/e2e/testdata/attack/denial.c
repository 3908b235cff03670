// Attacks that try to deny the service to other users.
#include "attack.h"
#include <linux/filter.h>
#include <linux/seccomp.h>

// post_elsewhere posts in a child, because the doorbell call may not return. It prints whether the call has returned.
static void post_elsewhere(struct loop *l, enum ibv_wr_opcode op, unsigned length, void *remote, uint32_t rkey)
{
	int returned[2];
	CHECK(!pipe(returned));
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		struct loop mine = share_loop(l);
		post(&mine, op, mine.buf, length, remote, rkey);
		CHECK(write(returned[1], "", 1) == 1);
		pause();
	}
	usleep(50000);
	say("posted");
	struct pollfd p = {.fd = returned[0], .events = POLLIN};
	say("doorbell: %s", poll(&p, 1, 5000) == 1 ? "returned" : "stopped");
}

// stall_region FUSEFILE OPERATION: registers a page of a file that does not respond, and transfers data to or from it.
int stall_region(int argc, char **argv)
{
	CHECK(argc == 2);
	struct loop l = make_loop();
	int fd = open(argv[0], O_RDWR);
	CHECK(fd >= 0);
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(page != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(l.pd, page, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC);
	if (!mr) {
		say("register: %s", strerror(errno));
		say("posted");
		return 0;
	}
	int atomic = !strcmp(argv[1], "atomic");
	enum ibv_wr_opcode op = atomic ? IBV_WR_ATOMIC_FETCH_AND_ADD : !strcmp(argv[1], "read") ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
	enum ibv_wc_status s;
	post_elsewhere(&l, op, 8, page, mr->rkey);
	say("completion: %s", finish(&l, 3600, &s) ? ibv_wc_status_str(s) : "none");
	return 0;
}

// remap FUSEFILE: like stall_region, but the page replaces ordinary memory after the registration, while a peer writes
// to it.
int remap(int argc, char **argv)
{
	CHECK(argc == 1);
	struct loop l = make_loop();
	char *at = map_at(NULL, PAGE);
	struct ibv_mr *mr = ibv_reg_mr(l.pd, at, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	int fd = open(argv[0], O_RDWR);
	CHECK(fd >= 0);
	for (int i = 0; i < 20; i++)
		CHECK(move(&l, IBV_WR_RDMA_WRITE, l.buf, 64, at, mr->rkey) == IBV_WC_SUCCESS);
	CHECK(mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at);
	post_elsewhere(&l, IBV_WR_RDMA_WRITE, 64, at, mr->rkey);
	enum ibv_wc_status s;
	say("completion: %s", finish(&l, 3600, &s) ? ibv_wc_status_str(s) : "none");
	return 0;
}

// close_storm SECONDS: opens the queue file again by a path that is not trapped, and closes it, as fast as possible.
int close_storm(int argc, char **argv)
{
	CHECK(argc == 1);
	struct ibv_context *ctx = open_device();
	char name[32];
	snprintf(name, sizeof name, "fd/%d", ctx->cmd_fd);
	int proc = open("/proc/self", O_PATH | O_DIRECTORY);
	CHECK(proc >= 0);
	long n = 0;
	for (double end = now() + atof(argv[0]); now() < end; n++) {
		int fd = openat(proc, name, O_RDONLY);
		if (fd < 0) {
			say("open again: %s", strerror(errno));
			break;
		}
		close(fd);
	}
	say("closed %ld", n);
	struct ibv_device_attr a;
	say("query: %s", ibv_query_device(ctx, &a) ? strerror(errno) : "success");
	return 0;
}

static int stalled_fd;
static char *stalled_page;

static void *write_stalled(void *unused)
{
	ssize_t n = write(stalled_fd, stalled_page, 32);
	say("write: %s", n < 0 ? strerror(errno) : "success");
	return NULL;
}

// slow_open FUSEFILE: measures the calls of other threads while a command of one thread does not return, in
// milliseconds.
int slow_open(int argc, char **argv)
{
	CHECK(argc == 1);
	struct ibv_context *ctx = open_device();
	int fd = open(argv[0], O_RDONLY);
	CHECK(fd >= 0);
	stalled_fd = ctx->cmd_fd;
	stalled_page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(stalled_page != MAP_FAILED);
	usleep(100000); // one caller is sufficient
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, write_stalled, NULL));
	usleep(20000);
	double began = now();
	close(open("/etc/hostname", O_RDONLY));
	say("open took %.0f", (now() - began) * 1000);
	began = now();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	say("command took %.0f: %s", (now() - began) * 1000, pd ? "success" : strerror(errno));
	exit(0);
}

static pthread_t main_thread;

static void *after_main(void *unused)
{
	usleep(50000);
	int fd = open("/dev/infiniband/uverbs0", O_RDWR);
	say("open: %s", fd < 0 ? strerror(errno) : "success");
	struct loop l = make_loop();
	strcpy(l.buf, "text");
	enum ibv_wc_status s = move(&l, IBV_WR_RDMA_WRITE, l.buf, 5, l.buf + PAGE, l.mr->rkey);
	say("write: %s", s ? ibv_wc_status_str(s) : l.buf + PAGE);
	exit(0);
}

// main_exit: uses RDMA in a thread after the main thread has ended.
int main_exit(int argc, char **argv)
{
	pthread_t t;
	main_thread = pthread_self();
	CHECK(!pthread_create(&t, NULL, after_main, NULL));
	pthread_exit(NULL);
}

static volatile int racing = 1;

static void *race_number(void *first)
{
	int file = open("/dev/zero", O_RDONLY);
	for (int number = *(int *)first; racing;) {
		// This thread owns a free number from here on, until it closes it.
		int fd = fcntl(file, F_DUPFD, number);
		if (fd < 0)
			continue;
		char c = 1;
		for (int i = 0; i < 50 && racing; i++)
			if (read(fd, &c, 1) != 1 || c) { // the number refers to another file than ours
				say("descriptor %d was replaced", fd);
				return NULL;
			}
		close(fd);
	}
	return NULL;
}

// number_race FIRST OPENS: a second thread takes the descriptor numbers of the device.
int number_race(int argc, char **argv)
{
	CHECK(argc == 2);
	int first = atoi(argv[0]);
	struct rlimit limit;
	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = limit.rlim_max;
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, race_number, &first));
	int opened = 0;
	for (int i = 0; i < atoi(argv[1]); i++) {
		int fd = open("/dev/infiniband/uverbs0", O_RDWR);
		struct stat st;
		if (fd < 0)
			continue;
		opened++;
		if (fstat(fd, &st) || !S_ISCHR(st.st_mode) || st.st_rdev == makedev(1, 5))
			say("the device's descriptor %d is something else", fd);
		close(fd);
	}
	racing = 0;
	pthread_join(t, NULL);
	say("opened %d", opened);
	return 0;
}

// paths: opens the device by each path, and prints the results.
int paths(int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		int fd = open(argv[i], O_RDWR);
		say("%s: %s", argv[i], fd < 0 ? strerror(errno) : "success");
		if (fd >= 0)
			close(fd);
	}
	return 0;
}

static const char *message;
static int callers, attached, refused;
static pthread_mutex_t count = PTHREAD_MUTEX_INITIALIZER;

// While a call is blocked, the kernel's work for the supervisor may block changes of this process's mappings. So all
// threads are created first.
static volatile int begin;

static void *call_stalled(void *device)
{
	while (!begin)
		usleep(1000);
	for (int i = 0; i < 8; i++) // several calling threads
		syscall(SYS_open, "/dev/infiniband/none", O_RDONLY);
	ioctl(*(int *)device, VERBS_IOCTL, stalled_page);
	return NULL;
}

static void *one_session(void *unused)
{
	int listener = listener_for(SYS_open), s = connect_control(), ok = 0;
	char answer[4096] = "";
	struct timeval wait = {2, 0};
	if (s >= 0 && listener >= 0) {
		setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
		if (send_with(s, message, listener) > 0 && recv(s, answer, sizeof answer - 1, 0) > 4)
			ok = strstr(answer + 4, "Attached") != NULL;
	}
	close(listener);
	pthread_mutex_lock(&count);
	*(ok ? &attached : &refused) += 1;
	if (!ok && refused == 1)
		say("refused: %s", answer[0] || answer[4] ? answer + 4 : strerror(errno));
	pthread_mutex_unlock(&count);
	int device = ok && callers > 0 ? syscall(SYS_open, "/dev/infiniband/uverbs0", O_RDWR) : -1;
	for (int i = 0; device >= 0 && i < callers; i++) {
		pthread_t t;
		pthread_attr_t a;
		pthread_attr_init(&a);
		pthread_attr_setstacksize(&a, 65536);
		pthread_create(&t, &a, call_stalled, &device);
	}
	pause();
	return NULL;
}

// sessions SOCKET MESSAGE COUNT CALLERS FUSEFILE: attaches COUNT programs, each with CALLERS calls that do not return,
// until the service refuses.
int sessions(int argc, char **argv)
{
	CHECK(argc == 5);
	control = argv[0], message = argv[1], callers = atoi(argv[3]);
	int fd = open(argv[4], O_RDONLY);
	CHECK(fd >= 0);
	stalled_page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(stalled_page != MAP_FAILED);
	int want = atoi(argv[2]);
	say("beginning");
	for (int i = 0; i < want; i++) {
		pthread_t t;
		pthread_attr_t a;
		pthread_attr_init(&a);
		pthread_attr_setstacksize(&a, 65536);
		if (pthread_create(&t, &a, one_session, NULL))
			break;
		pthread_mutex_lock(&count);
		int enough = refused >= 20;
		pthread_mutex_unlock(&count);
		if (enough)
			break;
		usleep(1000);
	}
	for (double end = now() + 5; now() < end && attached + refused < want && refused < 20;)
		usleep(10000);
	usleep(100000);
	begin = 1;
	usleep(400000);
	say("attached %d, refused %d", attached, refused);
	await_line();
	exit(0);
}

// stall_close SOCKET MESSAGE COUNT FUSEFILE: sends the service descriptors on which close does not return.
int stall_close(int argc, char **argv)
{
	CHECK(argc == 4);
	control = argv[0];
	int sent = 0;
	for (int i = 0; i < atoi(argv[2]); i++) {
		int fd = open(argv[3], O_RDWR), s = connect_control();
		struct timeval wait = {0, 300000};
		if (fd < 0 || s < 0)
			continue;
		setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
		sent += send_with(s, argv[1], fd) > 0;
	}
	say("sent %d", sent);
	await_line();
	_exit(0);
}

static int high;

static void *stat_high(void *unused)
{
	struct stat st;
	syscall(SYS_fstat, high, &st);
	return NULL;
}

// stall_stat FUSEFILE FIRST COUNT: makes calls on a file that does not respond, with a descriptor in the range of the
// device files.
int stall_stat(int argc, char **argv)
{
	CHECK(argc == 3);
	int fd = open(argv[0], O_RDWR);
	CHECK(fd >= 0);
	struct rlimit limit;
	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = limit.rlim_max;
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	high = fcntl(fd, F_DUPFD, atoi(argv[1]));
	CHECK(high >= 0);
	for (int i = 0; i < atoi(argv[2]); i++) {
		pthread_t t;
		CHECK(!pthread_create(&t, NULL, stat_high, NULL));
	}
	usleep(300000);
	say("stalled");
	double began = now();
	close(open("/etc/hostname", O_RDONLY));
	say("open took %.0f", (now() - began) * 1000);
	await_line();
	_exit(0);
}
