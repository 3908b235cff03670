package uverbs

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/kept"
	"verbena/internal/quota"
	"verbena/internal/reopen"
	"verbena/uapi"
)

// eventFile is the service's end of a completion channel or of an asynchronous event file (struct
// ib_uverbs_event_queue). An eventFile is a pipe; the program has the read end.
//
// The kernel holds a lock of the pipe while it copies data into the memory of the reader, and this copy may block.
// Until the copy ends, every call on the pipe blocks, even a non-blocking call. The thread that raises an event
// therefore only queues the record. A thread that answers a doorbell of the same session writes the record after the
// answer (RunLate), because a goroutine would take a fifth of the round trip. In all other cases a goroutine writes it
// (writeLoop). A thread must acquire the token before a call on the pipe. mu is not held during such calls. pipeGate
// limits the number of threads in calls on the pipes of a user's files.
//
// A record that does not fit into the pipe remains in records. Records are read in the order in which they were
// written. The number of bytes in the pipe therefore shows which events the program has read. The contents of these
// records are not read back.
//
// After the removal of the device, read(2) of a pipe reports the end of the file, where the kernel's file returns EIO.
// poll(2) reports POLLHUP instead of POLLERR. The alternatives to a pipe are worse. A terminal would report POLLERR.
// But the round trip of an event would take nearly 100 µs instead of 3 µs, and unread events would be lost at the end.
// A socket would report ECONNRESET, but the service could not remove unread events.
//
//	open --- end ---> ending --- last record written ---> closed
//	  |                                                     ^
//	  +------------------- close, end ----------------------+
type eventFile struct {
	dev, ino uint64 // identity of the pipe, common to both ends
	size     int    // bytes per record
	pipe     *os.File
	fd       int     // write end, used with the token while state is not closed
	cqs      int     // number of completion queues of the channel; under eventFiles.mu
	proc     Process // opened the file of the channel; nil for asynchronous events
	user     *quota.User
	kept     *kept.UserObjects
	note     kept.FileNote // charge for the read end
	gate     *pipeGate
	run      func()        // writeLoop, stored so that starting it does not allocate
	token    chan struct{} // contains an element while a thread has the token
	over     chan struct{} // closed when the pipe is closed

	mu     sync.Mutex
	state  eventFileState
	fatal  bool        // ending: the last event is IBV_EVENT_DEVICE_FATAL
	swept  bool        // ending: the events of objects have been removed
	device eventSource // source of the device's own events
	// records holds the records that may be unread, oldest first. The first sent records are in the pipe, or the
	// program has already read them. Only the token holder may change records. Other threads may append.
	records []eventRecord
	sent    int
	// number of records after the sent ones that are being written; the program may already have read them
	writing  int
	flushing bool // writeLoop or RunLate is running, or will run
	full     bool // the pipe was full at the last write
	mute     bool // the pipe seems to be blocked
}

type eventFileState uint8

const (
	eventsOpen eventFileState = iota
	eventsEnding
	eventsClosed
)

// eventSource is the source of events: a completion queue, a queue pair, or the device. An eventSource is protected by
// the mu of the event file for its events.
type eventSource struct {
	raised  int // number of records raised, minus the removed records
	waiting int // number of these records that are not yet in the pipe
}

// eventRecord is an event that the program has not read yet.
type eventRecord struct {
	src  *eventSource
	data [16]byte // only the first size bytes are used
}

const (
	compRecordSize  = 8  // struct ib_uverbs_comp_event_desc
	asyncRecordSize = 16 // struct ib_uverbs_async_event_desc
)

// descriptorsPerPipe is the charge for an event file. The service has the read end until the program has it.
const descriptorsPerPipe = 2

// newEventFile creates a pipe. The caller passes the read end to the program. The read end is in blocking mode, as the
// program expects. The pipe remains charged to the user until the program has closed the read end.
func newEventFile(size int, user *quota.User, keep *kept.UserObjects, gate *pipeGate) (e *eventFile, reader int,
	err error) {
	if err := user.Charge(quota.Descriptors, descriptorsPerPipe); err != nil {
		return nil, -1, err
	}
	defer func() {
		if err != nil {
			user.Release(quota.Descriptors, descriptorsPerPipe)
		}
	}()
	reader, writer, note, err := keep.MakePipe()
	var st unix.Stat_t
	if err == nil {
		if err = unix.Fstat(writer, &st); err != nil {
			unix.Close(reader)
			unix.Close(writer)
		}
	}
	if err != nil {
		return nil, -1, fmt.Errorf("make a pipe for events: %w", err)
	}
	e = &eventFile{
		dev: st.Dev, ino: st.Ino, size: size, pipe: os.NewFile(uintptr(writer), "events"), fd: writer,
		records: make([]eventRecord, 0, 32), user: user, kept: keep, note: note, gate: gate, token: make(chan struct{}, 1),
		over: make(chan struct{}),
	}
	e.run = e.writeLoop
	return e, reader, nil
}

// closePipe closes the pipe of a file in state eventsClosed. The caller must have the token.
func (e *eventFile) closePipe() {
	e.pipe.Close()
	e.kept.Keep(e.note, func() { e.user.Release(quota.Descriptors, descriptorsPerPipe) })
	close(e.over)
}

// raiseCompletion raises a completion event of cq, in the completion handler of cq. raiseCompletion may not sleep, and
// does not allocate after the first events.
func (e *eventFile) raiseCompletion(cq *ib.CQ, src *eventSource, userHandle uint64) {
	r := eventRecord{src: src}
	desc := uapi.CompEventDesc{CQHandle: userHandle}
	uapi.Encode(r.data[:], &desc)
	e.raiseRecord(r, cq)
}

// raiseAsync raises an asynchronous event. element is the user's handle of the object, or a port. e may be nil, if
// there is no reader. raiseAsync may not sleep.
func (e *eventFile) raiseAsync(src *eventSource, element uint64, t uapi.EventType) {
	if e != nil {
		e.raiseRecord(asyncRecord(src, element, t), nil)
	}
}

func asyncRecord(src *eventSource, element uint64, t uapi.EventType) eventRecord {
	r := eventRecord{src: src}
	desc := uapi.AsyncEventDesc{Element: element, EventType: t}
	uapi.Encode(r.data[:], &desc)
	return r
}

// raiseRecord queues a record, and sees to it that a thread writes it. The thread that runs the completion handler of
// cq may write it later. cq may be nil.
func (e *eventFile) raiseRecord(r eventRecord, cq *ib.CQ) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != eventsOpen || !e.queueRecord(r) || e.flushing {
		return
	}
	e.flushing = true
	if cq == nil || !userOps.RunLater(cq, e) {
		go e.run()
	}
}

// queueRecord queues a record. It returns false if an identical unread event stands for r. The queue therefore contains
// few records per source.
//
//verbena:held mu
func (e *eventFile) queueRecord(r eventRecord) bool {
	if r.src.waiting > 0 && (e.full || r.src.waiting >= maxIdenticalEvents) &&
		slices.Contains(e.records[e.sent+e.writing:], r) {
		return false
	}
	e.records = append(e.records, r)
	r.src.raised++
	r.src.waiting++
	return true
}

// startWriteLoop starts writeLoop, unless a thread writes records.
//
//verbena:held mu
func (e *eventFile) startWriteLoop() {
	if !e.flushing {
		e.flushing = true
		go e.run()
	}
}

// writeLoop writes the queued records, waits while the pipe is full, and closes the pipe at the end.
func (e *eventFile) writeLoop() {
	for {
		e.token <- struct{}{}
		e.gate.enter(nil)
		next := e.runWriteLoopStep()
		e.gate.leave()
		<-e.token
		switch next {
		case writeLoopWaits:
			e.awaitSpace()
		case writeLoopEnds:
			return
		}
	}
}

// maxLaterSteps limits the steps of RunLate.
const maxLaterSteps = 8

// RunLate writes the queued records on a thread that has other work, such as the calls of a program. A goroutine waits
// for the token and for space, and does the rest of long work. RunLate may block for ever in a call on the pipe.
// (ib.LateWork)
func (e *eventFile) RunLate() {
	if next := e.tryWrite(); next != writeLoopEnds {
		go e.run()
	}
}

// tryWrite executes steps of writeLoop without waiting for the token or for space in the pipe. It returns writeLoopEnds
// if no work is left.
func (e *eventFile) tryWrite() writeLoopStep {
	select {
	case e.token <- struct{}{}:
	default:
		return writeLoopGoesOn
	}
	defer func() { <-e.token }()
	if !e.gate.enter(noWait) {
		return writeLoopGoesOn
	}
	defer e.gate.leave()
	for range maxLaterSteps {
		e.mu.Lock()
		open := e.state == eventsOpen
		e.mu.Unlock()
		if !open {
			break // the end takes longer
		}
		if next := e.runWriteLoopStep(); next != writeLoopGoesOn {
			return next
		}
	}
	return writeLoopGoesOn
}

// maxIdenticalEvents is the maximum number of identical events that wait for a pipe that is not full. More identical
// events wait only if the pipe is blocked.
const maxIdenticalEvents = 16

// writeLoopStep is the next step of writeLoop.
type writeLoopStep uint8

const (
	writeLoopGoesOn writeLoopStep = iota
	writeLoopWaits                // the pipe is full
	writeLoopEnds
)

// pipeWriteSize is the number of bytes of a write. A write of up to PIPE_BUF, 4096, is atomic.
const pipeWriteSize = 512

// runWriteLoopStep executes one step of writeLoop. The caller must have the token.
func (e *eventFile) runWriteLoopStep() writeLoopStep {
	e.mu.Lock()
	switch nothing := e.sent == len(e.records); {
	case e.state == eventsEnding && !e.swept:
		e.mu.Unlock()
		e.beginEventFileEnd()
		return writeLoopGoesOn
	case e.state == eventsClosed, e.state == eventsEnding && nothing:
		e.state = eventsClosed // flushing stays set
		e.mu.Unlock()
		e.closePipe()
		return writeLoopEnds
	case nothing:
		e.flushing = false
		e.mu.Unlock()
		return writeLoopEnds
	}
	e.mu.Unlock()
	return e.writeRecords()
}

// writeRecords writes a batch of queued records. writeRecords returns writeLoopEnds if there are no queued records. The
// caller must have the token.
func (e *eventFile) writeRecords() writeLoopStep {
	e.mu.Lock()
	forget := e.sent >= cap(e.records)/2
	e.mu.Unlock()
	if forget {
		e.forgetReadRecords()
	}
	var buf [pipeWriteSize]byte
	n := e.nextRecords(buf[:])
	if n == 0 {
		return writeLoopEnds
	}
	_, err := unix.Write(e.fd, buf[:n]) // all or nothing
	return e.recordWriteResult(err)
}

// nextRecords fills buf with the next records and returns the number of bytes. The caller must call wrote afterwards.
func (e *eventFile) nextRecords(buf []byte) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.writing = min(len(e.records)-e.sent, len(buf)/e.size)
	for _, r := range e.records[e.sent : e.sent+e.writing] {
		n += copy(buf[n:], r.data[:e.size])
	}
	return n
}

// recordWriteResult records the result of a write.
func (e *eventFile) recordWriteResult(err error) writeLoopStep {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.writing
	e.full, e.mute, e.writing = err == unix.EAGAIN, false, 0
	switch err {
	case nil:
		for _, r := range e.records[e.sent : e.sent+n] {
			r.src.waiting--
		}
		e.sent += n
	case unix.EINTR:
	case unix.EAGAIN:
		return writeLoopWaits
	default: // EPIPE: the program has closed the read end
		for _, r := range e.records[e.sent:] {
			r.src.waiting--
			r.src.raised--
		}
		e.records = slices.Delete(e.records, e.sent, len(e.records))
	}
	return writeLoopGoesOn
}

// awaitSpace waits in the poller until the pipe has space or must be closed.
func (e *eventFile) awaitSpace() {
	raw, err := e.pipe.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Write(func(fd uintptr) bool {
		pfd := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(pfd, 0)
		return err == nil && n == 1
	})
}

// takeToken acquires the token for a thread that must not block for ever. release returns the token. takeToken returns
// false if the pipe is blocked.
func (e *eventFile) takeToken() bool {
	e.mu.Lock()
	timeout := pipeTimeout
	if e.mute {
		timeout = 0 // a thread waits only once for the same blocked pipe
	}
	e.mu.Unlock()
	expired := time.NewTimer(timeout)
	defer expired.Stop()
	select {
	case e.token <- struct{}{}:
		if e.gate.enter(expired.C) {
			return true
		}
		<-e.token
	case <-expired.C:
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mute = true
	return false
}

func (e *eventFile) releaseToken() {
	e.gate.leave()
	<-e.token
}

// forgetReadRecords drops the records that the program has read. The caller must have the token.
func (e *eventFile) forgetReadRecords() {
	unread, err := unix.IoctlGetInt(e.fd, unix.TIOCINQ) // TIOCINQ is another name of FIONREAD
	if err != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if read := e.sent - min(unread/e.size, e.sent); read > 0 {
		e.records = slices.Delete(e.records, 0, read)
		e.sent -= read
	}
}

// removeObjectEvents removes the unread events of a destroyed object, and returns the number of events that the program
// has read. The caller guarantees that the object raises no further events. e may be nil. removeObjectEvents may sleep.
// (ib_uverbs_release_ucq, ib_uverbs_release_uevent)
func (e *eventFile) removeObjectEvents(src *eventSource) (reported uint32) {
	if e == nil {
		return 0
	}
	e.mu.Lock()
	some := e.state != eventsClosed && slices.ContainsFunc(e.records, func(r eventRecord) bool { return r.src == src })
	e.mu.Unlock()
	if some && e.takeToken() {
		e.removeUnreadRecords(func(r eventRecord) bool { return r.src == src })
		for e.writeRecords() == writeLoopGoesOn { // writes the records after the removed ones
		}
		e.releaseToken()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return uint32(src.raised)
}

// removeUnreadRecords removes unread records from the pipe and the queue. The caller must have the token.
func (e *eventFile) removeUnreadRecords(which func(eventRecord) bool) {
	e.forgetReadRecords()
	e.mu.Lock()
	inPipe := slices.ContainsFunc(e.records[:e.sent], which)
	e.mu.Unlock()
	if inPipe {
		e.requeueUnreadRecords()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.full = false
	if e.removeQueuedRecords(which); e.sent < len(e.records) {
		e.startWriteLoop()
	}
}

// removeQueuedRecords removes records that are not in the pipe.
//
//verbena:held mu
func (e *eventFile) removeQueuedRecords(which func(eventRecord) bool) {
	kept := e.records[:e.sent]
	for _, r := range e.records[e.sent:] {
		if which(r) {
			r.src.raised--
			r.src.waiting--
		} else {
			kept = append(kept, r)
		}
	}
	clear(e.records[len(kept):])
	e.records = kept
}

// requeueUnreadRecords reads all records from the pipe and queues the unread records again. The caller must have the
// token.
//
// The service does not keep a descriptor of the read end, so that it can detect the program's close.
// requeueUnreadRecords therefore opens the read end temporarily. The program may read at the same time. Only the
// records that empty itself reads count as unread.
func (e *eventFile) requeueUnreadRecords() {
	fd, err := reopen.FileOnCallingThread(e.fd, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return // out of descriptors: the program will read an event of a destroyed object
	}
	defer unix.Close(fd)
	e.mu.Lock()
	most := e.sent * e.size // a program that writes to the pipe itself harms only itself
	e.mu.Unlock()
	buf, unread := make([]byte, 4096), 0
	for unread < most {
		n, err := unix.Read(fd, buf[:min(len(buf), most-unread)])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			break
		}
		unread += n
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	read := e.sent - unread/e.size
	e.records = slices.Delete(e.records, 0, read)
	for _, r := range e.records[:e.sent-read] {
		r.src.waiting++
	}
	e.sent = 0
}

// endEventFile ends the event file after the removal of the device. endEventFile removes unread events of objects,
// which have been destroyed, and preserves the events of the device. If fatal is set, IBV_EVENT_DEVICE_FATAL is the
// last event. The reader then sees the end of the file. The goroutine writeLoop executes these steps.
func (e *eventFile) endEventFile(fatal bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == eventsOpen {
		e.state, e.fatal = eventsEnding, fatal
		e.startWriteLoop()
	}
}

// beginEventFileEnd executes the first step of the end. The caller must have the token.
func (e *eventFile) beginEventFileEnd() {
	e.removeUnreadRecords(func(r eventRecord) bool { return r.src != &e.device })
	e.mu.Lock()
	defer e.mu.Unlock()
	e.swept = true
	if e.fatal {
		e.queueRecord(asyncRecord(&e.device, 0, uapi.EventDeviceFatal))
	}
}

// close closes the pipe in the background, and discards its contents. close does not sleep.
func (e *eventFile) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == eventsClosed {
		return
	}
	e.state = eventsClosed
	e.startWriteLoop()
	_ = e.pipe.SetWriteDeadline(time.Unix(1, 0)) //verbena:allow nosleep it ends awaitSpace and does not wait
}

// isReaderClosed reports whether the program has closed its end permanently, or the event file is closed.
func (e *eventFile) isReaderClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == eventsClosed {
		return true
	}
	pfd := []unix.PollFd{{Fd: int32(e.fd)}}
	n, err := unix.Poll(pfd, 0) //verbena:allow nosleep without a time it only looks
	return err == nil && n == 1 && pfd[0].Revents&unix.POLLERR != 0
}

// closeIfReaderClosed closes a file after its program has closed its end permanently. No thread of the program can
// block the pipe any more. The close therefore does not wait. closeIfReaderClosed returns false if another thread is
// about to close the file.
func (e *eventFile) closeIfReaderClosed() bool {
	select {
	case e.token <- struct{}{}:
	default:
		return false
	}
	defer func() { <-e.token }()
	e.mu.Lock()
	idle := !e.flushing && e.state != eventsClosed
	if idle {
		e.state, e.flushing = eventsClosed, true // prevents another writeLoop
	}
	e.mu.Unlock()
	if idle {
		e.closePipe()
	}
	return idle
}

func (e *eventFile) hasEnded() bool {
	select {
	case <-e.over:
		return true
	default:
		return false
	}
}
