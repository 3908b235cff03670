package ibtest

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"

	"verbena/ib"
)

// Armed: other threads than the handler's arm a queue while completions arrive.

var armedChecks = []ruleTest{
	{
		name: "Callback/ArmedElsewhere",
		rule: "a thread that arms a queue, other than that of its handler, while a completion comes finds it missed, or is notified",
		test: testArmedCQByOtherThread, fast: true,
	},
	{
		name: "Callback/ArmedByTwo",
		rule: "so do two threads that arm one queue and poll it, when one of them wakes up for each call of the handler",
		test: testArmedCQByTwoThreads, fast: true,
	},
}

// raceCount returns the number of races between such a thread and a completion.
func raceCount(e *testEnv) int { return 60 * e.cfg.load }

// runWithRandomDelays calls functions concurrently, each after a delay of zero to a few instructions. It returns when
// all have returned.
func runWithRandomDelays(fs ...func()) {
	var wg sync.WaitGroup
	var ready atomic.Int32
	for _, f := range fs {
		wg.Go(func() {
			ready.Add(1)
			for int(ready.Load()) < len(fs) {
				runtime.Gosched()
			}
			for range rand.IntN(50) {
				ready.Load()
			}
			f()
		})
	}
	wg.Wait()
}

func testArmedCQByOtherThread(e *testEnv) {
	var calls atomic.Int32
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) { calls.Add(1) }}})
	for i := range raceCount(e) {
		p.postRecv(1, uint64(i), 0, 8)
		before := calls.Load()
		var missed bool
		var err error
		runWithRandomDelays(
			func() { missed, err = p.cqs[1].ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed) },
			func() { p.postSend(0, uint64(i), 8) },
		)
		e.must("request notify", err)
		if !missed {
			e.eventually("the call of the handler for a completion that came while the queue was armed, and was not reported as missed",
				func() bool { return calls.Load() > before })
		}
		e.waitOneCompletion(p.cqs[1], uint64(i), ib.WCSuccess)
		e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCSuccess)
	}
}

// testArmedCQByTwoThreads runs two threads that sleep until the handler is called, and then poll.
func testArmedCQByTwoThreads(e *testEnv) {
	total := raceCount(e)
	wake := make(chan struct{}, 1)
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) {
		select {
		case wake <- struct{}{}:
		default: // it is not asleep
		}
	}}})
	var polled atomic.Int32
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				missed, err := p.cqs[1].ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
				if err != nil {
					e.Errorf("request notify: %v", err)
				}
				if !missed {
					select {
					case <-wake:
					case <-stop:
						return
					}
				}
				var wc [4]ib.WC
				for {
					n, err := p.cqs[1].Poll(wc[:])
					if err != nil {
						e.Errorf("poll: %v", err)
					}
					if polled.Add(int32(n)); n == 0 {
						break
					}
				}
			}
		})
	}
	defer wg.Wait()
	defer close(stop)
	for i := range total {
		p.postRecv(1, uint64(i), 0, 8)
		p.postSend(0, uint64(i), 8)
		e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCSuccess)
		e.eventually("a thread that has armed the queue to be notified of a completion",
			func() bool { return int(polled.Load()) == i+1 })
	}
}
