//go:build !race

package rdmanet_test

import (
	"io"
	"net"
	"testing"

	"verbena/rdmanet"
)

// TestMessagesDoNotAllocate checks that a message allocates no memory.
func TestMessagesDoNotAllocate(t *testing.T) {
	a, b := connectNewPair(t, rdmanet.Config{})
	msg, got := make([]byte, 64), make([]byte, 64)
	n := testing.AllocsPerRun(1000, func() {
		for _, x := range []struct{ from, to net.Conn }{{a, b}, {b, a}} {
			if _, err := x.from.Write(msg); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(x.to, got); err != nil {
				t.Error(err)
			}
		}
	})
	if n >= 1 {
		t.Errorf("allocations of a message in each direction: got %v, want 0", n)
	}
}
