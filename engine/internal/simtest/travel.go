package simtest

import (
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"verbena/engine"
	"verbena/ib"
)

// Way is how messages travel between the two hosts.
type Way uint8

// The ways. Of the first the devices know nothing of each other.
const (
	Network  Way = iota
	Packets      // by the network, though both devices are of one Fabric
	Messages     // by the shortcut
	Changing     // now this, now that
)

func (y Way) String() string { return [...]string{"network", "packets", "messages", "changing"}[y] }

// Outcome is what the consumers of a schedule have seen, and what it has left behind: all that must not depend on the way.
type Outcome struct {
	Completions [2][2][]string // of each end: of requests, of receives, in order
	Events      [2]map[ib.EventType]int
	Counters    [2]map[string]uint64
	QPs         [2][]string // their states and PSNs before everything is taken to ERR
	Memory      [2]uint64   // hashes

	Short, Sent int // packets that have taken the shortcut, and all
}

// Travel plays the schedule of a seed on a network that does nothing wrong, between one pair of queue pairs whose messages take a way.
// The schedule is one whose outcome does not depend on times: there is a receive for each message from the beginning, and
// an end that has something wrong posts when the other has nothing left to do. It is to be called in a bubble.
func Travel(s Service, seed uint64, way Way, log io.Writer) (out Outcome, err error) {
	w := newWorld(s, seed, log)
	w.way, w.ways, w.out = way, rand.New(rand.NewPCG(seed, 1<<32)), &out
	w.fabric = &engine.Fabric{}
	defer w.failed(seed, &err)
	w.build()
	for _, h := range w.hosts {
		h.dev.SetShortcut(way == Messages)
	}
	w.play()
	for i, e := range w.ends {
		for _, qp := range e.host.dev.QPStatuses() {
			out.QPs[i] = append(out.QPs[i], e.ofQP(&qp))
		}
		out.Counters[i] = e.ofCounters(e.host.dev.Stats())
		stats := e.host.dev.Stats()
		out.Sent += int(stats["sent_pkts"])
		out.Short += int(stats["sent_shortcut_pkts"])
	}
	if out.Short != out.Sent-w.net.Sent {
		w.failf("%d packets were sent, %d of them by the shortcut, but %d by the network", out.Sent, out.Short, w.net.Sent)
	}
	synctest.Wait() // for the goroutines that have looked at the queue pairs: they still run them
	w.finish()
	for i, e := range w.ends {
		out.Events[i] = e.events
		sum := fnv.New64a()
		sum.Write(e.host.arena)
		out.Memory[i] = sum.Sum64()
	}
	return out, nil
}

// ofQP is what of the state of a queue pair does not depend on the way. How far a sender is ahead of the failure of one of
// its requests does, and so what its peer still drops.
func (e *end) ofQP(s *engine.QPStatus) string {
	if e.disturbed() || e.peer.disturbed() {
		return fmt.Sprint(s.Type, " ", s.State, " expects ", s.ExpectedPSN)
	}
	return fmt.Sprint(s.Type, " ", s.State, " expects ", s.ExpectedPSN, ", next ", s.NextPSN, ", unacknowledged ", s.Unacknowledged, ", in flight ", s.InFlight)
}

// ofCounters is what of the counters does not depend on the way. How many acknowledgements there are does: one may stand for many
// (IBA 9.7.5.1.2), and so the number of packets of a reliable service. Where the way changes while packets are on the slower one,
// those that come later overtake them, and are asked for again.
func (e *end) ofCounters(all map[string]uint64) map[string]uint64 {
	w, left := e.w, maps.Clone(all)
	maps.DeleteFunc(left, func(name string, n uint64) bool {
		switch name {
		case "sent_pkts", "rcvd_pkts":
			return w.service.reliable()
		case "sent_shortcut_pkts":
			return true
		case "drop_stale_response", "ack_deferred":
			return true // an acknowledgement of what a response to a READ has acknowledged, too
		case "duplicate_request", "out_of_seq_request", "rcvd_seq_err", "completer_retry_err", "drop_after_gap", "drop_forgotten_duplicate":
			return n == 0 || w.overtakes() || e.disturbed() || e.peer.disturbed()
		case "drop_wrong_state":
			return n == 0 || e.disturbed() || e.peer.disturbed()
		}
		return n == 0 || strings.HasPrefix(name, "wire_")
	})
	return left
}

// overtakes reports whether packets may overtake others as the way changes. Not where a request fails: a NAK that overtakes a
// response is taken for the loss of that (IBA 9.7.5.2.1), and when the request is repeated its responder, which is in error, is silent.
func (w *world) overtakes() bool {
	return w.service.reliable() && w.ways != nil && w.profile.batch > 0 && !slices.ContainsFunc(w.ends, (*end).disturbed)
}

// turn changes the way now and then.
func (w *world) turn() {
	if w.way != Changing || w.ways.IntN(2) > 0 {
		return
	}
	if !w.overtakes() {
		for _, at := range w.last {
			if w.now() <= at {
				return // packets are on their way
			}
		}
	}
	on := w.ways.IntN(2) == 0
	for _, h := range w.hosts {
		h.dev.SetShortcut(on || w.ways.IntN(8) == 0)
	}
}

// seen notes a completion for the outcome. mem is the memory of a receive.
func (w *world) seen(e *end, wc *ib.WC, receive bool, mem []byte) {
	if w.out == nil {
		return
	}
	i, k := slices.Index(w.ends, e), 0
	text := fmt.Sprint(wc.ID, " ", wc.Status)
	if receive {
		k = 1
		sum := fnv.New64a()
		sum.Write(mem)
		text += fmt.Sprintf(" memory %x", sum.Sum64())
	}
	if wc.Status == ib.WCSuccess {
		text += fmt.Sprintf(" %v %d %x %v", wc.Opcode, wc.ByteLen, wc.Imm, wc.Flags)
	}
	w.out.Completions[i][k] = append(w.out.Completions[i][k], text)
}

// travels reports whether the schedule is one of Travel.
func (w *world) travels() bool { return w.out != nil }

// lull is a time in which everything that one end posts is done.
const lull = 300 * time.Millisecond
