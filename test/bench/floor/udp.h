// Functions for UDP sockets on the loopback interface.
#ifndef UDP_H
#define UDP_H
#include "floor.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

enum { DATA = 4096, PACKET = DATA + 4, SEGMENTS = 15, BATCH = PACKET * SEGMENTS };

static inline int bound(struct sockaddr_in *at)
{
	socklen_t len = sizeof *at;
	int fd = socket(AF_INET, SOCK_DGRAM, 0), big = 4 << 20;

	*at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (fd < 0 || bind(fd, (void *)at, len) || getsockname(fd, (void *)at, &len))
		die("bind");
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &big, sizeof big))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &big, sizeof big);
	return fd;
}

static inline void option(int fd, int name, int value)
{
	if (setsockopt(fd, IPPROTO_UDP, name, &value, sizeof value))
		die("setsockopt of UDP offload (Linux 5.0)");
}
#endif
