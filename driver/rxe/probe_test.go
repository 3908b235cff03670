package rxe

import (
	"testing"
	"time"

	"verbena/ib"
	"verbena/link/simnet"
	"verbena/roce"
)

// TestProbe loses the last packet of a message, or its acknowledgement: the requester
// asks again long before its timeout, and no retry is counted.
func TestProbe(t *testing.T) {
	for _, c := range []struct {
		name string
		lost func(k *roce.Packet) bool // once
	}{
		{"the last packet", func(k *roce.Packet) bool { return k.Opcode == roce.RCSendLast }},
		{"the acknowledgement", func(k *roce.Packet) bool { return k.Opcode == roce.RCAcknowledge }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBench(t, setup{net: simnet.Config{Latency: 10 * time.Microsecond}})
				b.connect(conn{timeout: 20}) // over four seconds
				done := false
				b.net.SetFilter(func(p *simnet.Packet) bool {
					k, err := roce.ParsePacket(p.Data)
					if err != nil || done || !c.lost(&k) {
						return true
					}
					done = true
					return false
				})
				start := time.Now()
				transfer(b, ib.WRSend, 5000, 1)
				if d := time.Since(start); !done || d > 10*time.Millisecond {
					t.Errorf("lost %t, took %v", done, d)
				}
				if n := b.a.dev.Stats()["completer_retry_err"]; n != 0 {
					t.Errorf("%d retries", n)
				}
			})
		})
	}
}
