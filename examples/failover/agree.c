/*
 * Two rails of reliable connections, of which one is lost. Completions report the loss to the sender, but not to the receiver.
 * A chunk whose send has failed may have arrived. The two ends therefore exchange notes over an unreliable connection (UC) of
 * the working rail: a UC queue pair does not enter the error state when a message is lost, and the sender repeats the question.
 * The receiver first stops its end of the lost rail, after which no chunk arrives there, and then lists the arrived chunks.
 * With BUG the sender does not ask, and repeats all failed chunks.
 *
 *	agree recv PORT COUNT DEVICE DEVICE
 *	agree send PORT COUNT DEVICE DEVICE
 */
#include "common.h"

enum { RAILS = 2, WINDOW = 16, SIZE = 1024, MAX = 4096, ASK_AGAIN_MS = 20, ASK_LIMIT = 100, UC_RECEIVES = 8, UC_ID = 1 << 30 };

/* note is a message over UC: the sender's question, or the receiver's answer. */
struct note {
	uint32_t lost; /* number of the lost rail */
	uint32_t answer;
	unsigned char have[MAX / 8];
};

static struct shared {
	char chunk[DEPTH][SIZE];
	struct note in[UC_RECEIVES], out;
} memory[RAILS];
static struct rail rail[RAILS];
static struct ibv_qp *uc[RAILS];
static int lost[RAILS];

static void post_note_receive(int i, uint64_t n)
{
	if (post_recv(&rail[i], uc[i], &memory[i].in[n], sizeof(struct note), UC_ID + n))
		die("post_recv");
}

static void open_rails(char **devices, int tcp, int receives)
{
	struct peer to;

	for (int i = 0; i < RAILS; i++) {
		struct rail *r = &rail[i];

		if (rail_open(r, devices[i], &memory[i], sizeof memory[i]) || !(r->qp = create_qp(r, IBV_QPT_RC)) ||
		    !(uc[i] = create_qp(r, IBV_QPT_UC)))
			die(devices[i]);
		for (uint64_t j = 0; receives && j < DEPTH; j++)
			if (post_recv(r, r->qp, memory[i].chunk[j], SIZE, j))
				die("post_recv");
		for (uint64_t j = 0; j < UC_RECEIVES; j++)
			post_note_receive(i, j);
		if (meet(tcp, r, r->qp, 0, &to, usual) || meet(tcp, r, uc[i], 0, &to, usual))
			die("meet");
	}
}

static int close_rails(void)
{
	int left = 0;

	for (int i = 0; i < RAILS; i++)
		left += !!ibv_destroy_qp(uc[i]) + rail_close(&rail[i]);
	return left;
}

/*
 * send_note sends memory[i].out. It may be called again before the last note has completed: the new note is the same question,
 * or a later answer.
 */
static void send_note(int i)
{
	if (post_send(&rail[i], uc[i], &memory[i].out, sizeof(struct note), UC_ID))
		die("post_send");
}

/* ---- The receiver ---- */

static unsigned char have[MAX];
static uint32_t delivered, doubles;

/* arrive records a chunk, and counts the chunks that are delivered in order. */
static void arrive(const char *chunk, uint32_t count)
{
	uint32_t seq;

	memcpy(&seq, chunk, sizeof seq);
	if (seq >= count)
		quit("chunk %u of %u", seq, count);
	if (have[seq]++ && !doubles++)
		say("chunk %u has arrived twice", seq);
	while (delivered < count && have[delivered])
		delivered++;
}

/* stop_rail moves the receiver's end of a rail to the error state, and records the chunks that have arrived before. */
static void stop_rail(int i, uint32_t count)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	struct ibv_wc wc;

	if (lost[i])
		return;
	lost[i] = 1;
	say("rail %d is stopped", i);
	if (ibv_modify_qp(rail[i].qp, &a, IBV_QP_STATE))
		die("modify_qp");
	for (int flushed = 0; flushed < DEPTH;) { /* every receive completes, with or without a chunk */
		if (ibv_poll_cq(rail[i].cq, 1, &wc) < 1) {
			rest();
			continue;
		}
		if (wc.wr_id >= UC_ID)
			continue;
		flushed++;
		if (wc.status == IBV_WC_SUCCESS)
			arrive(memory[i].chunk[wc.wr_id], count);
	}
}

static void answer(int i, uint32_t which, uint32_t count)
{
	struct note *out = &memory[i].out;

	if (which >= RAILS || (int)which == i)
		quit("rail %u cannot be lost: the note came by rail %d", which, i);
	stop_rail((int)which, count);
	out->lost = which;
	out->answer = 1;
	memset(out->have, 0, sizeof out->have);
	for (uint32_t seq = 0; seq < count; seq++)
		if (have[seq])
			out->have[seq / 8] |= (unsigned char)(1 << seq % 8);
	send_note(i);
}

static int receiver(const char *port, uint32_t count, char **devices)
{
	int tcp = accept(tcp_listen(port), NULL, NULL);
	struct ibv_wc wc;

	open_rails(devices, tcp, 1);
	for (;;) {
		int idle = 1, ended = readable(tcp);

		for (int i = 0; i < RAILS; i++)
			while (!lost[i] && ibv_poll_cq(rail[i].cq, 1, &wc) > 0) {
				idle = 0;
				if (wc.status != IBV_WC_SUCCESS)
					quit("rail %d: %s", i, ibv_wc_status_str(wc.status));
				if (wc.opcode != IBV_WC_RECV) {
					rail[i].outstanding--;
				} else if (wc.wr_id < UC_ID) {
					arrive(memory[i].chunk[wc.wr_id], count);
					if (post_recv(&rail[i], rail[i].qp, memory[i].chunk[wc.wr_id], SIZE, wc.wr_id))
						die("post_recv");
				} else {
					answer(i, memory[i].in[wc.wr_id - UC_ID].lost, count);
					post_note_receive(i, wc.wr_id - UC_ID);
				}
			}
		if (idle && ended)
			break;
		if (idle)
			rest();
	}
	say("delivered %u of %u in order, %u twice", delivered, count, doubles);
	return close_rails() || delivered != count || doubles;
}

/* ---- The sender ---- */

static uint32_t failed[2 * WINDOW], fails; /* chunks to ask about, then to send again */
static uint32_t done;

/* reap polls the completions of a rail. It returns the next note of the receiver, or NULL. */
static const struct note *reap(int i)
{
	static struct note heard;
	const struct note *note = NULL;
	struct ibv_wc wc;

	while (!note && ibv_poll_cq(rail[i].cq, 1, &wc) > 0) {
		if (wc.opcode == IBV_WC_RECV && wc.wr_id >= UC_ID && wc.status == IBV_WC_SUCCESS) {
			heard = memory[i].in[wc.wr_id - UC_ID];
			note = &heard;
			post_note_receive(i, wc.wr_id - UC_ID);
			continue;
		}
		rail[i].outstanding--;
		if (wc.wr_id >= UC_ID)
			continue;
		if (wc.status == IBV_WC_SUCCESS) {
			done++;
			continue;
		}
		failed[fails++] = (uint32_t)wc.wr_id;
		if (!lost[i])
			say("rail %d is lost: chunk %u: %s", i, (uint32_t)wc.wr_id, ibv_wc_status_str(wc.status));
		lost[i] = 1;
	}
	return note;
}

/* agree asks over the other rail which of the failed chunks have arrived, and keeps the missing ones in failed. */
static void agree(int which)
{
	int by = !which, asked = 0;
	const struct note *note;
	uint32_t arrived = 0, kept = 0;
	long next = 0;

	if (lost[by])
		quit("no rail is left");
	memory[by].out = (struct note){.lost = (uint32_t)which};
	while (!(note = reap(by)) || !note->answer || note->lost != (uint32_t)which) {
		if (lost[by])
			quit("no rail is left");
		if (now_ms() < next) {
			rest();
			continue;
		}
		if (asked++ == ASK_LIMIT)
			quit("the receiver does not answer");
		send_note(by);
		next = now_ms() + ASK_AGAIN_MS;
	}
	for (uint32_t i = 0; i < fails; i++)
		if (note->have[failed[i] / 8] >> failed[i] % 8 & 1)
			arrived++;
		else
			failed[kept++] = failed[i];
	fails = kept;
	done += arrived;
	say("agreed by rail %d: of what has failed %u have arrived, %u have not", by, arrived, kept);
}

static int sender(const char *port, uint32_t count, char **devices)
{
	int tcp = tcp_connect(port);
	uint32_t next = 0, slots[RAILS] = {0};

	open_rails(devices, tcp, 0);
	say("connected");
	while (done < count) {
		for (int i = 0; i < RAILS; i++) {
			struct rail *r = &rail[i];

			reap(i);
			while (!lost[i] && r->outstanding < WINDOW && (fails || next < count)) {
				uint32_t seq = fails ? failed[--fails] : next++;
				char *at = memory[i].chunk[slots[i]++ % WINDOW];

				memcpy(at, &seq, sizeof seq);
				if (post_send(r, r->qp, at, SIZE, seq))
					die("post_send");
			}
			if (lost[i] == 1) {
				while (r->outstanding > 0) /* every send completes */
					reap(i);
				lost[i] = 2;
				if (!BUG)
					agree(i);
			}
		}
		rest();
	}
	say("sent %u", done);
	return close_rails();
}

int main(int argc, char **argv)
{
	if (argc != 6 || atoi(argv[3]) > MAX)
		quit("usage: agree recv|send PORT COUNT DEVICE DEVICE");
	return (argv[1][0] == 'r' ? receiver : sender)(argv[2], (uint32_t)atoi(argv[3]), argv + 4);
}
