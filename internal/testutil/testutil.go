// Package testutil has what the tests of several packages share.
package testutil

import (
	"bytes"
	"os"
	"sync"
	"testing"
	"time"
)

// Patience bounds a wait in a test. It is no measurement: it tells a wait from a hang, on a busy machine too.
const Patience = 20 * time.Second

// Eventually waits until f returns true, which another goroutine or process brings about. After Patience it fails the test,
// and names what it has waited for.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still waiting for: %s", Patience, what)
		}
	}
}

// NeedRoot skips the test unless root runs it. why completes the sentence "needs root".
func NeedRoot(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root " + why)
	}
}

// Buffer collects what a program or a logger writes; it may be read meanwhile. The zero Buffer is empty.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
