package rdmacm

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"verbena/ib"
	"verbena/rdmacm/msg"
	"verbena/roce"
)

// TestPanicInMessageIsLogged checks that a panic during the processing of a peer's datagram is logged, and that the
// next datagram is processed.
func TestPanicInMessageIsLogged(t *testing.T) {
	var log bytes.Buffer
	m := &Manager{cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	a := &agent{m: m} // the agent has no device, so the lookup of the sender's address panics
	b := make([]byte, slotLen)
	msg.Append(b[roce.GRHLen:roce.GRHLen], 1, &msg.DREP{})
	for range 2 {
		m.containPanic(func() { a.handleDatagram(&ib.WC{}, b) })
	}
	if n := strings.Count(log.String(), "panic in the connection manager"); n != 2 {
		t.Errorf("logged panics: got %d, want 2:\n%s", n, log.String())
	}
}
