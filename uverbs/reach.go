package uverbs

import (
	"fmt"
	"syscall"

	"verbena/ib"
)

// WithCQ calls f with the completion queue that a program has under a handle on a device. The queue is not destroyed
// during the call. pid is the process that opened the device; 0 means any process. WithCQ returns ENOENT if no process
// has such a queue, and EINVAL if several processes have one. f may not sleep.
func (s *Server) WithCQ(dev *ib.Device, handle uint32, pid int, f func(*ib.CQ)) error {
	return withObject(s, dev, handle, pid, "completion queue", func(o *cqObject) { f(o.CQ) })
}

// WithSRQ is the equivalent of WithCQ for a shared receive queue.
func (s *Server) WithSRQ(dev *ib.Device, handle uint32, pid int, f func(*ib.SRQ)) error {
	return withObject(s, dev, handle, pid, "shared receive queue", func(o *srqObject) { f(o.SRQ) })
}

func withObject[T resource](s *Server, dev *ib.Device, handle uint32, pid int, what string, f func(T)) error {
	found := 0
	var only *File
	for _, d := range s.Devices() {
		if !d.ib.Same(dev) {
			continue
		}
		for _, file := range d.attachedFiles() {
			if pid != 0 && file.proc.PID() != pid {
				continue
			}
			if withHandle(file, handle, func(T) {}) {
				found++
				only = file
			}
		}
	}
	switch {
	case found > 1:
		return fmt.Errorf("%s %d: %d programs have this handle, name the process too: %w",
			what, handle, found, syscall.EINVAL)
	case found == 0 || !withHandle(only, handle, f):
		return fmt.Errorf("%s %d: no program has this handle, `verbena res show --json` lists the handles: %w",
			what, handle, syscall.ENOENT)
	}
	return nil
}

// withHandle calls f with the object of a handle. withHandle returns false if the object does not exist, or if the
// context is being ended.
func withHandle[T resource](file *File, handle uint32, f func(T)) bool {
	if !file.life.TryRLock() {
		return false
	}
	defer file.life.RUnlock()
	o, err := lookup[T](file, handle)
	if err != nil {
		return false
	}
	defer o.releaseUse()
	f(o.res)
	return true
}
