// Further incorrect uses, modelled on bugs of other supervisors and of other services with several users.
#include "attack.h"
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>

// stall_userfault DEVICE OPERATION: like stall_region, with memory whose page faults are not handled.
int stall_userfault(int argc, char **argv)
{
	CHECK(argc == 2);
	struct loop l = make_loop();
	int device = open(argv[0], O_RDWR | O_CLOEXEC);
	CHECK(device >= 0);
	int fd = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC);
	CHECK(fd >= 0);
	struct uffdio_api api = {.api = UFFD_API};
	CHECK(!ioctl(fd, UFFDIO_API, &api));
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(l.pd, page, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(mr);
	struct uffdio_register r = {.range = {(uintptr_t)page, PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	CHECK(!ioctl(fd, UFFDIO_REGISTER, &r)); // after the registration
	if (!fork()) { // the doorbell call may not return
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		struct loop mine = share_loop(&l);
		post(&mine, !strcmp(argv[1], "atomic") ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_RDMA_WRITE, mine.buf, 8, page, mr->rkey);
		pause();
	}
	usleep(50000);
	say("posted");
	enum ibv_wc_status s;
	say("completion: %s", finish(&l, 3600, &s) ? ibv_wc_status_str(s) : "none");
	return 0;
}

static char *directory_page;

static void *list_directory(void *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY);
	if (fd < 0)
		return NULL;
	say("%s: %ld", (char *)path, syscall(SYS_getdents64, fd, directory_page, PAGE));
	return NULL;
}

// lock_directories FUSEFILE DIRECTORY...: lists the virtual directories, and others, into memory that does not respond.
int lock_directories(int argc, char **argv)
{
	static char *const paths[] = {"/sys/class/infiniband", "/sys/devices/virtual/infiniband", "/sys/class/infiniband_verbs",
		"/sys/devices/virtual/infiniband_verbs", "/dev/infiniband", "/sys/devices/virtual/infiniband/rxe0",
		"/sys/devices/virtual/infiniband/rxe0/ports/1", "/sys/devices/virtual/infiniband/rxe0/ports/1/gids",
		"/sys/devices/virtual/infiniband/rxe0/ports/1/gid_attrs/types", NULL};
	CHECK(argc > 0);
	int fd = open(argv[0], O_RDONLY);
	CHECK(fd >= 0);
	directory_page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	CHECK(directory_page != MAP_FAILED);
	pthread_t t;
	for (char *const *p = paths; *p; p++)
		CHECK(!pthread_create(&t, NULL, list_directory, *p));
	for (char **p = argv + 1; *p; p++)
		CHECK(!pthread_create(&t, NULL, list_directory, *p));
	// Lists the tree from inside, up to the highest reachable directory.
	int dir = open("/sys/class/infiniband", O_RDONLY | O_DIRECTORY);
	CHECK(dir >= 0 && !fchdir(dir));
	for (int i = 0; i < 8 && !syscall(SYS_chdir, ".."); i++) {
		char *here = malloc(64);
		snprintf(here, 64, "/proc/self/cwd");
		CHECK(!pthread_create(&t, NULL, list_directory, here));
		usleep(20000);
	}
	usleep(200000);
	say("posted");
	pause();
	return 0;
}

// names: a process with terminal control characters in its name, and with a context, so that lists of objects contain
// the name.
int names(int argc, char **argv)
{
	prctl(PR_SET_NAME, "\033]0;x\007\n\033[2J\r");
	struct loop l = make_loop();
	(void)l;
	say("ready");
	await_line();
	return 0;
}

static int own_listener;

// answer_own answers some notifications in place of the service, and does not check the results.
static void *answer_own(void *unused)
{
	for (unsigned n = 0;; n++) {
		struct seccomp_notif req = {0};
		if (ioctl(own_listener, SECCOMP_IOCTL_NOTIF_RECV, &req))
			continue;
		struct seccomp_notif_resp resp = {.id = req.id, .error = -EINTR};
		if (n % 3 == 0)
			resp = (struct seccomp_notif_resp){.id = req.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
		for (int i = -2; i < 3; i++) { // also the neighbouring ids, which the service may have received
			resp.id = req.id + i;
			ioctl(own_listener, SECCOMP_IOCTL_NOTIF_SEND, &resp);
		}
	}
}

// own_answers SOCKET MESSAGE CALLS: passes its listener to the service twice, and continues to use it.
int own_answers(int argc, char **argv)
{
	CHECK(argc == 3);
	control = argv[0];
	pthread_t t;
	int pipe_fds[2];
	CHECK(!pipe(pipe_fds));
	own_listener = -1;
	// The answering thread has no filter, because it starts first.
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	int s[2] = {connect_control(), connect_control()};
	CHECK(s[0] >= 0 && s[1] >= 0);
	pid_t child = fork();
	if (!child) {
		// The child has the filter, and sends the listener to its parent.
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int l = listener_for(SYS_open);
		CHECK(write(pipe_fds[1], &l, sizeof l) == sizeof l);
		usleep(100000);
		int opened = 0;
		for (int i = 0; i < atoi(argv[2]); i++) {
			int fd = syscall(SYS_open, i % 2 ? "/dev/infiniband/uverbs0" : "/sys/class/infiniband/rxe0/node_type", O_RDWR);
			opened += fd >= 0;
			if (fd >= 0)
				close(fd);
		}
		say("opened %d", opened);
		_exit(0);
	}
	int number;
	CHECK(read(pipe_fds[0], &number, sizeof number) == sizeof number);
	int pidfd = syscall(SYS_pidfd_open, child, 0);
	own_listener = syscall(SYS_pidfd_getfd, pidfd, number, 0);
	CHECK(own_listener >= 0);
	for (int i = 0; i < 2; i++) {
		char answer[4096] = "";
		struct timeval wait = {1, 0};
		setsockopt(s[i], SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
		send_with(s[i], argv[1], own_listener);
		recv(s[i], answer, sizeof answer - 1, 0);
		say("attach: %.60s", answer[0] || answer[4] ? answer + 4 : "no answer");
	}
	CHECK(!pthread_create(&t, NULL, answer_own, NULL));
	waitpid(child, NULL, 0);
	say("done");
	_exit(0);
}

static void *as_other(void *unused)
{
	// The raw calls change the user of this thread only.
	CHECK(!syscall(SYS_setgroups, 0, NULL) && !syscall(SYS_setresgid, 65534, 65534, 65534) && !syscall(SYS_setresuid, 65534, 65534, 65534));
	int fd = open("/dev/infiniband/uverbs0", O_RDWR);
	say("open as another user: %s", fd < 0 ? strerror(errno) : "success");
	say("access as another user: %s", access("/dev/infiniband/uverbs0", W_OK) ? strerror(errno) : "success");
	return NULL;
}

// thread_user: one thread of a program of root changes to another user.
int thread_user(int argc, char **argv)
{
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, as_other, NULL));
	pthread_join(t, NULL);
	int fd = open("/dev/infiniband/uverbs0", O_RDWR);
	say("open as root: %s", fd < 0 ? strerror(errno) : "success");
	return 0;
}

static char racing_path[64] = "/etc/hostname";

static void *flip(void *unused)
{
	for (;;) {
		strcpy(racing_path, "/dev/infiniband/uverbs0");
		strcpy(racing_path, "/etc/shadow");
		strcpy(racing_path, "/sys/class/infiniband/rxe0/node_guid");
	}
}

// flip_paths CALLS: changes a path during the supervisor's check.
int flip_paths(int argc, char **argv)
{
	CHECK(argc == 1);
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, flip, NULL));
	for (int i = 0; i < atoi(argv[0]); i++) {
		int fd = open(racing_path, O_RDONLY);
		char text[8] = "";
		if (fd >= 0 && fd < 1000 && read(fd, text, 7) > 0 && !strncmp(text, "root:", 5))
			say("it reads %s", text);
		if (fd >= 0)
			close(fd);
	}
	say("done");
	_exit(0);
}

// limits SOFT: a soft limit of descriptors that the program sets while the service raises it must stay.
int limits(int argc, char **argv)
{
	struct rlimit before, after;
	CHECK(!getrlimit(RLIMIT_NOFILE, &before));
	for (int i = 0; i < 200; i++) {
		struct rlimit mine = {64 + i, before.rlim_max};
		CHECK(!setrlimit(RLIMIT_NOFILE, &mine));
		int fd = open("/dev/infiniband/uverbs0", O_RDWR);
		CHECK(!getrlimit(RLIMIT_NOFILE, &after));
		if (fd < 0 || after.rlim_cur != mine.rlim_cur)
			say("open: %s; the limit is %lu and was %lu", fd < 0 ? strerror(errno) : "success", after.rlim_cur, mine.rlim_cur);
		close(fd);
	}
	say("done");
	return 0;
}

// kept-channels SECONDS: creates completion channels, closes the context, and keeps a descriptor of each channel.
int kept_channels(int argc, char **argv)
{
	CHECK(argc == 1);
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	long got = 0, asked = 0;
	for (double end = now() + atof(argv[0]); now() < end;) {
		struct ibv_context *ctx = ibv_open_device(list[0]);
		if (!ctx) {
			usleep(1000);
			continue;
		}
		for (int i = 0; i < 20; i++, asked++) {
			struct ibv_comp_channel *c = ibv_create_comp_channel(ctx);
			if (!c)
				break;
			if (dup(c->fd) >= 0)
				got++;
			ibv_destroy_comp_channel(c);
		}
		ibv_close_device(ctx);
	}
	say("kept %ld of %ld", got, asked);
	await_line();
	return 0;
}
