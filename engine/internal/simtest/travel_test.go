package simtest_test

import (
	"bytes"
	"flag"
	"io"
	"reflect"
	"testing"
	"testing/synctest"

	"verbena/engine/internal/simtest"
)

var travelsFlag = flag.Int("travels", travels, "number of schedules per service type that TestTravel plays on each way")

// travel plays a schedule of Travel in a bubble.
func travel(t *testing.T, s simtest.Service, seed uint64, way simtest.Way, log io.Writer) (out simtest.Outcome, err error) {
	t.Helper()
	synctest.Test(t, func(*testing.T) { out, err = simtest.Travel(s, seed, way, log) })
	return out, err
}

// TestTravel: the results for consumers and the final state do not depend on the path of the messages: the shortcut,
// the network, or a changing path.
func TestTravel(t *testing.T) {
	for _, s := range services {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			short, mixed := 0, 0
			first, count := *firstFlag, few(*travelsFlag)
			if *seedFlag != 0 {
				first, count = *seedFlag, 1
			}
			for i := range count {
				seed := first + uint64(i)
				var outs [3]simtest.Outcome
				for k, way := range []simtest.Way{simtest.Packets, simtest.Messages, simtest.Changing} {
					var err error
					if outs[k], err = travel(t, s, seed, way, nil); err != nil {
						var log bytes.Buffer
						_, _ = travel(t, s, seed, way, &log)
						t.Fatalf("%v: %v\n%s", way, err, log.Bytes()[max(0, log.Len()-maxLog):])
					}
				}
				if outs[0].Short != 0 || outs[1].Short != outs[1].Sent {
					t.Fatalf("seed %d: %d of %d packets took the shortcut with packets, %d of %d with messages",
						seed, outs[0].Short, outs[0].Sent, outs[1].Short, outs[1].Sent)
				}
				short += outs[1].Short
				if outs[2].Short > 0 && outs[2].Short < outs[2].Sent {
					mixed++
				}
				for k, name := range map[int]string{1: "messages", 2: "changing"} {
					compare(t, s, seed, name, &outs[k], &outs[0])
				}
			}
			t.Logf("%d schedules, %d packets by the shortcut; the way changed under %d", count, short, mixed)
			if count >= 50 && mixed < count/4 {
				t.Errorf("the way changed under %d of %d schedules", mixed, count)
			}
		})
	}
}

func compare(t *testing.T, s simtest.Service, seed uint64, way string, got, want *simtest.Outcome) {
	t.Helper()
	g, w := *got, *want
	g.Short, g.Sent, w.Short, w.Sent = 0, 0, 0, 0
	if reflect.DeepEqual(g, w) {
		return
	}
	a, b := reflect.ValueOf(g), reflect.ValueOf(w)
	for i := range a.NumField() {
		if x, y := a.Field(i).Interface(), b.Field(i).Interface(); !reflect.DeepEqual(x, y) {
			t.Errorf("%v seed %d, %s: %s is\n%v\nby packets\n%v", s, seed, way, a.Type().Field(i).Name, x, y)
		}
	}
	t.Fatalf("play it again: go test ./engine/internal/simtest -run 'TestTravel/%v' -seed %d -v", s, seed)
}
