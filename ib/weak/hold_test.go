package weak_test

import (
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/weak"
	"verbena/internal/testutil"
)

// TestRepliesBySlowServerArrive checks that datagrams are not lost if a server posts its receives again when the
// completions of its replies have been polled. Its receives suffice for some messages.
func TestRepliesBySlowServerArrive(t *testing.T) {
	for seed := range uint64(litmusSeeds) {
		synctest.Test(t, func(t *testing.T) {
			w := newConnectedDevice(t, newWeakFactory(newLoopback, weak.Config{Seed: seed}))
			const receives = 4
			here, err := w.dev.Local(1)
			must(t, err)
			to := here.AddressTo(here.GID)
			ask, answer := w.newBuffer(private), w.registerBuffer(make([]byte, 1024), private)
			newSide := func() *qpSide {
				x := &qpSide{w: w, send: w.newCQ(), recv: w.newCQ()}
				x.qp, err = w.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeUD, SendCQ: x.send, RecvCQ: x.recv,
					Cap: ib.QPCap{MaxSendWR: queueDepth, MaxRecvWR: queueDepth, MaxSendSGE: 1, MaxRecvSGE: 1}})
				must(t, err)
				w.addCleanup(x.qp.Destroy)
				must(t, x.qp.ConnectDatagram(here, ib.Endpoint{QKey: 1}))
				return x
			}
			client, server := newSide(), newSide()
			send := func(from, peer *qpSide) {
				ah, err := w.pd.CreateAH(&to)
				must(t, err)
				from.postSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: ask.fullSGL(), AH: ah,
					RemoteQPN: peer.qp.Num(), RemoteQKey: 1})
				must(t, ah.Destroy())
			}
			for range receives {
				server.postReceive(1, answer)
			}
			for range 40 {
				client.postReceive(1, answer)
				send(client, server)
				w.pollCompletions(client.send, 1)
				w.pollCompletions(server.recv, 1)
				send(server, client)
				w.pollCompletions(client.recv, 1)
				for range 16 {
					var wc [1]ib.WC
					n, err := server.send.Poll(wc[:])
					must(t, err)
					for range n {
						server.postReceive(1, answer)
					}
					testutil.AdvanceTime(200 * time.Microsecond)
				}
			}
		})
	}
}

// TestLateReuseIsReported checks that checked mode on a weak device reports a consumer that frees the memory of a send
// when the message has arrived, and uses the memory again seven messages later. A consumer that waits for the
// completion is not reported.
func TestLateReuseIsReported(t *testing.T) {
	const depth, messages = 7, 40 // the queue has room for one more
	run := func(t *testing.T, seed uint64, wrong bool) (reports int) {
		synctest.Test(t, func(t *testing.T) {
			core := &ib.Core{}
			check.On(core, check.Config{Report: func(v check.Violation) {
				if v.Rule != check.RuleSourceChanged {
					t.Error(v)
				}
				reports++
			}})
			w := newConnectedDeviceIn(t, core, newWeakFactory(newLoopback, weak.Config{Seed: seed}))
			a, b := w.newPair()
			to := w.newBuffer(shared)
			var from [depth]*registeredBuffer
			for i := range from {
				from[i] = w.newBuffer(ib.AccessLocalWrite)
			}
			completed := 0
			for i := range messages {
				least := i + 1 - queueDepth // the queue needs room
				if !wrong {
					least = i + 1 - depth
				}
				w.pollCompletions(a.send, max(0, least-completed))
				completed = max(completed, least)
				fillBytes(from[i%depth].b, byte(i))
				b.postReceive(1, to)
				a.postSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from[i%depth].fullSGL()})
				w.pollCompletions(b.recv, 1)
				for range 8 { // takes completions without a wait
					var wc [1]ib.WC
					n, err := a.send.Poll(wc[:])
					must(t, err)
					completed += n
					testutil.AdvanceTime(200 * time.Microsecond)
				}
			}
			w.pollCompletions(a.send, messages-completed)
		})
		return reports
	}
	found := 0
	for seed := range uint64(litmusSeeds) {
		if n := run(t, seed, false); n > 0 {
			t.Errorf("correct consumer with seed %d: got %d reports, want none", seed, n)
		}
		found += run(t, seed, true)
	}
	if found == 0 {
		t.Errorf("incorrect consumer: got no report with %d seeds, want at least one", litmusSeeds)
	}
}
