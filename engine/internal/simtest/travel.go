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

// Way is the path of messages between the two hosts.
type Way uint8

// The ways. With Network, the devices belong to no common Fabric.
const (
	Network  Way = iota
	Packets      // by the network, although both devices are in one Fabric
	Messages     // by the shortcut
	Changing     // random changes between Packets and Messages
)

func (y Way) String() string { return [...]string{"network", "packets", "messages", "changing"}[y] }

// Outcome holds the results of a schedule that must not depend on the way: the completions for the consumers, and the
// final state.
type Outcome struct {
	Completions [2][2][]string // by end; of requests and of receives, in order
	Events      [2]map[ib.EventType]int
	Counters    [2]map[string]uint64
	QPs         [2][]string // states and PSNs, before the queue pairs are taken to ERR
	Memory      [2]uint64   // hashes

	Short, Sent int // number of packets on the shortcut, and of all packets
}

// Travel plays the schedule of a seed on a perfect network, between one pair of queue pairs. All messages take the
// given way. The outcome of the schedule does not depend on times: each message has a receive from the beginning, and
// an end with a fault posts only after the other end has finished. Travel must be called in a bubble.
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
	synctest.Wait() // for goroutines that still run queue pairs after the queries
	w.finish()
	for i, e := range w.ends {
		out.Events[i] = e.events
		sum := fnv.New64a()
		sum.Write(e.host.arena)
		out.Memory[i] = sum.Sum64()
	}
	return out, nil
}

// ofQP returns the part of the state of a queue pair that does not depend on the way. The progress of a sender at the
// failure of a request depends on the way. Therefore the number of packets that its peer drops also does.
func (e *end) ofQP(s *engine.QPStatus) string {
	if e.disturbed() || e.peer.disturbed() {
		return fmt.Sprint(s.Type, " ", s.State, " expects ", s.ExpectedPSN)
	}
	return fmt.Sprint(s.Type, " ", s.State, " expects ", s.ExpectedPSN, ", next ", s.NextPSN, ", unacknowledged ", s.Unacknowledged, ", in flight ", s.InFlight)
}

// ofCounters returns the counters that do not depend on the way. The number of acknowledgements depends on the way,
// since one can cover several requests (IBA 9.7.5.1.2). Therefore the number of packets of a reliable service also
// does. If the way changes while packets are on the slower path, later packets overtake them, and are requested again.
func (e *end) ofCounters(all map[string]uint64) map[string]uint64 {
	w, left := e.w, maps.Clone(all)
	maps.DeleteFunc(left, func(name string, n uint64) bool {
		switch name {
		case "sent_pkts", "rcvd_pkts":
			return w.service.reliable()
		case "sent_shortcut_pkts":
			return true
		case "drop_stale_response", "ack_deferred":
			return true // includes acknowledgements of requests that a READ response has already acknowledged
		case "duplicate_request", "out_of_seq_request", "rcvd_seq_err", "completer_retry_err", "drop_after_gap", "drop_forgotten_duplicate":
			return n == 0 || w.overtakes() || e.disturbed() || e.peer.disturbed()
		case "drop_wrong_state":
			return n == 0 || e.disturbed() || e.peer.disturbed()
		}
		return n == 0 || strings.HasPrefix(name, "wire_")
	})
	return left
}

// overtakes reports whether packets may overtake others when the way changes. They may not if a request fails. A NAK
// that overtakes a response counts as the loss of the response (IBA 9.7.5.2.1). The request is then repeated, and its
// responder, which is in the error state, does not answer.
func (w *world) overtakes() bool {
	return w.service.reliable() && w.ways != nil && w.profile.batch > 0 && !slices.ContainsFunc(w.ends, (*end).disturbed)
}

// turn changes the way at random.
func (w *world) turn() {
	if w.way != Changing || w.ways.IntN(2) > 0 {
		return
	}
	if !w.overtakes() {
		for _, at := range w.last {
			if w.now() <= at {
				return // packets are in flight
			}
		}
	}
	on := w.ways.IntN(2) == 0
	for _, h := range w.hosts {
		h.dev.SetShortcut(on || w.ways.IntN(8) == 0)
	}
}

// seen records a completion for the outcome. mem is the memory of a receive.
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

// travels reports whether Travel plays the schedule.
func (w *world) travels() bool { return w.out != nil }

// lull is a time in which all posted requests of one end complete.
const lull = 300 * time.Millisecond
