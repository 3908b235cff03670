// A program with one fault, which its argument selects: overflow, freed, undefined, race or leak. The argument right
// selects none. The program first writes to its own memory over RDMA, and sleeps until the completion.
#include "verbs.h"
#include <pthread.h>

enum { SIZE = 4096, LENGTH = 64 };

static char *memory;

static void *count(void *at)
{
	++*(int *)at;
	return NULL;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	int overflow = !strcmp(argv[1], "overflow"), freed = !strcmp(argv[1], "freed");
	int undefined = !strcmp(argv[1], "undefined"), race = !strcmp(argv[1], "race"), leak = !strcmp(argv[1], "leak");
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, channel, 0);
	CHECK(pd && channel && cq);
	memory = malloc(SIZE);
	if (!undefined)
		memset(memory, 0, SIZE);
	memset(memory, 'x', LENGTH);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	struct ibv_qp *qp = create_qp(pd, cq, NULL);
	connect_qp(qp, qp);

	CHECK(!ibv_req_notify_cq(cq, 0));
	struct ibv_sge sge = {(uintptr_t)memory, LENGTH, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + SIZE / 2;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	struct ibv_cq *ready;
	void *unused;
	CHECK(!ibv_get_cq_event(channel, &ready, &unused));
	ibv_ack_cq_events(ready, 1);
	struct ibv_wc wc;
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	if (!undefined)
		CHECK(memory[SIZE / 2] == 'x' && memory[SIZE / 2 + LENGTH - 1] == 'x');

	if (overflow)
		memory[SIZE] = 1;
	if (undefined && memory[SIZE / 2 + LENGTH] == 'y')
		puts("the memory behind the data happens to be y");
	if (race) {
		pthread_t other;
		CHECK(!pthread_create(&other, NULL, count, memory));
		count(memory);
		pthread_join(other, NULL);
	}
	if (leak) {
		char *volatile lost = malloc(77);
		lost = NULL;
		(void)lost;
	}
	CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	free(memory);
	if (freed)
		printf("freed memory has %d\n", memory[100]);
	puts("done");
	return 0;
}
