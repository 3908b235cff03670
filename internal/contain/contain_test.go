package contain

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestRecoverPanicCallsHandler(t *testing.T) {
	calls := 0
	RecoverPanic(func() { calls++ }, func(any, []byte) { t.Error("call of failed without a panic: got one, want none") })
	RecoverPanic(func() { panic("nil is allowed") }, nil)
	var log bytes.Buffer
	RecoverPanic(func() { panic("bad byte") }, LogPanic(slog.New(slog.NewTextHandler(&log, nil)), "panic in a request",
		"uid", 7))
	if text := log.String(); calls != 1 || !strings.Contains(text, "bad byte") || !strings.Contains(text, "uid=7") ||
		!strings.Contains(text, "contain_test.go") {
		t.Errorf("Logged: got %d calls and log %q, want 1 call and the panic", calls, text)
	}
}
