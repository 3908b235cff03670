package service

import "time"

// directoryPatience is the longest time that the service waits for a change in a directory. A program can keep the
// kernel's lock of a directory by listing it into memory that does not answer.
const directoryPatience = 2 * time.Second

// patiently makes a change in a directory, and reports whether it has been made in time. Otherwise the change is made
// when the directory is free, unless the process has ended.
func patiently(change func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		change()
	}()
	timer := time.NewTimer(directoryPatience)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
