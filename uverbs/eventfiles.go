package uverbs

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/kept"
	"verbena/internal/quota"
	"verbena/uapi"
)

// eventFiles holds the event files of one context.
type eventFiles struct {
	proc     Process
	user     *quota.User
	kept     *kept.UserObjects
	gate     *pipeGate
	mu       sync.Mutex
	closed   bool
	swept    *kept.ReleaseSweep // sweeps these files; set before the first file is created
	sweepAt  int                // number of channels at which the next sweep runs
	channels []*eventFile
	async    []*eventFile
	detached []*eventFile // removed from the lists, but possibly still open
	fallback *eventFile   // the first asynchronous event file, which objects use (default_async_file)
}

var errFileClosed = fmt.Errorf("the file is closed: %w", syscall.EBADF)

// maxCheckedChannels is the number of channels up to which newChannel checks all channels.
const maxCheckedChannels = 16

// newChannel creates a completion channel. newChannel first closes channels that neither the program nor a completion
// queue uses. The program's descriptors therefore limit the number of channels. With many channels, newChannel checks
// them only when their number has doubled.
func (s *eventFiles) newChannel() (e *eventFile, reader int, err error) {
	if e, reader, err = newEventFile(compRecordSize, s.user, s.kept, s.gate); err != nil {
		return nil, -1, err
	}
	e.proc = s.proc
	s.mu.Lock()
	var gone []*eventFile
	if n := len(s.channels); n <= maxCheckedChannels || n >= s.sweepAt {
		gone = s.removeUnusedFiles(&s.channels, nil)
		s.sweepAt = 2 * len(s.channels)
	}
	err = s.addFile(&s.channels, e, reader)
	s.mu.Unlock()
	closeRemovedFiles(gone)
	return e, reader, err
}

// closeUnusedFiles closes all files that neither the program nor a completion queue uses. closeUnusedFiles runs when
// the user has reached a quota. closeUnusedFiles does not sleep.
func (s *eventFiles) closeUnusedFiles() {
	s.mu.Lock()
	gone := append(s.removeUnusedFiles(&s.channels, nil), s.removeUnusedFiles(&s.async, s.fallback)...)
	s.mu.Unlock()
	closeRemovedFiles(gone)
}

// newAsync creates an asynchronous event file.
func (s *eventFiles) newAsync() (e *eventFile, reader int, err error) {
	if e, reader, err = newEventFile(asyncRecordSize, s.user, s.kept, s.gate); err != nil {
		return nil, -1, err
	}
	s.mu.Lock()
	gone := s.removeUnusedFiles(&s.async, s.fallback)
	if err = s.addFile(&s.async, e, reader); err == nil && s.fallback == nil {
		s.fallback = e
	}
	s.mu.Unlock()
	closeRemovedFiles(gone)
	if err != nil {
		return nil, -1, err
	}
	return e, reader, nil
}

//verbena:held mu
func (s *eventFiles) addFile(list *[]*eventFile, e *eventFile, reader int) error {
	if s.closed {
		s.closeDroppedFile(e)
		unix.Close(reader) //verbena:allow nosleep the close of a pipe does not wait
		return errFileClosed
	}
	*list = append(*list, e)
	return nil
}

// removeUnusedFiles removes the files with a closed reader from a list. The caller must close them with shut.
//
//verbena:held mu
func (s *eventFiles) removeUnusedFiles(list *[]*eventFile, needed *eventFile) (gone []*eventFile) {
	*list = slices.DeleteFunc(*list, func(e *eventFile) bool {
		deserted := e != needed && e.cqs == 0 && e.isReaderClosed()
		if deserted {
			gone = append(gone, e)
		}
		return deserted
	})
	s.detached = append(slices.DeleteFunc(s.detached, (*eventFile).hasEnded), gone...)
	return gone
}

// closeRemovedFiles closes the removed files, at once if no thread has the token.
func closeRemovedFiles(gone []*eventFile) {
	for _, e := range gone {
		if !e.closeIfReaderClosed() {
			e.close()
		}
	}
}

// closeDroppedFile closes a file that has been removed from the lists.
//
//verbena:held mu
func (s *eventFiles) closeDroppedFile(e *eventFile) {
	e.close()
	s.detached = append(slices.DeleteFunc(s.detached, (*eventFile).hasEnded), e)
}

// undoNewFile undoes newChannel or newAsync.
func (s *eventFiles) undoNewFile(e *eventFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := func(o *eventFile) bool { return o == e }
	s.channels, s.async = slices.DeleteFunc(s.channels, is), slices.DeleteFunc(s.async, is)
	if s.fallback == e {
		s.fallback = nil
	}
	s.closeDroppedFile(e)
}

// findChannel finds a completion channel by the identity of its pipe. findChannel adds a use by a completion queue.
// findChannel returns EBADF if no channel has this identity.
func (s *eventFiles) findChannel(dev, ino uint64) (*eventFile, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.channels {
		if e.dev == dev && e.ino == ino {
			e.cqs++
			return e, nil
		}
	}
	return nil, fmt.Errorf("not a completion channel of this context: %w", syscall.EBADF)
}

// findAsyncFile finds an asynchronous event file by the identity of its pipe. findAsyncFile returns EBADF if no file
// has this identity.
func (s *eventFiles) findAsyncFile(dev, ino uint64) (*eventFile, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.async {
		if e.dev == dev && e.ino == ino {
			return e, nil
		}
	}
	return nil, fmt.Errorf("not an asynchronous event file of this context: %w", syscall.EBADF)
}

func (s *eventFiles) releaseChannel(channel *eventFile) {
	if channel == nil {
		return
	}
	s.mu.Lock()
	channel.cqs--
	s.mu.Unlock()
}

// defaultAsyncFile returns the file for events of new objects, or nil if there is no such file.
func (s *eventFiles) defaultAsyncFile() *eventFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fallback
}

// raiseDeviceEvent raises an event of the device on every asynchronous event file. raiseDeviceEvent may not sleep.
func (s *eventFiles) raiseDeviceEvent(port int, t uapi.EventType) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.async {
		e.raiseAsync(&e.device, uint64(port), t)
	}
}

// endAll is called after the device has been removed and its objects have been destroyed.
func (s *eventFiles) endAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.channels {
		e.endEventFile(false)
	}
	for _, e := range s.async {
		e.endEventFile(true)
	}
}

// close closes all files. close waits unless a pipe is blocked. close may sleep.
func (s *eventFiles) close() {
	s.kept.RemoveSweep(s.swept)
	s.mu.Lock()
	s.closed = true
	all := slices.Concat(s.channels, s.async, s.detached)
	for _, e := range all {
		e.close()
	}
	s.mu.Unlock()
	expired := time.NewTimer(pipeTimeout)
	defer expired.Stop()
	for _, e := range all {
		select {
		case <-e.over:
		case <-expired.C:
			return
		}
	}
}
