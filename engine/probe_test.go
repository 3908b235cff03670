package engine

import (
	"testing"
	"time"

	"verbena/ib"
	"verbena/link/simnet"
	"verbena/roce"
)

// TestProbe loses the last packet of a message, or its acknowledgement. The requester retransmits long before its
// timeout, and counts no retry. Without probes it waits for the timeout.
func TestProbe(t *testing.T) {
	for _, c := range []struct {
		name string
		lost func(k *roce.Packet) bool // once

		noProbe bool
	}{
		{"the last packet", func(k *roce.Packet) bool { return k.Opcode == roce.RCSendLast }, false},
		{"the acknowledgement", func(k *roce.Packet) bool { return k.Opcode == roce.RCAcknowledge }, false},
		{"the last packet, without probes", func(k *roce.Packet) bool { return k.Opcode == roce.RCSendLast }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBench(t, setup{net: simnet.Config{Latency: 10 * time.Microsecond}, noProbe: c.noProbe})
				b.connect(conn{timeout: 20, retry: 1}) // over four seconds
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
				if d := time.Since(start); !done || d < 4*time.Second == c.noProbe || d > 10*time.Millisecond && !c.noProbe {
					t.Errorf("lost %t, took %v", done, d)
				}
				stats := b.a.dev.Stats()
				if n := stats["completer_retry_err"]; n > 0 != c.noProbe {
					t.Errorf("%d retries", n)
				}
				if n := stats["sent_probe_pkts"]; n > 0 == c.noProbe {
					t.Errorf("%d packets were sent again before the timeout", n)
				}
			})
		})
	}
}
