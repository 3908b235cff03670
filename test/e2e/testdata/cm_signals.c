// A call that waits for an event of the connection manager returns EINTR, or continues after the handler, as
// sigaction(2) specifies. A non-blocking descriptor returns EAGAIN, however O_NONBLOCK was set. poll(2) reports no
// event.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <unistd.h>
#include <rdma/rdma_user_cm.h>

static volatile sig_atomic_t handled;
static void handler(int s) { handled++; }

static char response[512];

static ssize_t get_event(int fd)
{
	struct { struct rdma_ucm_cmd_hdr hdr; struct rdma_ucm_get_event cmd; } c = {
		{RDMA_USER_CM_CMD_GET_EVENT, sizeof c.cmd, sizeof response}, {(uintptr_t)response}};
	return write(fd, &c, sizeof c);
}

#define CHECK(x) do { if (!(x)) { printf("line %d: %s: errno %d\n", __LINE__, #x, errno); exit(1); } } while (0)

static void arm(int flags, int ms)
{
	struct sigaction a = {.sa_handler = handler, .sa_flags = flags};
	CHECK(!sigaction(SIGALRM, &a, NULL));
	struct itimerval t = {.it_value = {0, ms * 1000}};
	CHECK(!setitimer(ITIMER_REAL, &t, NULL));
}

static int the_fd;
static void *other(void *arg)
{
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	*(ssize_t *)arg = get_event(the_fd);
	return NULL;
}

int main(void)
{
	int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	arm(0, 100);
	errno = 0;
	CHECK(get_event(fd) == -1 && errno == EINTR && handled == 1);
	puts("interrupted");

	arm(SA_RESTART, 100);
	int pid = fork();
	CHECK(pid >= 0);
	if (!pid) { // only the parent has the timer; the child ends the parent's wait
		usleep(600 * 1000);
		kill(getppid(), SIGUSR1);
		_exit(0);
	}
	struct sigaction u = {.sa_handler = handler};
	CHECK(!sigaction(SIGUSR1, &u, NULL));
	CHECK(get_event(fd) == -1 && errno == EINTR && handled == 3);
	puts("restarted");

	// A thread that blocks the signals keeps waiting while the main thread handles them.
	pthread_t t;
	ssize_t got = -2;
	the_fd = fd;
	CHECK(!pthread_create(&t, NULL, other, &got));
	usleep(50 * 1000);
	arm(0, 50);
	pause();
	usleep(200 * 1000);
	CHECK(handled == 4 && got == -2);
	puts("left alone");

	CHECK(!fcntl(fd, F_SETFL, O_NONBLOCK));
	CHECK(get_event(fd) == -1 && errno == EAGAIN);
	CHECK(!fcntl(fd, F_SETFL, 0));
	int one = 1;
	CHECK(!ioctl(fd, FIONBIO, &one));
	CHECK(get_event(fd) == -1 && errno == EAGAIN);
	int fd2 = dup(fd);
	CHECK(fd2 >= 0 && get_event(fd2) == -1 && errno == EAGAIN);
	int fd3 = open("/dev/infiniband/rdma_cm", O_RDWR | O_NONBLOCK);
	CHECK(fd3 >= 0 && get_event(fd3) == -1 && errno == EAGAIN);
	puts("not blocking");

	struct pollfd p = {fd, POLLIN, 0};
	CHECK(poll(&p, 1, 100) == 0);
	puts("ok");
	fflush(stdout);
	_exit(0); // with a waiting thread
}
