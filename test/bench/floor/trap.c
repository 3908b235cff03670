// trap call N           a system call answered by a minimal seccomp supervisor in another process
// trap stream SIZE N    a trapped system call, and SIZE bytes copied from the caller to a third process, which sleeps
// trap pingpong SIZE N  half a round trip of two polling callers, with each copy started by a trapped call
// trap wire SIZE N      pingpong with the steps of the wire: the supervisor sends each message through a UDP socket, with a CRC-32
//                       of each packet, receives, checks and acknowledges it in the same thread
//
// This is the floor of an unmodified program's doorbell, and of messages on the shortcut and on the wire.
#include "floor.h"
#include "crc32.h"
#include "udp.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { DOORBELL = 200, DOORBELL_BYTES = 32 };

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif
#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP (1UL << 0)
#endif

// Each process has its own copy of these variables at the same addresses.
static size_t size;
static char *source, *destination;

// trap_doorbell installs a filter that turns write() to DOORBELL in this process into a notification. It returns the listener.
static int trap_doorbell(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, DOORBELL, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof code / sizeof *code, code};
	int fd;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		die("prctl NO_NEW_PRIVS");
	fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
		     SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &prog);
	if (fd < 0)
		die("seccomp NEW_LISTENER");
	return fd;
}

static void send_fd(int sock, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (sendmsg(sock, &msg, 0) != 1)
		die("sendmsg");
}

static int receive_fd(int sock)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fd;

	if (recvmsg(sock, &msg, 0) != 1 || !CMSG_FIRSTHDR(&msg))
		fail("no listener from the caller");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof fd);
	return fd;
}

struct supervised {
	int listener;
	pid_t from, to; // a value of 0 in to means no copy
	char *bounce;
	int out, in; // UDP sockets of the wire, if there is one
	char *batch;
};

static void pass_on(int from, int to, char *buf, ssize_t n)
{
	if (send(from, buf, n, 0) != n)
		die("send");
	if (recv(to, buf, n, MSG_DONTWAIT) != n)
		die("receive what was sent");
}

// cross copies the message through the sockets, in packets with a CRC-32 each, and sends a short acknowledgement back.
static void cross(const struct supervised *s)
{
	char ack[20] = {0};

	for (size_t at = 0, n; at < size; at += n) {
		struct iovec here[SEGMENTS], there;
		size_t packets = 0, len = 0;

		for (n = 0; n < size - at && packets < SEGMENTS; packets++) {
			size_t part = size - at - n < DATA ? size - at - n : DATA;

			here[packets] = (struct iovec){s->batch + len, part};
			n += part;
			len += part + 4;
		}
		there = (struct iovec){source + at, n};
		if (process_vm_readv(s->from, here, packets, &there, 1, 0) != (ssize_t)n)
			die("process_vm_readv");
		for (size_t i = 0; i < packets; i++) {
			uint32_t c = crc32(here[i].iov_base, here[i].iov_len);

			memcpy((char *)here[i].iov_base + here[i].iov_len, &c, 4);
		}
		pass_on(s->out, s->in, s->batch, len);
		for (size_t i = 0; i < packets; i++) {
			uint32_t c = crc32(here[i].iov_base, here[i].iov_len);

			if (memcmp((char *)here[i].iov_base + here[i].iov_len, &c, 4))
				fail("wrong CRC-32");
		}
		there.iov_base = destination + at;
		if (process_vm_writev(s->to, here, packets, &there, 1, 0) != (ssize_t)n)
			die("process_vm_writev");
	}
	pass_on(s->in, s->out, ack, sizeof ack);
}

static void open_wire(struct supervised *s)
{
	struct sockaddr_in out, in;

	s->out = bound(&out);
	s->in = bound(&in);
	if (connect(s->out, (void *)&in, sizeof in) || connect(s->in, (void *)&out, sizeof out))
		die("connect");
	option(s->out, UDP_SEGMENT, PACKET);
	option(s->in, UDP_GRO, 1);
	s->batch = map(BATCH, MAP_PRIVATE);
}

static void copy(const struct supervised *s)
{
	struct iovec here = {s->bounce, size}, there = {source, size};

	if (process_vm_readv(s->from, &here, 1, &there, 1, 0) != (ssize_t)size)
		die("process_vm_readv");
	there.iov_base = destination;
	if (process_vm_writev(s->to, &here, 1, &there, 1, 0) != (ssize_t)size)
		die("process_vm_writev");
}

// supervise answers the calls of one process until it has ended.
static void *supervise(void *arg)
{
	struct supervised *s = arg;
	__u64 flags = SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP;

	if (ioctl(s->listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, flags))
		fprintf(stderr, "no SYNC_WAKE_UP (Linux 6.6): %s\n", strerror(errno));
	for (;;) {
		struct seccomp_notif call = {0};
		struct seccomp_notif_resp answer = {0};

		if (ioctl(s->listener, SECCOMP_IOCTL_NOTIF_RECV, &call)) {
			if (errno == EINTR)
				continue;
			return NULL; // ENOENT: the process has ended
		}
		if (s->batch)
			cross(s);
		else if (s->to)
			copy(s);
		answer.id = call.id;
		answer.val = DOORBELL_BYTES;
		if (ioctl(s->listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) && errno != ENOENT)
			die("NOTIF_SEND");
	}
}

static void ring(void)
{
	if (write(DOORBELL, source, DOORBELL_BYTES) != DOORBELL_BYTES)
		die("write to the doorbell");
}

// caller rings the doorbell n times, and prints the times. It rings immediately, or after the message of the other caller.
static void caller(int sock, long n, int pingpong, int first)
{
	volatile unsigned char *in = (unsigned char *)destination + size - 1;
	long warm = n / 10;
	double *t = calloc(n, sizeof *t), begin = 0;
	char go;

	if (!t)
		die("calloc");
	send_fd(sock, trap_doorbell());
	if (read(sock, &go, 1) != 1)
		fail("the supervisor ended");
	for (long i = -warm; i < n; i++) {
		if (pingpong && !first)
			while (*in != (unsigned char)(i + warm + 1))
				;
		begin = now_us();
		if (pingpong)
			source[size - 1] = i + warm + 1;
		ring();
		if (pingpong && first)
			while (*in != (unsigned char)(i + warm + 1))
				;
		if (i >= 0)
			t[i] = (now_us() - begin) / (pingpong ? 2 : 1);
	}
	if (first)
		print_times(t, n);
	fflush(stdout);
	_exit(0);
}

static pid_t start(int pair[2], long n, int pingpong, int first)
{
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		die("socketpair");
	pid = fork_child();
	if (pid == 0) {
		close(pair[0]); // the parent's end, so that the child notices the exit of the parent
		caller(pair[1], n, pingpong, first);
	}
	close(pair[1]);
	return pid;
}

int main(int argc, char **argv)
{
	int wire = argc > 1 && !strcmp(argv[1], "wire"), stream = argc > 1 && !strcmp(argv[1], "stream");
	int pingpong = wire || (argc > 1 && !strcmp(argv[1], "pingpong"));
	int call = argc > 1 && !strcmp(argv[1], "call");
	struct supervised of[2] = {{0}};
	pthread_t thread[2];
	pid_t pid[2] = {0};
	int pair[2][2];
	long n;

	if (!(call && argc == 3) && !((pingpong || stream) && argc == 4))
		fail("usage: trap call N | stream SIZE N | pingpong SIZE N | wire SIZE N");
	size = call ? DOORBELL_BYTES : number(argv[2], 1);
	n = number(argv[argc - 1], 1);
	source = map(size + DOORBELL_BYTES, MAP_PRIVATE);
	destination = map(size, MAP_PRIVATE);
	crc_init();
	memset(source, 0, size);

	pid[0] = start(pair[0], n, pingpong, 1);
	if (pingpong) {
		pid[1] = start(pair[1], n, 1, 0);
	} else if (stream) {
		pid[1] = fork_child();
		if (pid[1] == 0)
			for (;;)
				pause();
	}
	for (int i = 0; i < 1 + pingpong; i++) {
		of[i] = (struct supervised){receive_fd(pair[i][0]), pid[i], pid[1 - i], map(size, MAP_PRIVATE), 0, 0, NULL};
		if (wire)
			open_wire(&of[i]);
		if (pthread_create(&thread[i], NULL, supervise, &of[i]))
			fail("pthread_create");
	}
	for (int i = 1 + pingpong; i-- > 0;)
		if (write(pair[i][0], "", 1) != 1)
			die("write");
	reap(pid[0]);
	if (pingpong)
		reap(pid[1]);
	else if (stream)
		kill(pid[1], SIGKILL);
	return 0;
}
