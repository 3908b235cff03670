package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"sync"
	"syscall"
	"time"

	"verbena/internal/ctl"
)

// maxProfileSize is the maximum size of a profile in bytes. The encoded form of such a profile fits into
// ctl.MaxResponse.
var maxProfileSize = 32 << 20 // tests use a smaller value

// profileMu is held while a profile is collected. The runtime collects one profile at a time.
var profileMu sync.Mutex

// collectProfile collects a profile of this process and returns it. collectProfile ends early if ended is done.
// collectProfile returns EBUSY while another profile is being made, EINVAL for an unknown kind or an invalid time, and
// EFBIG for a profile of more than 32 MiB.
func collectProfile(ended context.Context, p ctl.Profile) ([]byte, error) {
	timed := p.Kind == ctl.ProfileCPU || p.Kind == ctl.ProfileTrace
	switch {
	case !timed && p.Kind != ctl.ProfileHeap && p.Kind != ctl.ProfileGoroutines:
		return nil, fmt.Errorf("debug pprof %s: the kinds are %s, %s, %s and %s: %w",
			ctl.ClipText(p.Kind), ctl.ProfileHeap, ctl.ProfileGoroutines, ctl.ProfileCPU, ctl.ProfileTrace, syscall.EINVAL)
	case timed && (p.Duration <= 0 || p.Duration > ctl.MaxProfileTime):
		return nil, fmt.Errorf("debug pprof %s: duration %v is not between 0 and %v: %w", p.Kind, p.Duration,
			ctl.MaxProfileTime, syscall.EINVAL)
	case !timed && p.Duration != 0:
		return nil, fmt.Errorf("debug pprof %s: a snapshot has no duration: %w", p.Kind, syscall.EINVAL)
	}
	if !profileMu.TryLock() {
		return nil, fmt.Errorf("debug pprof %s: another profile is being collected: wait until it is complete: %w", p.Kind,
			syscall.EBUSY)
	}
	defer profileMu.Unlock()
	to := &boundedBuffer{most: maxProfileSize}
	err := writeProfile(ended, to, p)
	if to.isFull() {
		return nil, fmt.Errorf("debug pprof %s: the profile exceeds %d MiB: choose a shorter duration: %w", p.Kind,
			maxProfileSize>>20, syscall.EFBIG)
	}
	if err != nil {
		return nil, fmt.Errorf("debug pprof %s: %w", p.Kind, err)
	}
	return to.b.Bytes(), nil
}

func writeProfile(end context.Context, to io.Writer, p ctl.Profile) error {
	stop := pprof.StopCPUProfile
	switch p.Kind {
	case ctl.ProfileHeap:
		runtime.GC()
		return pprof.Lookup("heap").WriteTo(to, 0)
	case ctl.ProfileGoroutines:
		return pprof.Lookup("goroutine").WriteTo(to, 0)
	case ctl.ProfileCPU:
		if err := pprof.StartCPUProfile(to); err != nil {
			return err
		}
	case ctl.ProfileTrace:
		if err := trace.Start(to); err != nil {
			return err
		}
		stop = trace.Stop
	}
	defer stop()
	timer := time.NewTimer(p.Duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-end.Done():
	}
	return nil
}

// boundedBuffer is a buffer of limited size.
type boundedBuffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	most int
	over bool
}

var errBufferFull = errors.New("the buffer is full")

func (b *boundedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over = b.over || b.b.Len()+len(p) > b.most; b.over {
		return 0, errBufferFull
	}
	return b.b.Write(p)
}

func (b *boundedBuffer) isFull() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.over
}
