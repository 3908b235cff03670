package service

import "time"

// directoryTimeout limits the wait for a change in a directory. A program can hold the kernel's lock of a directory
// by listing the directory into memory that blocks access.
const directoryTimeout = 2 * time.Second

// runWithTimeout makes a change in a directory, and reports whether the change was complete in time. After a timeout, a
// goroutine continues the change until the lock of the directory is free.
func runWithTimeout(change func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		change()
	}()
	timer := time.NewTimer(directoryTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
