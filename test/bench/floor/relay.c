// relay pingpong SIZE N  half a round trip between two processes through shared memory and a third process
// relay stream SIZE N    a stream of N messages through the third process, 64 in flight
//
// All three processes yield the processor when they have no work, because there may be more polling processes than processors.
#include "floor.h"
#include <stdatomic.h>

#define SLOTS 64

// ring carries messages from one process to another.
struct ring {
	_Alignas(64) atomic_long head; // number of messages written
	_Alignas(64) atomic_long tail; // number of messages read
};

// rings connect the client with the relay and the relay with the server, in both directions. Their messages follow them.
enum { TO_RELAY, TO_SERVER, BACK, TO_CLIENT, RINGS };

static struct ring *rings;
static char *slots;
static size_t size;

static char *slot(int ring, long i) { return slots + (ring * SLOTS + i % SLOTS) * size; }

// forward copies the next message from one ring to another, if there is a message and a free slot.
static int forward(int from, int to)
{
	long i = atomic_load_explicit(&rings[from].tail, memory_order_relaxed);
	long o = atomic_load_explicit(&rings[to].head, memory_order_relaxed);

	if (i == atomic_load_explicit(&rings[from].head, memory_order_acquire) ||
	    o - atomic_load_explicit(&rings[to].tail, memory_order_acquire) == SLOTS)
		return 0;
	memcpy(slot(to, o), slot(from, i), size);
	atomic_store_explicit(&rings[to].head, o + 1, memory_order_release);
	atomic_store_explicit(&rings[from].tail, i + 1, memory_order_release);
	return 1;
}

static void put(int ring, const char *message)
{
	long o = atomic_load_explicit(&rings[ring].head, memory_order_relaxed);

	while (o - atomic_load_explicit(&rings[ring].tail, memory_order_acquire) == SLOTS)
		sched_yield();
	memcpy(slot(ring, o), message, size);
	atomic_store_explicit(&rings[ring].head, o + 1, memory_order_release);
}

static void get(int ring, char *message)
{
	long i = atomic_load_explicit(&rings[ring].tail, memory_order_relaxed);

	while (i == atomic_load_explicit(&rings[ring].head, memory_order_acquire))
		sched_yield();
	memcpy(message, slot(ring, i), size);
	atomic_store_explicit(&rings[ring].tail, i + 1, memory_order_release);
}

int main(int argc, char **argv)
{
	if (argc != 4 || (strcmp(argv[1], "pingpong") && strcmp(argv[1], "stream")))
		fail("usage: relay pingpong|stream SIZE N");
	int stream = !strcmp(argv[1], "stream");
	size = number(argv[2], 1);
	long n = number(argv[3], 1), warm = n / 10;
	rings = map(RINGS * sizeof *rings, MAP_SHARED);
	slots = map(RINGS * SLOTS * size, MAP_SHARED);
	char *message = map(size, MAP_PRIVATE);
	double *t = calloc(n, sizeof *t), start = now_us();
	pid_t relay, server;

	if (!t)
		die("calloc");
	memset(message, 1, size);
	if ((relay = fork_child()) == 0)
		for (;;)
			if (!(forward(TO_RELAY, TO_SERVER) | forward(BACK, TO_CLIENT)))
				sched_yield();
	if ((server = fork_child()) == 0) {
		for (long i = -warm; i < n; i++) {
			get(TO_SERVER, message);
			if (!stream || i == -1 || i == n - 1)
				put(BACK, message);
		}
		return 0;
	}
	for (long i = -warm; i < n; i++) {
		double begin = now_us();

		if (i == 0)
			start = begin;
		put(TO_RELAY, message);
		if (!stream || i == -1 || i == n - 1)
			get(TO_CLIENT, message);
		if (i >= 0)
			t[i] = (now_us() - begin) / 2;
	}
	if (stream)
		print_mean(now_us() - start, n);
	else
		print_times(t, n);
	reap(server);
	kill(relay, SIGKILL);
	return 0;
}
