package link

import "sync/atomic"

// SetLink has every packet pass, or none, in either direction. What is held up while the link is down is lost at its time. It
// may not sleep.
func (f *Faults) SetLink(up bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = !up
	f.changed()
}

// moment is a packet in front of which the link goes down.
type moment struct {
	left atomic.Int64 // packets, the one included
	hit  func()
}

// AtPacket has the link go down in front of the n-th packet that is sent from now on, and hit called then, without sleeping,
// from an unspecified thread. A second call replaces the first; n 0: nowhere.
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

// count notes that n packets are to be sent, and returns how many of them are before the moment.
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
		return 0 // another thread has come to it
	}
	f.mu.Lock()
	f.down = true
	f.moment.CompareAndSwap(m, nil)
	f.changed()
	f.mu.Unlock()
	m.hit()
	return before
}
