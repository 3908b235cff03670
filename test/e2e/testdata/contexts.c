// Many independent contexts in one process, children that inherit a context, and reused handles.
#include "verbs.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 100;
	struct rlimit l;
	CHECK(!getrlimit(RLIMIT_NOFILE, &l));
	l.rlim_cur = l.rlim_max;
	CHECK(!setrlimit(RLIMIT_NOFILE, &l));
	struct ibv_context **ctx = calloc(n, sizeof(*ctx));
	struct ibv_pd **pd = calloc(n, sizeof(*pd));
	for (int i = 0; i < n; i++) {
		ctx[i] = open_device();
		CHECK(pd[i] = ibv_alloc_pd(ctx[i]));
	}
	// A handle is valid only in its context.
	struct ibv_pd *second = ibv_alloc_pd(ctx[0]);
	CHECK(second);
	struct ibv_pd foreign = *second;
	foreign.context = ctx[n - 1];
	struct ibv_mr *mr = ibv_reg_mr(&foreign, ctx, 8, 0);
	CHECK(!mr && (errno == ENOENT || errno == EINVAL));

	// The handle of a destroyed object is not reused soon.
	uint32_t gone = second->handle;
	struct ibv_pd stale = *second;
	CHECK(!ibv_dealloc_pd(second));
	CHECK(second = ibv_alloc_pd(ctx[0]));
	if (second->handle != gone)
		CHECK(!ibv_reg_mr(&stale, ctx, 8, 0) && (errno == ENOENT || errno == EINVAL));

	// A child inherits the context, and registers memory of its own.
	char *mine = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mine != MAP_FAILED);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(mr = ibv_reg_mr(pd[0], mine, 4096, IBV_ACCESS_LOCAL_WRITE));
		CHECK(!ibv_dereg_mr(mr));
		CHECK(!munmap(mine, 4096));
		CHECK(!ibv_reg_mr(pd[0], mine, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
		_exit(0);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(mr = ibv_reg_mr(pd[0], mine, 4096, IBV_ACCESS_LOCAL_WRITE)); // the parent still has the context
	CHECK(!ibv_dereg_mr(mr));

	if (argc > 2) { // exit without cleanup; the service frees all objects
		puts("ok");
		fflush(stdout);
		_exit(0);
	}
	CHECK(!ibv_dealloc_pd(second));
	for (int i = 0; i < n; i++) {
		CHECK(!ibv_dealloc_pd(pd[i]));
		CHECK(!ibv_close_device(ctx[i]));
	}
	puts("ok");
	return 0;
}
