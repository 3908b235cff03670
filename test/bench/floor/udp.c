// udp pingpong SIZE N        half a round trip between two polling processes, each on its own processor
// udp plain SIZE N           a stream of N messages of SIZE bytes in datagrams of up to 4 KB
// udp offload SIZE N         a stream as above with segmentation and receive offload (GSO, GRO), up to 15 packets in each call
// udp offload-crc SIZE N     a stream with offload, and a CRC-32 of each packet at both ends
// udp check                  test the CRC-32
//
// The only flow control of a stream is the receiver's count in shared memory.
#include "floor.h"
#include "crc32.h"
#include "udp.h"
#include <stdatomic.h>

static _Atomic long *received; // number of bytes, in shared memory

static void send_all(int fd, const void *buf, size_t n)
{
	if (send(fd, buf, n, 0) != (ssize_t)n)
		die("send");
}

static void receive_exactly(int fd, char *buf, size_t size)
{
	double deadline = 0;

	for (long tries = 1;; tries++) {
		ssize_t n = recv(fd, buf, size, MSG_DONTWAIT);

		if (n == (ssize_t)size)
			return;
		if (n >= 0)
			fail("a datagram of another size");
		if (errno != EAGAIN)
			die("recv");
		if (tries % 65536 == 0) {
			if (deadline == 0)
				deadline = now_us() + 5e6;
			if (now_us() > deadline)
				fail("no datagram within 5 s");
		}
	}
}

static void pingpong(int fd, int first, size_t size, long n)
{
	char *buf = map(size, MAP_PRIVATE);
	double *t = calloc(n, sizeof *t);

	if (!t)
		die("calloc");
	for (long i = -(n / 10); i < n; i++) {
		double begin = now_us();

		if (first)
			send_all(fd, buf, size);
		receive_exactly(fd, buf, size);
		if (!first)
			send_all(fd, buf, size);
		if (i >= 0)
			t[i] = (now_us() - begin) / 2;
	}
	if (first)
		print_times(t, n);
}

// send_stream sends the bytes of payload from sent up to total.
static void send_stream(int fd, long sent, long total, int offload, int crc)
{
	int rcvbuf;
	socklen_t len = sizeof rcvbuf;
	char *buf = map(BATCH, MAP_PRIVATE);
	long window;

	if (getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, &len))
		die("getsockopt SO_RCVBUF");
	window = rcvbuf / 4;
	memset(buf, 1, BATCH);
	while (sent < total) {
		long left = (total - sent + DATA - 1) / DATA;
		int packets = !offload ? 1 : left < SEGMENTS ? left : SEGMENTS;
		double deadline = 0;

		for (int i = 0; crc && i < packets; i++) {
			uint32_t c = crc32(buf + i * PACKET, DATA);

			memcpy(buf + i * PACKET + DATA, &c, 4);
		}
		for (long tries = 1; sent - atomic_load_explicit(received, memory_order_acquire) > window; tries++)
			if (tries % 1000000 == 0) {
				if (deadline == 0)
					deadline = now_us() + 5e6;
				if (now_us() > deadline)
					fail("datagrams were lost");
			}
		send_all(fd, buf, (size_t)packets * PACKET);
		sent += (long)packets * DATA;
	}
}

static void receive_stream(int fd, long total, int offload, int crc)
{
	char *buf = map(65536, MAP_PRIVATE);
	struct timeval limit = {.tv_sec = 5};
	long got = 0;

	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit))
		die("setsockopt SO_RCVTIMEO");
	while (got < total) {
		ssize_t n = recv(fd, buf, 65536, 0);

		if (n < 0)
			die("recv (datagrams were lost?)");
		if (n % PACKET || (!offload && n != PACKET))
			fail("a datagram of another size");
		for (int i = 0; crc && i < n / PACKET; i++) {
			uint32_t c;

			memcpy(&c, buf + i * PACKET + DATA, 4);
			if (c != crc32(buf + i * PACKET, DATA))
				fail("a wrong CRC");
		}
		got += n / PACKET * DATA;
		atomic_store_explicit(received, got, memory_order_release);
	}
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int offload = !strncmp(mode, "offload", 7), crc = !strcmp(mode, "offload-crc"), pp = !strcmp(mode, "pingpong");
	struct sockaddr_in a, b;
	int one, other;
	pid_t pid;

	crc_init();
	if (!strcmp(mode, "check")) {
		if (!crc_check())
			fail("the CRC-32 is wrong");
		return 0;
	}
	if (argc != 4 || !(pp || crc || !strcmp(mode, "offload") || !strcmp(mode, "plain")))
		fail("usage: udp pingpong|plain|offload|offload-crc SIZE N | check");
	size_t size = number(argv[2], 1);
	long n = number(argv[3], 1);

	if (pp && size > 65507)
		fail("udp pingpong: a datagram has at most 65507 bytes");
	received = map(4096, MAP_SHARED);
	one = bound(&a), other = bound(&b);
	if (connect(one, (void *)&b, sizeof b) || connect(other, (void *)&a, sizeof a))
		die("connect");
	if (offload) {
		option(one, UDP_SEGMENT, PACKET);
		option(other, UDP_GRO, 1);
	}
	long warm = n / 10, total = (long)(size + DATA - 1) / DATA * DATA; // a message is whole packets

	if (!pp && size < DATA)
		fail("udp: a stream has messages of at least 4096 bytes");
	pid = fork_child();
	pin(pid == 0);
	if (pp) {
		pingpong(pid ? one : other, pid != 0, size, n);
	} else if (pid == 0) {
		receive_stream(other, total * (n + warm), offload, crc);
	} else {
		send_stream(one, 0, total * warm, offload, crc);
		while (atomic_load(received) < total * warm)
			if (waitpid(pid, NULL, WNOHANG))
				fail("the receiver ended");
		double begin = now_us();

		send_stream(one, total * warm, total * (n + warm), offload, crc);
		reap(pid);
		print_mean(now_us() - begin, n);
		return 0;
	}
	if (pid)
		reap(pid);
	return 0;
}
