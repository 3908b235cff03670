// Incorrect uses of processes, descriptors and paths.
#include "attack.h"


struct work {
	struct loop l;
	volatile uint32_t *key; // key of the newest region, for the accomplice
};

// hammer registers the page repeatedly, with commands and doorbells in flight.
static void *hammer(void *p)
{
	struct work *w = p;
	struct ibv_mr *before = NULL;
	for (;;) {
		struct ibv_mr *mr = ibv_reg_mr(w->l.pd, SECRET_AT, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
		if (!mr)
			return NULL;
		*w->key = mr->rkey;
		if (before && rand() % 4 == 0)
			ibv_rereg_mr(before, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE);
		before = mr;
	}
}

// accomplice has the same device and writes to the newest region for a while.
static void accomplice(struct work *w)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	struct loop mine = share_loop(&w->l);
	if (!mine.mr)
		return;
	memset(mine.buf, 'x', PAGE);
	while (!*w->key)
		usleep(100);
	for (double end = now() + 0.03; now() < end;)
		if (move(&mine, IBV_WR_RDMA_WRITE, mine.buf, PAGE, SECRET_AT, *w->key) != IBV_WC_SUCCESS)
			renew(&mine);
}

static char *const *program;

static void *exec_now(void *unused)
{
	usleep(rand() % 4000);
	execv(program[0], program);
	return NULL;
}

// exec_races ROUNDS PROGRAM [ARGUMENT...]: children register memory in one thread while another thread executes a
// program with other data at this address. An accomplice with the same device writes to the last registered memory.
int exec_races(int argc, char **argv)
{
	CHECK(argc >= 2);
	program = argv + 1;
	srand(getpid());
	for (int i = 0; i < atoi(argv[0]); i++) {
		pid_t child = fork();
		if (!child) {
			srand(i);
			map_at(SECRET_AT, PAGE);
			struct work w = {make_loop()};
			pthread_t a, b;
			w.key = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
			if (!fork()) {
				accomplice(&w);
				_exit(0);
			}
			CHECK(!pthread_create(&a, NULL, hammer, &w));
			if (i % 2) // exec in the other thread ends the main thread
				CHECK(!pthread_create(&b, NULL, exec_now, NULL));
			else
				exec_now(NULL);
			pause();
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			say("round %d: status %#x", i, status);
	}
	say("done");
	return 0;
}

#ifdef __x86_64__
// no_entry exits the program: the kernel has no 32-bit entry, or has disabled it (ia32_emulation=0).
static void no_entry(int sig)
{
	say("exec by i386: signal %d: no such entry", sig);
	_exit(0);
}

// exec_i386 calls execve(2) through the 32-bit entry. The arguments must be below 4 GiB.
static long exec_i386(const char *path, char **args)
{
	char *low = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	CHECK(low != MAP_FAILED);
	uint32_t *vector = (uint32_t *)low, n = 0;
	char *text = low + 512;
	long name = (long)strcpy(text, path);
	text += strlen(text) + 1;
	for (; args[n]; n++) {
		vector[n] = (uint32_t)(long)strcpy(text, args[n]);
		text += strlen(text) + 1;
	}
	vector[n] = 0;
	signal(SIGSEGV, no_entry);
	long result;
	__asm__ volatile("int $0x80" : "=a"(result) : "a"(11L), "b"(name), "c"((long)vector), "d"(0L) : "memory");
	return result;
}
#endif

// hidden_execs HOW PROGRAM [ARGUMENT...]: executes a program by a method that a filter may not know. A child with the
// same device then reads and writes its memory. HOW failed: the exec fails, and the registration must still work. HOW
// vfork: a child that shares the memory executes, and the registration must still work.
int hidden_execs(int argc, char **argv)
{
	CHECK(argc >= 2);
	const char *how = argv[0];
	argv++;
	struct loop l = make_loop();
	strcpy(map_at(SECRET_AT, PAGE), "before");
	struct ibv_mr *mr = ibv_reg_mr(l.pd, SECRET_AT, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(mr);
	int keeps = !strcmp(how, "failed") || !strcmp(how, "vfork");
	if (keeps) {
		if (!strcmp(how, "failed")) {
			char *none[] = {NULL};
			CHECK(execv("/nonexistent", none) < 0 && execv("/etc/hostname", none) < 0 && execv("/", none) < 0);
			CHECK(syscall(SYS_execveat, -1, "", none, none, 0) < 0);
		} else {
			for (int i = 0; i < 5; i++) {
				pid_t child = vfork();
				if (!child) {
					execl("/bin/true", "true", NULL);
					_exit(1);
				}
				CHECK(child > 0 && waitpid(child, NULL, 0) == child);
			}
		}
		strcpy(l.buf, "still written");
		enum ibv_wc_status s = move(&l, IBV_WR_RDMA_WRITE, l.buf, 64, SECRET_AT, mr->rkey);
		say("write: %s: %s", (int)s < 0 ? "no completion" : ibv_wc_status_str(s), SECRET_AT);
		return 0;
	}
	int gone[2];
	CHECK(!pipe2(gone, O_CLOEXEC));
	pid_t child = fork();
	CHECK(child >= 0);
	if (child) {
		long result = -1;
#ifdef __x86_64__
		if (!strcmp(how, "i386"))
			result = exec_i386(argv[0], argv);
		else if (!strcmp(how, "x32"))
			result = syscall(0x40000000 + 520, argv[0], argv, environ); // __X32_SYSCALL_BIT, execve
#endif
		if (!strcmp(how, "execveat")) {
			int fd = open(argv[0], O_PATH);
			result = syscall(SYS_execveat, fd, "", argv, environ, AT_EMPTY_PATH);
		} else if (!strcmp(how, "magic link")) {
			int fd = open(argv[0], O_RDONLY);
			char link[64];
			snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
			result = execv(link, argv);
		}
		say("exec by %s: %ld %s", how, result, strerror(errno)); // this kernel has no such entry
		kill(child, SIGKILL);
		return 0;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(gone[1]);
	char c;
	struct loop mine = share_loop(&l);
	read(gone[0], &c, 1);
	usleep(50000);
	if (mine.mr) {
		strcpy(mine.buf, "overwritten");
		enum ibv_wc_status s = move(&mine, IBV_WR_RDMA_WRITE, mine.buf, 64, SECRET_AT, mr->rkey);
		say("write: %s", (int)s < 0 ? "no completion" : ibv_wc_status_str(s));
	}
	return 0;
}

static void report(const char *what, long result) { say("%s: %s", what, result < 0 ? strerror(errno) : "success"); }

// descriptors: operations on a device's descriptor that libraries do not use.
int descriptors(int argc, char **argv)
{
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(pd && ibv_create_cq(ctx, 10, NULL, NULL, 0));
	int fd = ctx->cmd_fd;
	char link[64], name[512] = "";
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	report("ftruncate to 0", ftruncate(fd, 0));
	report("ftruncate to 1 GiB", ftruncate(fd, 1 << 30));
	report("fallocate", fallocate(fd, 0, 0, 1 << 20));
	report("punch a hole", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20));
	int again = open(link, O_RDWR);
	report("open again", again);
	report("open again and truncate", open(link, O_RDWR | O_TRUNC));
	readlink(link, name, sizeof name - 1);
	say("link: %s", name[0] ? "shown" : "none");
	char beside[600];
	snprintf(beside, sizeof beside, "%.500s.hard", name);
	report("hard link to the queue file", linkat(AT_FDCWD, link, AT_FDCWD, beside, AT_SYMLINK_FOLLOW));
	report("hard link in /dev/shm", linkat(AT_FDCWD, link, AT_FDCWD, "/dev/shm/verbena-attack-hard", AT_SYMLINK_FOLLOW));
	unlink("/dev/shm/verbena-attack-hard");
	report("remove the queue file", unlink(name));
	*strrchr(name, '/') = 0;
	snprintf(beside, sizeof beside, "%.500s/evil", name);
	report("create beside", open(beside, O_RDWR | O_CREAT, 0600));
	report("rename the directory", rename(name, beside));
	char other[600];
	snprintf(other, sizeof other, "%.500s-moved", name);
	report("move the directory away", rename(name, other));
	report("replace the directory", symlink("/etc", name));
	report("remove the directory", rmdir(name));
	report("chmod", fchmod(fd, 0777));
	report("chown", fchown(fd, 65533, -1));
	report("seals", fcntl(fd, F_ADD_SEALS, 0xf));
	report("lease", fcntl(fd, F_SETLEASE, F_WRLCK));
	report("O_ASYNC", fcntl(fd, F_SETFL, O_ASYNC | O_APPEND));
	struct flock lock = {.l_type = F_WRLCK};
	report("lock", fcntl(fd, F_SETLK, &lock));
	report("dup2", dup2(fd, 100));
	report("dup3", dup3(fd, 101, O_CLOEXEC));
	int third = fcntl(fd, F_DUPFD, 0);
	report("F_DUPFD", third);
	int pair[2];
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	pid_t child = fork();
	if (!child) {
		int pidfd = syscall(SYS_pidfd_open, getppid(), 0);
		int stolen = syscall(SYS_pidfd_getfd, pidfd, fd, 0);
		report("pidfd_getfd", stolen);
		struct ibv_device_attr a;
		report("query in the child", ibv_query_device(ctx, &a) ? -1 : 0);
		syscall(SYS_close_range, 3, ~0u, 0);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	report("swap by dup2", dup2(open("/dev/null", O_RDWR), fd));
	struct ib_uverbs_query_port_resp resp;
	struct ib_uverbs_query_port req = {.response = (uintptr_t)&resp, .port_num = 1};
	memset(&resp, 0, sizeof resp);
	report("command to /dev/null", raw_command(fd, IB_USER_VERBS_CMD_QUERY_PORT, &req, sizeof req, sizeof resp));
	if (resp.state)
		say("command to /dev/null: success, and it answers");
	if (third >= 0)
		report("command to the duplicate", raw_command(third, IB_USER_VERBS_CMD_QUERY_PORT, &req, sizeof req, sizeof resp));
	report("close_range", syscall(SYS_close_range, 100, ~0u, 0));
	report("command to what is closed", raw_command(fd, IB_USER_VERBS_CMD_QUERY_PORT, &req, sizeof req, sizeof resp));
	say("done");
	_exit(0);
}

// tree_writes: tries to change the directories that a program sees.
int tree_writes(int argc, char **argv)
{
	const char *dirs[] = {"/sys/class/infiniband", "/sys/class/infiniband_verbs", "/sys/class/infiniband/rxe0", "/dev/infiniband"};
	for (unsigned i = 0; i < sizeof dirs / sizeof *dirs; i++) {
		int d = open(dirs[i], O_RDONLY | O_DIRECTORY);
		if (d < 0) {
			say("%s: %s", dirs[i], strerror(errno));
			continue;
		}
		report("create", openat(d, "evil", O_CREAT | O_RDWR, 0666));
		report("mkdir", mkdirat(d, "evildir", 0777));
		report("symlink", symlinkat("/etc", d, "evillink"));
		report("mknod", mknodat(d, "evilnode", S_IFIFO | 0666, 0));
		report("unlink", unlinkat(d, i ? "abi_version" : "rxe0", 0));
		report("rmdir", unlinkat(d, "rxe0", AT_REMOVEDIR));
		if (argc > 0)
			report("rename", renameat(d, "rxe0", d, "rxe9"));
		report("chmod", fchmod(d, 0777));
		report("tmpfile", openat(d, ".", O_TMPFILE | O_RDWR, 0666));
		report("creat above", openat(d, "../evil", O_CREAT | O_RDWR, 0666));
	}
	int d = open("/sys/class/infiniband/rxe0", O_RDONLY | O_DIRECTORY);
	if (d < 0)
		d = open("/sys/class/infiniband_verbs", O_RDONLY | O_DIRECTORY);
	char text[16] = "";
	unlinkat(d, "node_type", 0);
	report("plant a link", symlinkat("/etc/passwd", d, "node_type"));
	int f = open("/sys/class/infiniband/rxe0/node_type", O_RDONLY);
	if (f >= 0)
		read(f, text, sizeof text - 1);
	say("planted: %s", f < 0 ? strerror(errno) : text);
	report("open a file to write", open("/sys/class/infiniband/rxe0/node_desc", O_WRONLY));
	report("create by path", open("/dev/infiniband/evil", O_CREAT | O_RDWR, 0666));
	report("unlink by path", unlink("/dev/infiniband/uverbs0"));
	report("truncate by path", truncate("/dev/infiniband/uverbs0", 0));
	return 0;
}

// tree_climb: uses ".." to go from the caller's virtual files to those of all users, without a path that the service
// answers.
int tree_climb(int argc, char **argv)
{
	int d = open("/sys/class/infiniband", O_RDONLY | O_DIRECTORY);
	report("enter", fchdir(d));
	report("climb", chdir("../../.."));
	report("leave", chdir(".."));
	return 0;
}
