// Common functions of the floors: clock, processors, errors, and the line of output.
//
// A floor is the minimum cost of an operation on this machine, measured without code of Verbena. Each program
// prints "mean=US typical=US p99=US", in microseconds per operation. typical (the median) and p99 appear only if the
// program measures each operation.
#ifndef FLOOR_H
#define FLOOR_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static inline double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static inline void fail(const char *why)
{
	fprintf(stderr, "%s\n", why);
	exit(1);
}

// pin binds the calling thread to the nth processor that this process may use.
static inline void pin(int nth)
{
	cpu_set_t all, one;

	if (sched_getaffinity(0, sizeof all, &all))
		die("sched_getaffinity");
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all) && nth-- == 0) {
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			if (sched_setaffinity(0, sizeof one, &one))
				die("sched_setaffinity");
			return;
		}
	fail("two processes that poll need two processors");
}

// fork_child forks. The child is killed when its parent ends.
static inline pid_t fork_child(void)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		die("fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
	}
	return pid;
}

// reap waits for a child, and fails if the child has failed.
static inline void reap(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	if (status)
		fail("a child failed");
}

static inline void *map(size_t size, int flags)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

static inline long number(const char *s, long least)
{
	char *end;
	long v = strtol(s, &end, 10);

	if (*end || v < least) {
		fprintf(stderr, "%s: not a number of at least %ld\n", s, least);
		exit(2);
	}
	return v;
}

static inline int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

// print_times sorts the times of n operations, and prints their statistics.
static inline void print_times(double *t, long n)
{
	double sum = 0;

	for (long i = 0; i < n; i++)
		sum += t[i];
	qsort(t, n, sizeof *t, compare_doubles);
	printf("mean=%.4f typical=%.4f p99=%.4f\n", sum / n, t[n / 2], t[n * 99 / 100]);
}

static inline void print_mean(double took, long n)
{
	printf("mean=%.6f\n", took / n);
}
#endif
