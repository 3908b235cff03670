package service_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"verbena/internal/sched"
	"verbena/internal/testutil"
	"verbena/verbs"
)

// TestWakeups posts at random times before and after the service's poller falls asleep. The test uses a few queue
// pairs, and then more queue pairs than the poller checks in each round. Posted requests must complete, even after a
// queue pair has been reset and its indices have their former values. WAKEUPS sets the duration for each number of
// queue pairs. The default is one second in total.
func TestWakeups(t *testing.T) {
	length := testutil.FewerIfShort(300*time.Millisecond, 50*time.Millisecond)
	if s := os.Getenv("WAKEUPS"); s != "" {
		var err error
		length, err = time.ParseDuration(s)
		must(t, err)
	}
	s, _ := startService(t)
	for _, qps := range []int{1, 33, 500} {
		t.Run(fmt.Sprint(qps), func(t *testing.T) { postAtRandomTimes(t, s.Open, qps, length) })
	}
}

// connectToItself connects a queue pair to itself.
func connectToItself(qp *verbs.QP) error {
	p, err := qp.Local()
	if err != nil {
		return err
	}
	return qp.Connect(p)
}

func postAtRandomTimes(t *testing.T, open func(string) (*verbs.Device, error), qps int, length time.Duration) {
	const threads = 3
	d, err := open("rxe0")
	must(t, err)
	defer d.Close()
	pd, err := d.AllocPD()
	must(t, err)
	mr, err := pd.Alloc(4096, verbs.LocalWrite|verbs.RemoteWrite)
	must(t, err)
	type queue struct {
		qp *verbs.QP
		cq *verbs.CQ
	}
	var all [threads][]queue
	for i := range max(qps, 1) {
		cq, err := d.CreateCQ(8, nil)
		must(t, err)
		qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendWRs: 4, RecvWRs: 1})
		must(t, err)
		must(t, connectToItself(qp))
		all[i%threads] = append(all[i%threads], queue{qp, cq})
	}
	seed := uint64(time.Now().UnixNano())
	var posts, lost atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(length)
	for n, mine := range all {
		if len(mine) == 0 {
			continue
		}
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(n)))
			wc := make([]verbs.WC, 4)
			for time.Now().Before(end) && lost.Load() == 0 {
				q := mine[rnd.IntN(len(mine))]
				switch rnd.IntN(4) { // the poller falls asleep after 50 us
				case 0:
					testutil.PauseRandomly(rnd, 200*time.Microsecond)
				case 1:
					for until := time.Now().Add(time.Duration(rnd.IntN(120)) * time.Microsecond); time.Now().Before(until); {
					}
				}
				if rnd.IntN(20) == 0 {
					must(t, q.qp.Modify(verbs.QPAttr{State: verbs.Reset}, verbs.AttrState))
					must(t, connectToItself(q.qp))
				}
				k := 1 + rnd.IntN(3)
				for range k {
					if err := q.qp.PostSend(&verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Local: mr.SGE(0, 8),
						Remote: mr.Remote(64)}); err != nil {
						t.Error(err)
						return
					}
				}
				posts.Add(int64(k))
				for began, done := time.Now(), 0; done < k; sched.Yield() {
					got, err := q.cq.Poll(wc)
					must(t, err)
					for i := range got {
						if err := verbs.CompletionError(&wc[i]); err != nil {
							t.Error(err)
						}
					}
					if done += got; done < k && time.Since(began) > 5*time.Second {
						lost.Add(1)
						t.Errorf("seed %d: got %d of %d posts to QP %d without a completion, want 0", seed, k-done, k, q.qp.Num())
						return
					}
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d posts", posts.Load())
}
