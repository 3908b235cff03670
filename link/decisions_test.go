package link_test

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
)

// decisionLog records decisions, and takes those of an earlier log if it has one.
type decisionLog struct {
	taken map[string]uint64

	mu   sync.Mutex
	made map[string]uint64
}

func (l *decisionLog) Decide(d *link.Decision, drawn uint64) uint64 {
	at := fmt.Sprintf("rule %d kind %d flow %d response %v packet %d", d.Rule, d.Kind, d.Flow, d.Response, d.Packet)
	v := drawn
	if l.taken != nil {
		v = l.taken[at]
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, twice := l.made[at]; twice {
		panic("two decisions at " + at)
	}
	if v != 0 {
		l.made[at] = v
	}
	return v
}

func newDecisionLog() *decisionLog { return &decisionLog{made: map[string]uint64{}} }

// TestDecider records the random decisions of rules and of a shape, and replays them with other seeds. The same packets
// arrive in the same order. A replay of one decision has only that fault.
func TestDecider(t *testing.T) {
	run := func(l *decisionLog, replaces bool, seed uint64) (arrived []int) {
		bubble(t, simnet.Config{}, func(t *testing.T, n *simnet.Net, a link.Endpoint, b *sink) {
			f := n.Faults()
			f.AddDecider(l, replaces)
			add(t, f, link.Rule{Drop: 0.1, Duplicate: 0.1, Reorder: 0.1, Seed: seed})
			add(t, f, link.Rule{Jitter: time.Millisecond, QP: 18, Seed: seed})
			add(t, f, link.Rule{Corrupt: 0.1, Seed: seed})
			if err := f.Shape(link.Shape{Loss: 0.05, Delay: time.Millisecond, Seed: seed}); err != nil {
				t.Fatal(err)
			}
			for i := range 200 {
				if i == 100 { // another shape continues the numbers of packets
					if err := f.Shape(link.Shape{Loss: 0.1, Jitter: 10 * time.Microsecond, Seed: seed + 1}); err != nil {
						t.Fatal(err)
					}
				}
				tr := train(addrB, 30, 10*i, 2)
				tr.QP = 17 + uint32(i%2)
				send(t, a, tr)
				testutil.AdvanceTime(20 * time.Microsecond)
			}
			testutil.AdvanceTime(time.Second)
			arrived = b.psns()
			f.RemoveDecider(l)
			send(t, a, train(addrB, 30, 1, 50)) // calls no decider
		})
		return arrived
	}
	first := newDecisionLog()
	want := run(first, false, 1)
	if len(first.made) < 50 || len(want) < 200 {
		t.Fatalf("first run: got %d decisions and %d packets, want more", len(first.made), len(want))
	}
	if other := run(newDecisionLog(), false, 2); slices.Equal(other, want) {
		t.Fatal("run with another seed: got the same packets, want others")
	}
	again := newDecisionLog()
	again.taken = first.made
	if got := run(again, true, 2); !slices.Equal(got, want) {
		t.Errorf("replay: got packets %v, want %v", got, want)
	}
	if !maps.Equal(again.made, first.made) {
		t.Errorf("decisions of the replay: got %v, want %v", again.made, first.made)
	}
	at := slices.Sorted(maps.Keys(first.made))[0]
	one := newDecisionLog()
	one.taken = map[string]uint64{at: first.made[at]}
	run(one, true, 3)
	if !maps.Equal(one.made, one.taken) {
		t.Errorf("replay of one decision: got %v, want %s", one.made, at)
	}
}
