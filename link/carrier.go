package link

import "sync/atomic"

// SetLink sets the link up or down. While the link is down, no packet passes in either direction. Packets that are held
// up and become due while the link is down are lost. SetLink may not sleep.
func (f *Faults) SetLink(up bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = !up
	f.changed()
}

// moment is the packet before which the link goes down.
type moment struct {
	left atomic.Int64 // packets up to the first lost one, which is included
	hit  func()
}

// AtPacket takes the link down before the n-th packet that is sent from now on. It then calls hit, which may not sleep,
// from an unspecified thread. A second call replaces the first. n = 0 cancels it.
func (f *Faults) AtPacket(n uint64, hit func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n == 0 {
		f.moment.Store(nil)
	} else {
		m := &moment{hit: hit}
		m.left.Store(int64(min(n, 1<<62)))
		f.moment.Store(m)
	}
	f.changed()
}

// count counts n packets that are about to be sent, and returns the number of them that precede the moment.
func (f *Faults) count(n int) (before int) {
	m := f.moment.Load()
	if m == nil {
		return n
	}
	left := m.left.Add(-int64(n))
	if left > 0 {
		return n
	}
	before = max(int(left)+n-1, 0)
	if left+int64(n) <= 0 {
		return 0 // another thread has already reached the moment
	}
	f.mu.Lock()
	f.down = true
	f.moment.CompareAndSwap(m, nil)
	f.changed()
	f.mu.Unlock()
	m.hit()
	return before
}
