// copy memcpy SIZE N  time of one copy within a process
// copy far SIZE N     time of one copy of SIZE bytes between buffers that are larger than the caches
// copy vm SIZE N      time of one process_vm_readv from another process, which sleeps
#include "floor.h"
#include <sys/uio.h>

#define FAR (256UL << 20)

int main(int argc, char **argv)
{
	if (argc != 4 || (strcmp(argv[1], "memcpy") && strcmp(argv[1], "far") && strcmp(argv[1], "vm")))
		fail("usage: copy memcpy|far|vm SIZE N");
	int vm = !strcmp(argv[1], "vm");
	size_t size = number(argv[2], 1);
	long n = number(argv[3], 1);
	size_t whole = size, at = 0;
	if (!strcmp(argv[1], "far"))
		whole = size > FAR ? size : FAR / size * size;
	char *from = map(whole, MAP_PRIVATE), *to = map(whole, MAP_PRIVATE);
	struct iovec here = {to, size}, there = {from, size};
	pid_t pid = 0;
	double begin = 0;

	memset(from, 1, whole);
	if (vm && (pid = fork_child()) == 0)
		for (;;)
			pause();
	for (long i = -(n / 10); i < n; i++) {
		if (i == 0)
			begin = now_us();
		if (vm) {
			if (process_vm_readv(pid, &here, 1, &there, 1, 0) != (ssize_t)size)
				die("process_vm_readv");
		} else {
			memcpy(to + at, from + at, size);
			at = (at + size) % whole;
			__asm__ volatile("" ::"r"(to) : "memory"); // prevents the compiler from removing copies
		}
	}
	print_mean(now_us() - begin, n);
	if (vm)
		kill(pid, SIGKILL);
	return 0;
}
