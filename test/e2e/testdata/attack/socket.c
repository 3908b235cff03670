// Attacks through the control socket.
#include "attack.h"
#include <linux/seccomp.h>

const char *control;

static struct sockaddr_un address(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strncpy(a.sun_path, control, sizeof a.sun_path - 1);
	return a;
}

int connect_control(void)
{
	struct sockaddr_un a = address();
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (s >= 0 && connect(s, (void *)&a, sizeof a)) {
		close(s);
		return -1;
	}
	return s;
}

// send_with sends a control message, with a descriptor unless fd is negative.
int send_with(int s, const char *text, int fd)
{
	uint32_t size = strlen(text);
	struct iovec v[] = {{&size, 4}, {(char *)text, size}};
	char space[CMSG_SPACE(sizeof fd)] = {0};
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
	if (fd >= 0) {
		m.msg_control = space;
		m.msg_controllen = sizeof space;
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(c), &fd, sizeof fd);
	}
	return sendmsg(s, &m, MSG_NOSIGNAL);
}

// impostor SOCKET DIRECTORY: pretends to be the service for each client, and names a directory of the client as the
// session's.
int impostor(int argc, char **argv)
{
	CHECK(argc == 2);
	control = argv[0];
	struct sockaddr_un a = address();
	int l = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(!bind(l, (void *)&a, sizeof a) && !chmod(control, 0666) && !listen(l, 10));
	say("listening");
	for (;;) {
		int s = accept(l, NULL, NULL), listener = -1;
		char text[65536], space[256], answer[1024];
		struct iovec v = {text, sizeof text - 1};
		struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
		ssize_t n = recvmsg(s, &m, 0);
		if (n <= 0) {
			close(s);
			continue;
		}
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
			if (c->cmsg_type == SCM_RIGHTS)
				memcpy(&listener, CMSG_DATA(c), sizeof listener);
		say("a client says %.40s%s", n > 4 ? text + 4 : "", listener >= 0 ? ", with its listener" : "");
		snprintf(answer, sizeof answer, "{\"Attached\":{\"Dir\":\"%s/a/b\"}}", argv[1]);
		send_with(s, answer, -1);
		for (struct seccomp_notif req; listener >= 0; memset(&req, 0, sizeof req)) {
			memset(&req, 0, sizeof req);
			if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &req))
				break;
			struct seccomp_notif_resp resp = {.id = req.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
			ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &resp);
		}
		close(s);
	}
}

// connections SOCKET COUNT: opens up to COUNT connections, and sends no data.
int connections(int argc, char **argv)
{
	CHECK(argc == 2);
	control = argv[0];
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	struct sockaddr_un a = address();
	int n = 0;
	for (double end = now() + 3; n < atoi(argv[1]) && now() < end;) {
		int s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (s < 0)
			break;
		if (!connect(s, (void *)&a, sizeof a))
			n++;
		else {
			close(s);
			usleep(1000);
		}
	}
	say("connected %d", n);
	await_line();
	return 0;
}

// unreceived SOCKET COUNT MESSAGE: sends the message on COUNT connections, and shuts each one down after the answer has
// arrived. It does not receive the answers.
int unreceived(int argc, char **argv)
{
	CHECK(argc == 3);
	control = argv[0];
	int answered = 0, kept[4096], n = 0;
	for (double end = now() + 5; n < atoi(argv[1]) && n < 4096 && now() < end; n++) {
		kept[n] = connect_control();
		if (kept[n] < 0 || send_with(kept[n], argv[2], -1) < 0)
			break;
		int size = 0, last = -1;
		for (double wait = now() + 0.5; now() < wait && (!size || size != last); usleep(2000)) {
			last = size;
			ioctl(kept[n], FIONREAD, &size);
		}
		answered += size > 0;
		shutdown(kept[n], SHUT_WR);
	}
	long flying = 0;
	for (int i = 0; i < n; i++) {
		char path[64], line[256];
		snprintf(path, sizeof path, "/proc/self/fdinfo/%d", kept[i]);
		FILE *f = fopen(path, "r");
		for (long m; f && fgets(line, sizeof line, f);)
			if (sscanf(line, "scm_fds: %ld", &m) == 1)
				flying += m;
		if (f)
			fclose(f);
	}
	say("in flight %ld, answered %d", flying, answered);
	await_line();
	return 0;
}

// kept SOCKET WHAT SECONDS MESSAGE: opens connections, sends the message on each and shuts it down. It keeps the
// descriptors of a device file (device), or the connection with the unread answer (answer).
int kept(int argc, char **argv)
{
	CHECK(argc == 4);
	control = argv[0];
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	int device = !strcmp(argv[1], "device");
	long got = 0, asked = 0;
	for (double end = now() + atof(argv[2]); now() < end; asked++) {
		int s = connect_control();
		if (s < 0) {
			usleep(1000);
			continue;
		}
		struct timeval wait = {1, 0};
		setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
		if (send_with(s, argv[3], -1) < 0) {
			close(s);
			continue;
		}
		if (!device) {
			int size = 0;
			for (double until = now() + 0.5; now() < until && !size; usleep(200))
				ioctl(s, FIONREAD, &size);
			got += size > 0;
			shutdown(s, SHUT_RDWR);
			continue;
		}
		for (int i = 0; i < 2; i++) { // the answer of the control protocol, and the one with the descriptors
			char text[65536], space[256];
			struct iovec v = {text, sizeof text};
			struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
			if (recvmsg(s, &m, 0) <= 0)
				break;
			for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
				if (c->cmsg_type == SCM_RIGHTS) {
					got += (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
					i = 2;
				}
		}
		close(s);
	}
	say("kept %ld of %ld", got, asked);
	await_line();
	return 0;
}

// unfinished SOCKET COUNT BYTES: sends COUNT messages that announce BYTES bytes, each without its last byte.
int unfinished(int argc, char **argv)
{
	CHECK(argc == 3);
	control = argv[0];
	uint32_t size = atol(argv[2]);
	static char chunk[1 << 20];
	long sent = 0;
	memset(chunk, ' ', sizeof chunk);
	for (int i = 0; i < atoi(argv[1]); i++) {
		int s = connect_control();
		struct timeval wait = {1, 0};
		if (s < 0)
			continue;
		setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
		send(s, &size, 4, MSG_NOSIGNAL);
		for (uint32_t left = size - 1; left;) {
			ssize_t n = send(s, chunk, left < sizeof chunk ? left : sizeof chunk, MSG_NOSIGNAL);
			if (n <= 0)
				break;
			left -= n;
			sent += n;
		}
	}
	say("sent %ld", sent);
	await_line();
	return 0;
}

static unsigned seed = 1;

// garbage SOCKET SECONDS: sends malformed messages, with descriptors, in parts, and truncated.
int garbage(int argc, char **argv)
{
	CHECK(argc == 2);
	control = argv[0];
	static const char *texts[] = {"", "{", "null", "[]", "{\"Op\":\"nonsense\"}", "{" PROTOCOL ",\"Op\":\"attach\"}",
		"{" PROTOCOL ",\"Op\":\"attach\",\"Attach\":{\"PID\":1,\"Args\":[\"x\"]}}", "{\"Protocol\":-1,\"Op\":\"info\"}",
		"{\"Protocol\":1e400}", "{" PROTOCOL ",\"Op\":\"capture\",\"Capture\":{}}", "{" PROTOCOL ",\"Op\":\"stop\"}",
		"{" PROTOCOL ",\"Op\":\"res show\",\"Name\":\"\\u0000\"}", "{" PROTOCOL ",\"Op\":\"link del\",\"Name\":\"rxe0\"}",
		"{" PROTOCOL ",\"Op\":\"dev reset\",\"Name\":\"rxe0\",\"Reset\":{}}", "{" PROTOCOL ",\"Op\":\"fault add\",\"Fault\":{}}"};
	long n = 0;
	for (double end = now() + atof(argv[1]); now() < end; n++) {
		int s = connect_control();
		struct timeval wait = {0, 10000};
		char answer[4096];
		if (s < 0)
			continue;
		setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
		for (int i = rand_r(&seed) % 3; i >= 0; i--) {
			const char *text = texts[rand_r(&seed) % (sizeof texts / sizeof *texts)];
			int pair[2] = {-1, -1};
			switch (rand_r(&seed) % 5) {
			case 0: { // random bytes
				char b[64];
				for (unsigned k = 0; k < sizeof b; k++)
					b[k] = rand_r(&seed);
				send(s, b, sizeof b, MSG_NOSIGNAL);
				break;
			}
			case 1: { // part of a message
				uint32_t size = 1000;
				send(s, &size, 1 + rand_r(&seed) % 4, MSG_NOSIGNAL);
				break;
			}
			case 2: // a descriptor that is not a listener
				if (!pipe(pair))
					send_with(s, text, pair[rand_r(&seed) % 2]);
				break;
			case 3: // the descriptor of another connection
				send_with(s, text, s);
				break;
			default:
				send_with(s, text, -1);
			}
			if (rand_r(&seed) % 2)
				recv(s, answer, sizeof answer, 0);
			if (pair[0] >= 0)
				close(pair[0]);
			if (pair[1] >= 0)
				close(pair[1]);
		}
		close(s);
	}
	say("connections %ld", n);
	return 0;
}

// attach SOCKET MESSAGE: sends its own listener with the message, and prints the answer.
int attach(int argc, char **argv)
{
	CHECK(argc == 2);
	control = argv[0];
	int s = connect_control(), listener = listener_for(SYS_sync);
	CHECK(s >= 0 && listener >= 0);
	char answer[4096] = "";
	struct timeval wait = {2, 0};
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
	CHECK(send_with(s, argv[1], listener) > 0);
	ssize_t n = recv(s, answer, sizeof answer - 1, 0);
	say("answer: %s", n > 4 ? answer + 4 : "none");
	return 0;
}
