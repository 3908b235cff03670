/* Process operations with an open device file. Built statically, without libibverbs.
 * process MODE: prints "ok" for each use of a device that worked. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *self;

static void die(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	fflush(stdout);
	_exit(1);
}

static int device(void)
{
	struct stat st;
	int fd = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		die("open");
	if (fstat(fd, &st) || !S_ISCHR(st.st_mode))
		die("fstat");
	return fd;
}

static int context(int fd)
{
	struct ib_uverbs_get_context_resp resp = {};
	struct {
		struct ib_uverbs_cmd_hdr hdr;
		struct ib_uverbs_get_context cmd;
	} c = { .hdr = { IB_USER_VERBS_CMD_GET_CONTEXT, sizeof(c) / 4, sizeof(resp) / 4 } };

	c.cmd.response = (unsigned long)&resp;
	if (write(fd, &c, sizeof(c)) != sizeof(c))
		return -1;
	return 0;
}

/* Executes a command on an existing context. */
static int use(int fd)
{
	struct ib_uverbs_alloc_pd_resp resp = {};
	struct {
		struct ib_uverbs_cmd_hdr hdr;
		struct ib_uverbs_alloc_pd cmd;
	} c = { .hdr = { IB_USER_VERBS_CMD_ALLOC_PD, sizeof(c) / 4, sizeof(resp) / 4 } };

	c.cmd.response = (unsigned long)&resp;
	return write(fd, &c, sizeof(c)) == sizeof(c) && resp.pd_handle ? 0 : -1;
}

/* The service notices a closed descriptor soon. */
static void closed(int fd)
{
	int i;

	for (i = 0; i < 20000; i++) {
		if (use(fd)) {
			if (errno != EBADF && errno != EIO)
				die("use of what was closed");
			return;
		}
		usleep(1000);
	}
	printf("a closed descriptor works\n");
	exit(1);
}

static void plain(void)
{
	int fd = device();

	if (context(fd) || use(fd))
		die("use");
	puts("ok");
	fflush(stdout);
	close(fd);
}

static void await(pid_t pid)
{
	int status;

	if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		die("child");
}

static void *thread(void *arg)
{
	int fd = device();

	(void)arg;
	if (context(fd) || use(fd))
		die("thread");
	close(fd);
	return NULL;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "plain";
	int i, fd;
	pid_t pid;

	self = argv[0];
	if (!strcmp(mode, "plain")) {
		plain();
	} else if (!strcmp(mode, "fork")) {
		fd = device();
		if (context(fd))
			die("context");
		if (!(pid = fork())) {
			if (use(fd)) /* use the inherited descriptor */
				die("inherited");
			plain();
			_exit(0);
		}
		await(pid);
		if (use(fd))
			die("afterwards");
		puts("ok");
	} else if (!strcmp(mode, "vfork")) {
		char *args[] = { self, "plain", NULL };

		fd = device();
		if (context(fd))
			die("context");
		if (!(pid = vfork())) {
			execv("/proc/self/exe", args);
			_exit(1);
		}
		await(pid);
		if (use(fd))
			die("afterwards");
		puts("ok");
	} else if (!strcmp(mode, "spawn")) {
		char *args[] = { self, "plain", NULL };

		for (i = 0; i < 4; i++) {
			if ((errno = posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ)))
				die("posix_spawn");
			await(pid);
		}
	} else if (!strcmp(mode, "threads")) {
		pthread_t t[16];

		for (i = 0; i < 16; i++)
			if ((errno = pthread_create(&t[i], NULL, thread, NULL)))
				die("pthread_create");
		for (i = 0; i < 16; i++)
			pthread_join(t[i], NULL);
		puts("ok");
	} else if (!strcmp(mode, "exec")) {
		char *args[] = { self, "plain", NULL };

		fd = device();
		if (context(fd))
			die("context");
		execv("/proc/self/exe", args); /* closes fd */
		die("exec");
	} else if (!strcmp(mode, "exec-inherit")) {
		char number[16], *args[] = { self, "inherited", number, NULL };

		fd = device();
		if (context(fd) || fcntl(fd, F_SETFD, 0))
			die("context");
		snprintf(number, sizeof(number), "%d", fd);
		execv("/proc/self/exe", args);
		die("exec");
	} else if (!strcmp(mode, "inherited")) {
		if (use(atoi(argv[2])))
			die("use");
		puts("ok");
	} else if (!strcmp(mode, "daemon")) { /* the output ends with the daemon */
		if (!(pid = fork())) {
			setsid();
			if (fork())
				_exit(0);
			if (chdir("/"))
				die("chdir");
			usleep(300000); /* until the parents have ended */
			plain();
			_exit(0);
		}
		await(pid);
	} else if (!strcmp(mode, "close-range")) {
		for (i = 0; i < 3; i++) {
			fd = device();
			if (context(fd) || use(fd))
				die("context");
			if (syscall(SYS_close_range, 3, ~0U, 0))
				die("close_range");
			closed(fd);
		}
		plain();
	} else if (!strcmp(mode, "close-all")) {
		struct rlimit l;

		fd = device();
		if (context(fd) || getrlimit(RLIMIT_NOFILE, &l))
			die("context");
		for (i = 3; i < 70000; i++)
			close(i);
		closed(fd);
		plain();
	} else {
		return 2;
	}
	return 0;
}
