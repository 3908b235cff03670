// TestRDMATool preloads this library into rdma(8). It replaces a NETLINK_RDMA socket with a connection to the test, which
// answers in place of the kernel. The process must have only one such socket.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/netlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int trapped = -1;

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int socket(int domain, int type, int protocol) {
	if (domain != AF_NETLINK || protocol != NETLINK_RDMA)
		return NEXT(socket)(domain, type, protocol);
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	strncpy(addr.sun_path, getenv("NLDEV_TEST_SOCKET"), sizeof addr.sun_path - 1);
	int fd = NEXT(socket)(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr)) {
		close(fd);
		return -1;
	}
	return trapped = fd;
}

static void fill(void *addr, socklen_t *size, unsigned pid) {
	struct sockaddr_nl nl = {.nl_family = AF_NETLINK, .nl_pid = pid};
	memcpy(addr, &nl, *size < sizeof nl ? *size : sizeof nl);
	*size = sizeof nl;
}

int bind(int fd, const struct sockaddr *addr, socklen_t size) {
	return fd == trapped ? 0 : NEXT(bind)(fd, addr, size);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t size) {
	return fd == trapped ? 0 : NEXT(setsockopt)(fd, level, name, value, size);
}

int getsockname(int fd, struct sockaddr *addr, socklen_t *size) {
	if (fd != trapped)
		return NEXT(getsockname)(fd, addr, size);
	fill(addr, size, 4711);
	return 0;
}

ssize_t sendto(int fd, const void *buf, size_t n, int flags, const struct sockaddr *addr, socklen_t size) {
	if (fd != trapped)
		return NEXT(sendto)(fd, buf, n, flags, addr, size);
	return send(fd, buf, n, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags) {
	if (fd != trapped)
		return NEXT(sendmsg)(fd, msg, flags);
	struct msghdr plain = {.msg_iov = msg->msg_iov, .msg_iovlen = msg->msg_iovlen};
	return NEXT(sendmsg)(fd, &plain, flags);
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags) {
	if (fd != trapped)
		return NEXT(recvmsg)(fd, msg, flags);
	struct msghdr plain = *msg;
	plain.msg_name = NULL;
	plain.msg_namelen = 0;
	ssize_t n = NEXT(recvmsg)(fd, &plain, flags);
	msg->msg_flags = plain.msg_flags;
	msg->msg_controllen = 0;
	if (n >= 0 && msg->msg_name)
		fill(msg->msg_name, &msg->msg_namelen, 0);
	return n;
}
