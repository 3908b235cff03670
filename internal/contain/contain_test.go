package contain

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestDo(t *testing.T) {
	calls := 0
	Do(func() { calls++ }, func(any, []byte) { t.Error("call of failed without a panic: got one, want none") })
	Do(func() { panic("nil is allowed") }, nil)
	var log bytes.Buffer
	Do(func() { panic("bad byte") }, Logged(slog.New(slog.NewTextHandler(&log, nil)), "panic in a request", "uid", 7))
	if text := log.String(); calls != 1 || !strings.Contains(text, "bad byte") || !strings.Contains(text, "uid=7") ||
		!strings.Contains(text, "contain_test.go") {
		t.Errorf("Logged: got %d calls and log %q, want 1 call and the panic", calls, text)
	}
}
