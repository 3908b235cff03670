//go:build !race

package uverbs

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The test is excluded from race builds, because starting a goroutine allocates under the race detector.
func TestCompletionEventDoesNotAllocate(t *testing.T) {
	p := newFixture(t).startProgram(byWrite)
	ch := p.createChannel()
	o := p.f.objects.find(p.createCQ(ch, 1)).res.(*cqObject)
	buf := make([]byte, compRecordSize)
	if n := testing.AllocsPerRun(200, func() {
		o.channel.raiseCompletion(nil, &o.comp, 1)
		unix.Read(ch, buf)
	}); n != 0 {
		t.Errorf("allocations: got %v, want 0", n)
	}
}
