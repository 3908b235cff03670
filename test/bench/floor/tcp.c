// tcp pingpong SIZE N  half a round trip between two processes that block in read()
// tcp busy SIZE N      half a round trip between two polling processes, each on its own processor
// tcp stream SIZE N    a stream of N writes of SIZE bytes
#include "floor.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

static int flags; // flags of recv: MSG_DONTWAIT to poll

static void put(int fd, const char *buf, size_t size)
{
	while (size > 0) {
		ssize_t n = send(fd, buf, size, MSG_NOSIGNAL);

		if (n < 0)
			die("send");
		buf += n, size -= n;
	}
}

static void get(int fd, char *buf, size_t size)
{
	while (size > 0) {
		ssize_t n = recv(fd, buf, size, flags);

		if (n < 0 && errno == EAGAIN)
			continue;
		if (n < 0)
			die("recv");
		if (n == 0)
			fail("the peer ended");
		buf += n, size -= n;
	}
}

static void no_delay(int fd)
{
	int one = 1;

	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one))
		die("setsockopt TCP_NODELAY");
}

int main(int argc, char **argv)
{
	if (argc != 4 || (strcmp(argv[1], "pingpong") && strcmp(argv[1], "busy") && strcmp(argv[1], "stream")))
		fail("usage: tcp pingpong|busy|stream SIZE N");
	int stream = !strcmp(argv[1], "stream"), busy = !strcmp(argv[1], "busy"), fd, listener;
	size_t size = number(argv[2], 1);
	long n = number(argv[3], 1), warm = n / 10;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof at;
	char *buf = map(size, MAP_PRIVATE);
	double *t = calloc(n, sizeof *t), begin = 0;
	pid_t pid;

	memset(buf, 1, size);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	if (!t || listener < 0 || bind(listener, (void *)&at, len) || listen(listener, 1) || getsockname(listener, (void *)&at, &len))
		die("listen");
	flags = busy ? MSG_DONTWAIT : 0;
	pid = fork_child();
	if (busy)
		pin(pid == 0);
	if (pid == 0) {
		if ((fd = accept(listener, NULL, NULL)) < 0)
			die("accept");
		no_delay(fd);
		for (long i = -warm; i < n; i++) {
			get(fd, buf, size);
			if (!stream || i == -1 || i == n - 1)
				put(fd, buf, stream ? 1 : size);
		}
		return 0;
	}
	if ((fd = socket(AF_INET, SOCK_STREAM, 0)) < 0 || connect(fd, (void *)&at, sizeof at))
		die("connect");
	no_delay(fd);
	double start = now_us();
	for (long i = -warm; i < n; i++) {
		begin = now_us();
		if (i == 0)
			start = begin;
		put(fd, buf, size);
		if (!stream || i == -1 || i == n - 1)
			get(fd, buf, stream ? 1 : size);
		if (i >= 0)
			t[i] = (now_us() - begin) / 2;
	}
	if (stream)
		print_mean(now_us() - start, n);
	else
		print_times(t, n);
	reap(pid);
	return 0;
}
