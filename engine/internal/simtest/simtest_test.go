package simtest_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"os"
	"slices"
	"testing"
	"testing/synctest"

	"verbena/engine/internal/simtest"
	"verbena/ib"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "play only the schedule of this seed, and print its log with -v")
	countFlag = flag.Int("schedules", schedules, "number of schedules per service type")
	firstFlag = flag.Uint64("first", 1, "seed of the first of them")
)

var services = []simtest.Service{simtest.RC, simtest.UC, simtest.UD, simtest.XRC}

// maxLog is the largest number of bytes of the log of a failed schedule to print.
const maxLog = 32 << 10

// few returns n, or a tenth of it with -short. A schedule takes milliseconds, and make unit plays all of them.
func few(n int) int {
	if testing.Short() {
		n = max(1, n/10)
	}
	return n
}

// play plays a schedule in a bubble. There, the midlayer's timers, which detect late threads, run on virtual time. Thus
// a busy machine cannot change the result.
func play(t *testing.T, s simtest.Service, seed uint64, log io.Writer) (rep simtest.Report, err error) {
	t.Helper()
	synctest.Test(t, func(*testing.T) { rep, err = simtest.Run(s, seed, log) })
	return rep, err
}

// TestSchedules plays schedules of each service.
func TestSchedules(t *testing.T) {
	for _, s := range services {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			if *seedFlag != 0 {
				if _, err := play(t, s, *seedFlag, os.Stdout); err != nil {
					t.Fatal(err)
				}
				return
			}
			statuses, networks, stats := map[ib.WCStatus]int{}, map[string]int{}, map[string]uint64{}
			packets, lost := 0, 0
			traces := fnv.New64a()
			count := few(*countFlag)
			for i := range count {
				seed := *firstFlag + uint64(i)
				rep, err := play(t, s, seed, nil)
				if err != nil {
					var log bytes.Buffer
					_, _ = play(t, s, seed, &log)
					t.Logf("the end of its log:\n%s", log.Bytes()[max(0, log.Len()-maxLog):])
					t.Fatalf("%v\nplay it again: go test ./engine/internal/simtest -run 'TestSchedules/%v' -seed %d -v", err, s, seed)
				}
				binary.Write(traces, binary.LittleEndian, rep.Trace)
				networks[rep.Network]++
				packets, lost = packets+rep.Packets, lost+rep.Lost
				for k, n := range rep.Statuses {
					statuses[k] += n
				}
				for k, n := range rep.Stats {
					stats[k] += n
				}
			}
			t.Logf("%d schedules, %d packets, %d of them lost", count, packets, lost)
			t.Logf("traces: %016x", traces.Sum64()) // must not change if the behaviour does not change
			t.Logf("networks: %v", networks)
			for _, k := range slices.Sorted(maps.Keys(statuses)) {
				t.Logf("%6d work requests: %v", statuses[k], k)
			}
			t.Logf("counters: %v", stats)
			// Without these events, the schedules would test very little.
			if count >= 100 {
				for k, n := range map[string]uint64{"lost packets": uint64(lost), "successes": uint64(statuses[ib.WCSuccess]), "flushes": uint64(statuses[ib.WCWRFlushErr])} {
					if n == 0 {
						t.Errorf("no %s", k)
					}
				}
				for _, k := range map[simtest.Service][]string{
					simtest.RC: {"duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err", "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err"},
				}[s] {
					if stats[k] == 0 {
						t.Errorf("%s is 0", k)
					}
				}
			}
		})
	}
}

// TestReplay: a seed gives the same run each time.
func TestReplay(t *testing.T) {
	for _, s := range services {
		traces := map[uint64]bool{}
		count := few(replays)
		for seed := uint64(1); seed <= uint64(count); seed++ {
			a, err := play(t, s, seed, nil)
			if err != nil {
				t.Fatal(err)
			}
			b, err := play(t, s, seed, nil)
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(a) != fmt.Sprint(b) {
				t.Fatalf("%v seed %d played twice:\n%+v\n%+v", s, seed, a, b)
			}
			traces[a.Trace] = true
		}
		if len(traces) != count {
			t.Errorf("%v: %d seeds are %d different runs", s, count, len(traces))
		}
	}
}
