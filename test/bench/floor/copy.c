// copy memcpy SIZE N  one copy within a process
// copy vm SIZE N      one process_vm_readv from another process, which is asleep
#include "floor.h"
#include <sys/uio.h>

int main(int argc, char **argv)
{
	if (argc != 4 || (strcmp(argv[1], "memcpy") && strcmp(argv[1], "vm")))
		fail("usage: copy memcpy|vm SIZE N");
	int vm = !strcmp(argv[1], "vm");
	size_t size = number(argv[2], 1);
	long n = number(argv[3], 1);
	char *from = map(size, MAP_PRIVATE), *to = map(size, MAP_PRIVATE);
	struct iovec here = {to, size}, there = {from, size};
	pid_t pid = 0;
	double begin = 0;

	memset(from, 1, size);
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
			memcpy(to, from, size);
			__asm__ volatile("" ::"r"(to) : "memory"); // or the compiler would copy once
		}
	}
	print_mean(now_us() - begin, n);
	if (vm)
		kill(pid, SIGKILL);
	return 0;
}
