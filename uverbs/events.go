package uverbs

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/kept"
	"verbena/internal/quota"
	"verbena/internal/reopen"
	"verbena/uapi"
)

// eventFile is the service's end of a completion channel or of an asynchronous event file
// (struct ib_uverbs_event_queue): a pipe whose reading end the program has.
//
// The kernel holds a lock of a pipe while it copies into the memory of the reader, which may not answer: every call on a pipe, one that
// is not to block included, may then take until it does. So whoever raises an event only notes the record, and a goroutine writes it
// (pump). Who is at the pipe has the pipe's turn; mu is held across no call. How many threads of a user's files are at pipes at a time is
// bounded (pipeGate).
//
// A record for which the pipe has no room stays in records. Which events the program has read follows from how many bytes are left in
// the pipe, since they are read in the order in which they were written; what the bytes are is not looked at.
//
// When the device has gone, read(2) of a pipe reports the end of the file where the kernel's file has EIO, and poll(2)
// POLLHUP where it has POLLERR. A terminal would report POLLERR, but an event takes nearly 100 µs there and back
// instead of 3, and what is unread at the end is lost; a socket would report ECONNRESET, but of what is in it
// nothing can be taken back.
//
//	open --- end ---> ending --- last record written ---> closed
//	  |                                                     ^
//	  +------------------- close, end ----------------------+
type eventFile struct {
	dev, ino uint64 // the pipe's identity, which the program's end shares
	size     int    // bytes of a record
	pipe     *os.File
	fd       int // of pipe, used with the turn while state is not closed
	cqs      int // completion queues that refer to the channel; under eventFiles.mu
	user     *quota.User
	kept     *kept.Kept
	note     kept.Note // of the reading end
	gate     *pipeGate
	run      func()        // pump, which costs no memory to start so
	turn     chan struct{} // has an element while a thread is at the pipe
	over     chan struct{} // closed when the pipe is

	mu     sync.Mutex
	state  eventFileState
	fatal  bool        // ending: the last event is that the device has gone
	swept  bool        // ending: the events of objects have been taken back
	device eventSource // the device's own events
	// records are those that may be unread, oldest first. The first sent of them are in the pipe, or were. With the turn, all but appending is
	// the holder's alone.
	records  []record
	sent     int
	writing  int  // records after those that are being written: the program may have read them
	flushing bool // pump runs
	full     bool // so was the pipe when it was last written to
	mute     bool // the pipe does not answer, as far as is known
}

// pipeGate bounds how many threads are at the pipes of one context at a time, and of one user, since none of them may come back. The nil
// pipeGate bounds nothing.
type pipeGate struct{ context, user chan struct{} }

const (
	// maxAtPipes is for a context, maxUserAtPipes for a user.
	maxAtPipes     = 4
	maxUserAtPipes = 64
	// pipePatience is how long the destruction of an object, or the close of a file, waits for a pipe that does not answer. What cannot be
	// taken back from it the program will find there.
	pipePatience = 100 * time.Millisecond
)

func newPipeGate(user chan struct{}) *pipeGate {
	return &pipeGate{make(chan struct{}, maxAtPipes), user}
}

// enter waits until a thread may be at a pipe, or until expired; it reports which.
func (g *pipeGate) enter(expired <-chan time.Time) bool {
	if g == nil {
		return true
	}
	select {
	case g.context <- struct{}{}:
	case <-expired:
		return false
	}
	select {
	case g.user <- struct{}{}:
		return true
	case <-expired:
		<-g.context
		return false
	}
}

func (g *pipeGate) leave() {
	if g != nil {
		<-g.user
		<-g.context
	}
}

type eventFileState uint8

const (
	eventsOpen eventFileState = iota
	eventsEnding
	eventsClosed
)

// eventSource is what events are of: a completion queue, a queue pair, or the device. Guarded by the mu of the event
// file that it raises events on.
type eventSource struct {
	raised  int // records made, less those taken back
	waiting int // of them, records that are not in the pipe yet
}

type record struct {
	src  *eventSource
	data [16]byte // the first size bytes count
}

const (
	compRecordSize  = 8  // struct ib_uverbs_comp_event_desc
	asyncRecordSize = 16 // struct ib_uverbs_async_event_desc
)

// pipeEnds is what an event file is charged for: the reading end is the service's until the program has it.
const pipeEnds = 2

// newEventFile makes a pipe. The caller hands its reading end, which waits as the program expects, to the program. The pipe stays
// charged to the user until the program has closed that.
func newEventFile(size int, user *quota.User, keep *kept.Kept, gate *pipeGate) (e *eventFile, reader int, err error) {
	if err := user.Take(quota.Descriptors, pipeEnds); err != nil {
		return nil, -1, err
	}
	defer func() {
		if err != nil {
			user.Give(quota.Descriptors, pipeEnds)
		}
	}()
	reader, writer, note, err := keep.Pipe()
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
		records: make([]record, 0, 32), user: user, kept: keep, note: note, gate: gate, turn: make(chan struct{}, 1), over: make(chan struct{}),
	}
	e.run = e.pump
	return e, reader, nil
}

// closePipe ends the file; state has become eventsClosed. The caller has the turn.
func (e *eventFile) closePipe() {
	e.pipe.Close()
	e.kept.Keep(e.note, func() { e.user.Give(quota.Descriptors, pipeEnds) })
	close(e.over)
}

// completed raises a completion event. It may not sleep, and does not allocate once the file is warm.
func (e *eventFile) completed(src *eventSource, userHandle uint64) {
	r := record{src: src}
	desc := uapi.CompEventDesc{CQHandle: userHandle}
	uapi.Encode(r.data[:], &desc)
	e.raise(r)
}

// async raises an asynchronous event; element is the user's handle of the object, or a port. It may not sleep. The
// file may be nil: then nobody listens.
func (e *eventFile) async(src *eventSource, element uint64, t uapi.EventType) {
	if e != nil {
		e.raise(asyncRecord(src, element, t))
	}
}

func asyncRecord(src *eventSource, element uint64, t uapi.EventType) record {
	r := record{src: src}
	desc := uapi.AsyncEventDesc{Element: element, EventType: t}
	uapi.Encode(r.data[:], &desc)
	return r
}

func (e *eventFile) raise(r record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != eventsOpen {
		return
	}
	e.add(r)
}

//verbena:held mu
func (e *eventFile) add(r record) {
	// An event that nobody could have read yet says it all: so there is not much more waiting than there are sources.
	if r.src.waiting > 0 && (e.full || r.src.waiting >= maxWaiting) && slices.Contains(e.records[e.sent+e.writing:], r) {
		return
	}
	e.records = append(e.records, r)
	r.src.raised++
	r.src.waiting++
	e.flush()
}

// flush sees to it that pump does what there is to do.
//
//verbena:held mu
func (e *eventFile) flush() {
	if !e.flushing {
		e.flushing = true
		go e.run()
	}
}

// pump writes what there is, waits for the program to read where the pipe is full, and closes the pipe at the end.
func (e *eventFile) pump() {
	for {
		e.turn <- struct{}{}
		e.gate.enter(nil)
		next := e.work()
		e.gate.leave()
		<-e.turn
		switch next {
		case pumpWaits:
			e.awaitRoom()
		case pumpEnds:
			return
		}
	}
}

// maxWaiting is how many equal events wait to be written to a pipe that is not full. More come only where it does not answer.
const maxWaiting = 16

// pumpNext is what pump does next.
type pumpNext uint8

const (
	pumpGoesOn pumpNext = iota
	pumpWaits           // the pipe is full
	pumpEnds
)

// batch is how many bytes are written at once. A pipe takes up to PIPE_BUF, 4096, wholly or not at all.
const batch = 512

// work does one thing that there is to do. The caller has the turn.
func (e *eventFile) work() pumpNext {
	e.mu.Lock()
	switch nothing := e.sent == len(e.records); {
	case e.state == eventsEnding && !e.swept:
		e.mu.Unlock()
		e.sweep()
		return pumpGoesOn
	case e.state == eventsClosed, e.state == eventsEnding && nothing:
		e.state = eventsClosed // and flushing stays set
		e.mu.Unlock()
		e.closePipe()
		return pumpEnds
	case nothing:
		e.flushing = false
		e.mu.Unlock()
		return pumpEnds
	}
	e.mu.Unlock()
	return e.write()
}

// write writes some of what there is: pumpEnds if there is nothing. The caller has the turn.
func (e *eventFile) write() pumpNext {
	e.mu.Lock()
	forget := e.sent >= cap(e.records)/2
	e.mu.Unlock()
	if forget {
		e.forgetRead()
	}
	var buf [batch]byte
	n := e.next(buf[:])
	if n == 0 {
		return pumpEnds
	}
	_, err := unix.Write(e.fd, buf[:n]) // all or nothing
	return e.wrote(err)
}

// next returns how many bytes of buf it has filled with the records that are to be written next. wrote must follow.
func (e *eventFile) next(buf []byte) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.writing = min(len(e.records)-e.sent, len(buf)/e.size)
	for _, r := range e.records[e.sent : e.sent+e.writing] {
		n += copy(buf[n:], r.data[:e.size])
	}
	return n
}

// wrote notes that the records have been written, or not.
func (e *eventFile) wrote(err error) pumpNext {
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
		return pumpWaits
	default: // EPIPE: the program has closed its end, and nobody will read any more
		for _, r := range e.records[e.sent:] {
			r.src.waiting--
			r.src.raised--
		}
		e.records = slices.Delete(e.records, e.sent, len(e.records))
	}
	return pumpGoesOn
}

// awaitRoom sleeps in the poller until the pipe has room, or is to be closed.
func (e *eventFile) awaitRoom() {
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

// hold takes the turn, for a thread that must not be kept for ever, which release ends. It reports false where the pipe does not answer.
func (e *eventFile) hold() bool {
	e.mu.Lock()
	patience := pipePatience
	if e.mute {
		patience = 0 // one wait for a pipe is enough
	}
	e.mu.Unlock()
	expired := time.NewTimer(patience)
	defer expired.Stop()
	select {
	case e.turn <- struct{}{}:
		if e.gate.enter(expired.C) {
			return true
		}
		<-e.turn
	case <-expired.C:
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mute = true
	return false
}

func (e *eventFile) release() {
	e.gate.leave()
	<-e.turn
}

// forgetRead drops the records that the program has read. The caller has the turn.
func (e *eventFile) forgetRead() {
	unread, err := unix.IoctlGetInt(e.fd, unix.TIOCINQ) // FIONREAD by another name
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

// retire takes the unread events of an object that has been destroyed back, and reports how many have been read. The
// object raises no more. The file may be nil. It may sleep. (ib_uverbs_release_ucq, ib_uverbs_release_uevent)
func (e *eventFile) retire(src *eventSource) (reported uint32) {
	if e == nil {
		return 0
	}
	e.mu.Lock()
	some := e.state != eventsClosed && slices.ContainsFunc(e.records, func(r record) bool { return r.src == src })
	e.mu.Unlock()
	if some && e.hold() {
		e.takeBack(func(r record) bool { return r.src == src })
		for e.write() == pumpGoesOn { // what was behind those
		}
		e.release()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return uint32(src.raised)
}

// takeBack takes records back that have not been read. The caller has the turn.
func (e *eventFile) takeBack(which func(record) bool) {
	e.forgetRead()
	e.mu.Lock()
	inPipe := slices.ContainsFunc(e.records[:e.sent], which)
	e.mu.Unlock()
	if inPipe {
		e.empty()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.full = false
	if e.drop(which); e.sent < len(e.records) {
		e.flush()
	}
}

// drop drops records that are not in the pipe.
//
//verbena:held mu
func (e *eventFile) drop(which func(record) bool) {
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

// empty empties the pipe: what was unread is waiting again. The caller has the turn.
//
// The only descriptor of the reading end is the program's, so that its closing can be seen; another one is opened for
// the moment. The program may read at the same time: what counts is what this end gets to read.
func (e *eventFile) empty() {
	fd, err := reopen.Own(e.fd, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return // out of descriptors: the program will find an event of what it has destroyed
	}
	defer unix.Close(fd)
	e.mu.Lock()
	most := e.sent * e.size // a program that writes to the pipe itself fools itself only
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

// end is the end of the device: the unread events of objects, which have been destroyed, go; those of the device
// stay. If fatal, IBV_EVENT_DEVICE_FATAL comes last; then the reader sees the end of the file. pump does it.
func (e *eventFile) end(fatal bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == eventsOpen {
		e.state, e.fatal = eventsEnding, fatal
		e.flush()
	}
}

// sweep begins the end. The caller has the turn.
func (e *eventFile) sweep() {
	e.takeBack(func(r record) bool { return r.src != &e.device })
	e.mu.Lock()
	defer e.mu.Unlock()
	e.swept = true
	if e.fatal {
		e.add(asyncRecord(&e.device, 0, uapi.EventDeviceFatal))
	}
}

// close closes the pipe whatever is in it, in the background. It does not sleep.
func (e *eventFile) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == eventsClosed {
		return
	}
	e.state = eventsClosed
	e.flush()
	_ = e.pipe.SetWriteDeadline(time.Unix(1, 0)) //verbena:allow nosleep it ends awaitRoom, and waits for nobody
}

// deserted reports whether the program has closed its end for good, or the file is closed.
func (e *eventFile) deserted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == eventsClosed {
		return true
	}
	pfd := []unix.PollFd{{Fd: int32(e.fd)}}
	n, err := unix.Poll(pfd, 0) //verbena:allow nosleep without a time it only looks
	return err == nil && n == 1 && pfd[0].Revents&unix.POLLERR != 0
}

// closeDeserted closes a file whose program has closed its end for good. No thread of the program can be at the pipe, so the close does
// not wait. It reports whether nobody else is about to close the file.
func (e *eventFile) closeDeserted() bool {
	select {
	case e.turn <- struct{}{}:
	default:
		return false
	}
	defer func() { <-e.turn }()
	e.mu.Lock()
	idle := !e.flushing && e.state != eventsClosed
	if idle {
		e.state, e.flushing = eventsClosed, true // no pump begins
	}
	e.mu.Unlock()
	if idle {
		e.closePipe()
	}
	return idle
}

// eventFiles are those of one context.
type eventFiles struct {
	user     *quota.User
	kept     *kept.Kept
	gate     *pipeGate
	mu       sync.Mutex
	closed   bool
	swept    *kept.Sweep // of these files; set before there is one
	sweepAt  int         // channels, if they are many: so many are looked at
	channels []*eventFile
	async    []*eventFile
	closing  []*eventFile // that are not among them any more, and may not be closed yet
	fallback *eventFile   // the first asynchronous one, which the objects use (default_async_file)
}

var errClosed = fmt.Errorf("the file is closed: %w", syscall.EBADF)

// fewChannels is how many channels newChannel looks at each time.
const fewChannels = 16

// newChannel makes a completion channel, and closes those that neither the program nor a completion queue has any more, so that their
// number is bounded by the program's descriptors. Of many channels it looks for these when their number has doubled.
func (s *eventFiles) newChannel() (e *eventFile, reader int, err error) {
	if e, reader, err = newEventFile(compRecordSize, s.user, s.kept, s.gate); err != nil {
		return nil, -1, err
	}
	s.mu.Lock()
	var gone []*eventFile
	if n := len(s.channels); n <= fewChannels || n >= s.sweepAt {
		gone = s.sweep(&s.channels, nil)
		s.sweepAt = 2 * len(s.channels)
	}
	err = s.keep(&s.channels, e, reader)
	s.mu.Unlock()
	shut(gone)
	return e, reader, err
}

// sweepAll closes all files that neither the program nor a completion queue has any more, when the user lacks something. It does not sleep.
func (s *eventFiles) sweepAll() {
	s.mu.Lock()
	gone := append(s.sweep(&s.channels, nil), s.sweep(&s.async, s.fallback)...)
	s.mu.Unlock()
	shut(gone)
}

// newAsync makes an asynchronous event file.
func (s *eventFiles) newAsync() (e *eventFile, reader int, err error) {
	if e, reader, err = newEventFile(asyncRecordSize, s.user, s.kept, s.gate); err != nil {
		return nil, -1, err
	}
	s.mu.Lock()
	gone := s.sweep(&s.async, s.fallback)
	if err = s.keep(&s.async, e, reader); err == nil && s.fallback == nil {
		s.fallback = e
	}
	s.mu.Unlock()
	shut(gone)
	if err != nil {
		return nil, -1, err
	}
	return e, reader, nil
}

//verbena:held mu
func (s *eventFiles) keep(list *[]*eventFile, e *eventFile, reader int) error {
	if s.closed {
		s.drop(e)
		unix.Close(reader) //verbena:allow nosleep the end of a pipe waits for nobody
		return errClosed
	}
	*list = append(*list, e)
	return nil
}

// sweep takes the deserted files out of a list. They are closed by shut.
//
//verbena:held mu
func (s *eventFiles) sweep(list *[]*eventFile, needed *eventFile) (gone []*eventFile) {
	*list = slices.DeleteFunc(*list, func(e *eventFile) bool {
		deserted := e != needed && e.cqs == 0 && e.deserted()
		if deserted {
			gone = append(gone, e)
		}
		return deserted
	})
	s.closing = append(slices.DeleteFunc(s.closing, (*eventFile).isOver), gone...)
	return gone
}

// shut closes deserted files, at once if no thread is at the pipe.
func shut(gone []*eventFile) {
	for _, e := range gone {
		if !e.closeDeserted() {
			e.close()
		}
	}
}

// drop closes a file that leaves the lists.
//
//verbena:held mu
func (s *eventFiles) drop(e *eventFile) {
	e.close()
	s.closing = append(slices.DeleteFunc(s.closing, (*eventFile).isOver), e)
}

func (e *eventFile) isOver() bool {
	select {
	case <-e.over:
		return true
	default:
		return false
	}
}

// discard undoes newChannel or newAsync.
func (s *eventFiles) discard(e *eventFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := func(o *eventFile) bool { return o == e }
	s.channels, s.async = slices.DeleteFunc(s.channels, is), slices.DeleteFunc(s.async, is)
	if s.fallback == e {
		s.fallback = nil
	}
	s.drop(e)
}

// channel finds a completion channel by the identity of its pipe and holds it for a completion queue. EBADF if there
// is none.
func (s *eventFiles) channel(dev, ino uint64) (*eventFile, error) {
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

// asyncFile finds an asynchronous event file by the identity of its pipe. EBADF if there is none.
func (s *eventFiles) asyncFile(dev, ino uint64) (*eventFile, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.async {
		if e.dev == dev && e.ino == ino {
			return e, nil
		}
	}
	return nil, fmt.Errorf("not an asynchronous event file of this context: %w", syscall.EBADF)
}

func (s *eventFiles) release(channel *eventFile) {
	if channel == nil {
		return
	}
	s.mu.Lock()
	channel.cqs--
	s.mu.Unlock()
}

// objectsAsync is where the events of new objects go, nil while there is no asynchronous event file.
func (s *eventFiles) objectsAsync() *eventFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fallback
}

// device raises an event of the device on every asynchronous event file. It may not sleep.
func (s *eventFiles) device(port int, t uapi.EventType) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.async {
		e.async(&e.device, uint64(port), t)
	}
}

// end is called when the device has gone, and its objects with it.
func (s *eventFiles) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.channels {
		e.end(false)
	}
	for _, e := range s.async {
		e.end(true)
	}
}

// close closes all, and waits for that as long as pipes answer. It may sleep.
func (s *eventFiles) close() {
	s.kept.Forget(s.swept)
	s.mu.Lock()
	s.closed = true
	all := slices.Concat(s.channels, s.async, s.closing)
	for _, e := range all {
		e.close()
	}
	s.mu.Unlock()
	expired := time.NewTimer(pipePatience)
	defer expired.Stop()
	for _, e := range all {
		select {
		case <-e.over:
		case <-expired.C:
			return
		}
	}
}
