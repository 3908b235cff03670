package uverbs

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/uapi"
)

// eventFile is the service's end of a completion channel or of an asynchronous event file
// (struct ib_uverbs_event_queue): a pipe whose reading end the program has.
//
// A record is written without waiting. One for which the pipe has no room stays in records, and a goroutine that
// sleeps in the poller writes it later. Which events the program has read follows from how many bytes are left in
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
	fd       int // of pipe, used while state is not closed
	cqs      int // completion queues that refer to the channel; under eventFiles.mu
	user     *quota.User

	mu     sync.Mutex
	state  eventFileState
	device eventSource // the device's own events
	// records are those that may be unread, oldest first. The first sent of them are in the pipe, or were.
	records  []record
	sent     int
	flushing bool // the goroutine exists
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

// newEventFile makes a pipe. The caller hands its reading end, which waits as the program expects, to the program.
func newEventFile(size int, user *quota.User) (e *eventFile, reader int, err error) {
	if err := user.Take(quota.Descriptors, pipeEnds); err != nil {
		return nil, -1, err
	}
	defer func() {
		if err != nil {
			user.Give(quota.Descriptors, pipeEnds)
		}
	}()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, fmt.Errorf("make a pipe for events: %w", err)
	}
	var st unix.Stat_t
	if err = unix.SetNonblock(p[1], true); err == nil {
		err = unix.Fstat(p[1], &st)
	}
	if err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return nil, -1, fmt.Errorf("make a pipe for events: %w", err)
	}
	return &eventFile{
		dev: st.Dev, ino: st.Ino, size: size, pipe: os.NewFile(uintptr(p[1]), "events"), fd: p[1],
		records: make([]record, 0, 32), user: user,
	}, p[0], nil
}

// closePipe ends the file; state has become eventsClosed just now.
func (e *eventFile) closePipe() {
	e.pipe.Close() //verbena:allow nosleep the end of a pipe waits for nobody
	e.user.Give(quota.Descriptors, pipeEnds)
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
	// An event that nobody could have read yet says it all: so there is no more waiting than there are sources.
	if r.src.waiting > 0 && slices.Contains(e.records[e.sent:], r) {
		return
	}
	if len(e.records) == cap(e.records) {
		e.forgetRead()
	}
	e.records = append(e.records, r)
	r.src.raised++
	r.src.waiting++
	if !e.flushing {
		e.flush()
	}
}

// forgetRead drops the records that the program has read.
//
//verbena:held mu
func (e *eventFile) forgetRead() {
	//verbena:allow nosleep the kernel counts what is in a pipe without waiting
	unread, err := unix.IoctlGetInt(e.fd, unix.TIOCINQ) // FIONREAD by another name
	if err != nil {
		return
	}
	if read := e.sent - min(unread/e.size, e.sent); read > 0 {
		e.records = slices.Delete(e.records, 0, read)
		e.sent -= read
	}
}

// flush writes what the pipe takes, and sees to it that the goroutine writes the rest.
//
//verbena:held mu
func (e *eventFile) flush() {
	if e.write(); e.sent < len(e.records) && !e.flushing {
		e.flushing = true
		go e.flushLater()
	}
}

// write writes what the pipe takes.
//
//verbena:held mu
func (e *eventFile) write() {
	for e.sent < len(e.records) {
		r := &e.records[e.sent]
		//verbena:allow nosleep the pipe does not block
		_, err := unix.Write(e.fd, r.data[:e.size])
		switch err {
		case nil:
			r.src.waiting--
			e.sent++
		case unix.EINTR:
		case unix.EAGAIN:
			return
		default: // EPIPE: the program has closed its end, and nobody will read any more
			for _, r := range e.records[e.sent:] {
				r.src.waiting--
				r.src.raised--
			}
			e.records = slices.Delete(e.records, e.sent, len(e.records))
			return
		}
	}
}

// flushLater writes as the program reads, until all is written or the file is closed.
func (e *eventFile) flushLater() {
	raw, err := e.pipe.SyscallConn()
	if err == nil {
		err = raw.Write(func(uintptr) bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.state == eventsClosed {
				e.flushing = false
				return true
			}
			e.write()
			e.flushing = e.sent < len(e.records)
			return !e.flushing
		})
	}
	e.mu.Lock()
	if err != nil { // closed meanwhile
		e.flushing = false
	}
	last := e.state == eventsEnding && !e.flushing
	if last {
		e.state = eventsClosed
	}
	e.mu.Unlock()
	if last {
		e.closePipe()
	}
}

// retire takes the unread events of an object that has been destroyed back, and reports how many have been read. The
// object raises no more. The file may be nil. (ib_uverbs_release_ucq, ib_uverbs_release_uevent)
func (e *eventFile) retire(src *eventSource) (reported uint32) {
	if e == nil {
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != eventsClosed {
		e.forgetRead()
		if slices.ContainsFunc(e.records[:e.sent], func(r record) bool { return r.src == src }) {
			e.takeBack()
		}
		e.drop(func(r record) bool { return r.src == src })
		e.flush()
	}
	return uint32(src.raised)
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

// takeBack empties the pipe: what was unread is waiting again.
//
// The only descriptor of the reading end is the program's, so that its closing can be seen; another one is opened for
// the moment. The program may read at the same time: what counts is what this end gets to read.
//
//verbena:held mu
//verbena:allow nosleep it opens and reads a pipe, without blocking
func (e *eventFile) takeBack() {
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(e.fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return // out of descriptors: the program will find an event of what it has destroyed
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	unread, most := 0, e.sent*e.size // a program that writes to the pipe itself fools itself only
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
	read := e.sent - unread/e.size
	e.records = slices.Delete(e.records, 0, read)
	for _, r := range e.records[:e.sent-read] {
		r.src.waiting++
	}
	e.sent = 0
}

// end is the end of the device: the unread events of objects, which have been destroyed, go; those of the device
// stay. If fatal, IBV_EVENT_DEVICE_FATAL comes last; then the reader sees the end of the file.
func (e *eventFile) end(fatal bool) {
	e.mu.Lock()
	if e.state != eventsOpen {
		e.mu.Unlock()
		return
	}
	e.forgetRead()
	if slices.ContainsFunc(e.records[:e.sent], func(r record) bool { return r.src != &e.device }) {
		e.takeBack()
	}
	e.drop(func(r record) bool { return r.src != &e.device })
	e.state = eventsEnding
	if fatal {
		e.add(asyncRecord(&e.device, 0, uapi.EventDeviceFatal))
	}
	e.flush()
	done := !e.flushing
	if done {
		e.state = eventsClosed
	}
	e.mu.Unlock()
	if done {
		e.closePipe()
	}
}

// close closes the pipe whatever is in it.
func (e *eventFile) close() {
	e.mu.Lock()
	closed := e.state == eventsClosed
	e.state = eventsClosed
	e.mu.Unlock()
	if !closed {
		e.closePipe()
	}
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

// eventFiles are those of one context.
type eventFiles struct {
	user     *quota.User
	mu       sync.Mutex
	closed   bool
	channels []*eventFile
	async    []*eventFile
	fallback *eventFile // the first asynchronous one, which the objects use (default_async_file)
}

var errClosed = fmt.Errorf("the file is closed: %w", syscall.EBADF)

// newChannel makes a completion channel, and closes those that neither the program nor a completion queue has any
// more, so that their number is bounded by the program's descriptors.
func (s *eventFiles) newChannel() (e *eventFile, reader int, err error) {
	if e, reader, err = newEventFile(compRecordSize, s.user); err != nil {
		return nil, -1, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.channels = sweep(s.channels, nil)
	return e, reader, s.keep(&s.channels, e, reader)
}

// newAsync makes an asynchronous event file.
func (s *eventFiles) newAsync() (e *eventFile, reader int, err error) {
	if e, reader, err = newEventFile(asyncRecordSize, s.user); err != nil {
		return nil, -1, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.async = sweep(s.async, s.fallback)
	if err := s.keep(&s.async, e, reader); err != nil {
		return nil, -1, err
	}
	if s.fallback == nil {
		s.fallback = e
	}
	return e, reader, nil
}

//verbena:held mu
func (s *eventFiles) keep(list *[]*eventFile, e *eventFile, reader int) error {
	if s.closed {
		e.close()
		unix.Close(reader) //verbena:allow nosleep the end of a pipe waits for nobody
		return errClosed
	}
	*list = append(*list, e)
	return nil
}

func sweep(files []*eventFile, needed *eventFile) []*eventFile {
	return slices.DeleteFunc(files, func(e *eventFile) bool {
		if e == needed || e.cqs > 0 || !e.deserted() {
			return false
		}
		e.close()
		return true
	})
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
	e.close()
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

// close closes all.
func (s *eventFiles) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, e := range slices.Concat(s.channels, s.async) {
		e.close()
	}
}
