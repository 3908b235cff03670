package link

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestIdents(t *testing.T) {
	type step struct {
		after time.Duration
		id    uint16
		want  bool
	}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"indexed: up to 63 in any order", []step{{0, 0, true}, {0, 1, true}, {0, 63, true}, {0, 5, true}, {0, 0, true}}},
		{"indexed: nothing above", []step{{0, 0, true}, {0, 64, false}, {0, 2000, false}, {time.Hour, 30000, false}, {0, 1, true}}},
		{"counted from anywhere", []step{{0, 40000, true}, {0, 40001, true}, {0, 40010, true}}},
		{"counted: losses", []step{{0, 40000, true}, {0, 41024, true}, {0, 42049, false}}},
		{"counted: overtaken", []step{{0, 40000, true}, {0, 38976, true}, {0, 37951, false}}},
		{"counted: wraps around", []step{{0, 65535, true}, {0, 0, true}, {0, 63, true}, {0, 64, true}, {0, 1000, true}}},
		{"counted: far after a pause", []step{{0, 1000, true}, {time.Second, 4000, true}, {0, 7000, false}}},
		{"counted: anywhere after a long one", []step{{0, 1000, true}, {time.Hour, 900, true}}},
		{"counted: restart", []step{{0, 1000, true}, {0, 30000, false}, {0, 30001, true}, {0, 30002, true}, {0, 1001, false}}},
		{"counted: two that do not fit each other", []step{{0, 1000, true}, {0, 30000, false}, {0, 50000, false}, {0, 10000, false}, {0, 1001, true}}},
		{"counted: one that fits between", []step{{0, 1000, true}, {0, 30000, false}, {0, 1001, true}, {0, 30001, false}}},
		{"indexed, then counted", []step{{0, 0, true}, {0, 20000, false}, {0, 20003, true}, {0, 20004, true}}},
		{"counted, then indexed", []step{{0, 20000, true}, {0, 0, true}, {0, 1, true}, {0, 0, true}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var s idents
			var now time.Duration
			for i, x := range test.steps {
				now += x.after
				if got := s.accept(0, x.id, now); got != x.want {
					t.Fatalf("step %d: accept(%d) is %v, want %v", i, x.id, got, x.want)
				}
			}
		})
	}
}

// TestIdentsGuess: the guess is correct for the common senders. A correct guess avoids computing the identification.
func TestIdentsGuess(t *testing.T) {
	for _, test := range []struct {
		name    string
		batches [][]uint16
	}{
		{"trains", [][]uint16{{0, 1, 2, 3}, {0}, {0, 1, 2}, {0, 1}}},
		{"singly", [][]uint16{{0}, {0}, {0, 0, 0}, {0, 0}}},
		{"counted", [][]uint16{{500}, {501}, {502, 503, 504}, {505}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var s idents
			wrong := 0
			for _, batch := range test.batches {
				for i, id := range batch {
					if s.guess(i) != id {
						wrong++
					}
					s.accept(i, id, 0)
				}
			}
			if wrong > 1 {
				t.Errorf("%d guesses were wrong, want one at most, until the kind is known", wrong)
			}
		})
	}
}

// TestIdentsRefuseDamage: most damaged packets with a random identification are refused. Each accepted damaged packet
// costs at most one good packet later.
func TestIdentsRefuseDamage(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const every, n = 8, 100_000
	for _, test := range []struct {
		name string
		good func(i int) uint16
		fit  int // number of identifications that fit
	}{
		{"indexed", func(i int) uint16 { return uint16(i % 15) }, MaxTrainPackets},
		{"counted", func(i int) uint16 { return uint16(1000 + i) }, MaxTrainPackets + 2*identNear},
	} {
		t.Run(test.name, func(t *testing.T) {
			var s idents
			believed, lost := 0, 0
			for i := range n * every {
				if !s.accept(0, test.good(i), 0) {
					lost++
				}
				if i%every == 0 && s.accept(0, uint16(rnd.Uint32()), 0) {
					believed++
				}
			}
			if want := n * test.fit / 65536; believed > want*3/2 || believed < want/2 {
				t.Errorf("%d damaged packets: %d were accepted, want about %d", n, believed, want)
			}
			if lost > believed {
				t.Errorf("%d good packets were refused, and only %d damaged packets accepted", lost, believed)
			}
		})
	}
}
