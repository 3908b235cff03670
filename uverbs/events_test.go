package uverbs

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/uapi"
)

// armAndComplete arms a queue and raises a completion on the queue.
func (p *program) armAndComplete(cq uint32) {
	p.t.Helper()
	must(p.t, sendWithoutResponse(p, uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: cq}))
	p.w.runWithCallbacks(func() { p.fakeCQ(cq).Complete(ib.WC{}) })
}

func (p *program) destroyCQ(cq uint32) uapi.DestroyCQResp {
	p.t.Helper()
	resp, err := sendPlain[uapi.DestroyCQResp](p, uapi.CmdDestroyCQ, uapi.DestroyCQ{CQHandle: cq})
	must(p.t, err)
	return resp
}

func TestCompletionEvents(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		p := newFixture(t).startProgram(form)
		ch := p.createChannel()
		a, b := p.createCQ(ch, 0xa), p.createCQ(ch, 0xb)
		p.w.runWithCallbacks(func() { p.fakeCQ(a).Complete(ib.WC{}) })
		if got, _ := p.readCompletions(ch); len(got) != 0 {
			t.Errorf("queue that is not armed: got events %x, want none", got)
		}
		for _, cq := range []uint32{a, b, a} {
			p.armAndComplete(cq)
		}
		if got, end := p.readCompletions(ch); end || !slices.Equal(got, []uint64{0xa, 0xb, 0xa}) {
			t.Errorf("events of %x, end %v", got, end)
		}
		if r := p.destroyCQ(a); r.CompEventsReported != 2 || r.AsyncEventsReported != 0 {
			t.Errorf("destroy CQ a: got %+v, want 2 completion events and 0 asynchronous events", r)
		}
		if r := p.destroyCQ(b); r.CompEventsReported != 1 {
			t.Errorf("destroy CQ b: got %+v, want 1 completion event", r)
		}
		if _, end := p.readCompletions(ch); end {
			t.Error("channel after the destruction of its last queue: got the end of the file, want it open")
		}
	})
}

// TestDestroyTakesUnreadEvents checks the number of events that a destruction reports. The C library waits for as many
// acknowledgements, and the number must therefore equal the number of events read. Unread events are removed together
// with the queue. Events of other queues must remain in order.
func TestDestroyTakesUnreadEvents(t *testing.T) {
	// Each history is a sequence for the queues a and b on one channel: a letter is an event of this queue, and a dot
	// is a read of one event.
	for _, test := range []struct {
		history string
		a, b    uint32 // reported numbers for a and b, which are destroyed in this order
		rest    string // remaining events after the destruction of a
	}{
		{"", 0, 0, ""},
		{"a", 0, 0, ""},
		{"b", 0, 0, "b"},
		{"ab", 0, 0, "b"},
		{"a.b", 1, 0, "b"},
		{"ab.", 1, 0, "b"},
		{"ab..", 1, 1, ""},
		{"abab.", 1, 0, "bb"},
		{"babab..", 1, 1, "bb"},
		{"aaaa..", 2, 0, ""},
		{"b.a.b.a.bab", 2, 2, "bb"},
		{strings.Repeat("ab", 100) + strings.Repeat(".", 51), 26, 25, strings.Repeat("b", 75)},
	} {
		t.Run(test.history, func(t *testing.T) {
			p := newFixture(t).startProgram(byWrite)
			ch := p.createChannel()
			// Both queues have the same user handle, which therefore does not identify a queue.
			cq := map[rune]uint32{'a': p.createCQ(ch, 7), 'b': p.createCQ(ch, 7)}
			for _, c := range test.history {
				if c == '.' {
					if n, err := unix.Read(ch, make([]byte, compRecordSize)); n != compRecordSize {
						t.Fatal(n, err)
					}
					continue
				}
				p.armAndComplete(cq[c])
				// waits for the writes, because many waiting events would be coalesced
				waitUntilWritten(p.f.events.channels[0])
			}
			if r := p.destroyCQ(cq['a']); r.CompEventsReported != test.a {
				t.Errorf("a: %d reported, want %d", r.CompEventsReported, test.a)
			}
			waitUntilWritten(p.f.events.channels[0])
			if n := p.f.objects.find(cq['b']).res.(*cqObject).comp.waiting; n != 0 {
				t.Errorf("waiting events of CQ b: got %d, want 0 because the pipe has space", n)
			}
			if test.rest == "" {
				if got, _ := p.readCompletions(ch); len(got) != 0 {
					t.Errorf("left: %d events", len(got))
				}
			}
			if r := p.destroyCQ(cq['b']); r.CompEventsReported != test.b {
				t.Errorf("b: %d reported, want %d", r.CompEventsReported, test.b)
			}
		})
	}
}

// TestDestroyKeepsEventOrder checks that the remaining events of the channel are in order.
func TestDestroyKeepsEventOrder(t *testing.T) {
	p := newFixture(t).startProgram(byWrite)
	ch := p.createChannel()
	var cqs []uint32
	for i := range 5 {
		cqs = append(cqs, p.createCQ(ch, uint64(i)))
	}
	for i := range 10 {
		p.armAndComplete(cqs[i*3%5])
	}
	p.destroyCQ(cqs[3])
	if got, _ := p.readCompletions(ch); !slices.Equal(got, []uint64{0, 1, 4, 2, 0, 1, 4, 2}) {
		t.Errorf("left: %d", got)
	}
}

// waitUntilWritten waits until all raised events have been written, and the pipe has been closed if requested.
// waitUntilWritten reports whether some events did not fit into the pipe.
func waitUntilWritten(e *eventFile) (full bool) {
	for ; ; runtime.Gosched() {
		e.mu.Lock()
		idle := !e.flushing
		full = e.full
		e.mu.Unlock()
		if idle = idle || e.hasEnded(); idle || full {
			return full
		}
	}
}

// TestFullChannelLosesNoEvents fills the pipe of a channel, which holds 64 KB. Events raised while the pipe is full
// must be delivered when the program reads. Identical events of a queue are coalesced.
func TestFullChannelLosesNoEvents(t *testing.T) {
	p := newFixture(t).startProgram(byWrite)
	ch := p.createChannel()
	a, b := p.createCQ(ch, 0xa), p.createCQ(ch, 0xb)
	e := p.f.events.channels[0]
	full := 0
	for !waitUntilWritten(e) {
		p.armAndComplete(a)
		full++
	}
	full-- // the last event waits
	p.armAndComplete(a)
	p.armAndComplete(b)
	p.armAndComplete(b)
	p.armAndComplete(a)

	var got []uint64
	buf := make([]byte, compRecordSize)
	for range full + 2 { // blocks until the service has written
		if _, err := unix.Read(ch, buf); err != nil {
			t.Fatal(err)
		}
		got = append(got, uint64At(buf))
	}
	if slices.Contains(got[:full], 0xb) || !slices.Equal(got[full:], []uint64{0xa, 0xb}) {
		t.Errorf("%d events, then %x", full, got[full:])
	}
	if rest, _ := p.readCompletions(ch); len(rest) != 0 {
		t.Errorf("further completion events: got %x, want none", rest)
	}
	if r := p.destroyCQ(a); int(r.CompEventsReported) != full+1 {
		t.Errorf("a: %d reported, want %d", r.CompEventsReported, full+1)
	}
	if r := p.destroyCQ(b); r.CompEventsReported != 1 {
		t.Errorf("reported events of CQ b: got %d, want 1", r.CompEventsReported)
	}
}

// TestDestroyedCQDeliversNothingLater destroys a queue while the pipe is full. The queue must deliver no further
// events, and later events of other queues must be delivered.
func TestDestroyedCQDeliversNothingLater(t *testing.T) {
	p := newFixture(t).startProgram(byWrite)
	ch := p.createChannel()
	a, b := p.createCQ(ch, 0xa), p.createCQ(ch, 0xb)
	e := p.f.events.channels[0]
	for !waitUntilWritten(e) {
		p.armAndComplete(a)
	}
	p.armAndComplete(b)
	if r := p.destroyCQ(a); r.CompEventsReported != 0 {
		t.Errorf("reported events of CQ a: got %d, want 0", r.CompEventsReported)
	}
	buf := make([]byte, compRecordSize)
	if _, err := unix.Read(ch, buf); err != nil || uint64At(buf) != 0xb {
		t.Errorf("read of the channel: got %x and error %v, want 0xb", buf, err)
	}
	if r := p.destroyCQ(b); r.CompEventsReported != 1 {
		t.Errorf("reported events of CQ b: got %d, want 1", r.CompEventsReported)
	}
}

// TestNoWriteToClosedChannel checks that the service does not write to a channel whose read end is closed.
func TestNoWriteToClosedChannel(t *testing.T) {
	p := newFixture(t).startProgram(byWrite)
	ch := p.createChannel()
	cq := p.createCQ(ch, 1)
	p.armAndComplete(cq)
	p.closeFD(ch)
	p.armAndComplete(cq)
	p.armAndComplete(cq)
	if r := p.destroyCQ(cq); r.CompEventsReported != 0 {
		t.Errorf("reported events: got %d, want 0", r.CompEventsReported)
	}

	// A program that creates and closes many channels must not exhaust the service's descriptors.
	for range 50 {
		p.closeFD(p.createChannel())
	}
	if n := len(p.f.events.channels); n > 1 {
		t.Errorf("channels: got %d, want at most 1", n)
	}
	// A channel with a queue must not be closed, even if its read end is closed.
	ch = p.createChannel()
	cq = p.createCQ(ch, 2)
	p.closeFD(ch)
	last := p.createChannel()
	if n := len(p.f.events.channels); n != 2 {
		t.Errorf("channels: got %d, want 2", n)
	}
	p.destroyCQ(cq)
	p.createChannel()
	if n := len(p.f.events.channels); n != 2 {
		t.Errorf("channels: got %d, want 2", n)
	}
	p.createCQ(last, 3)
}

// TestClosedChannelsAreRemoved creates many channels. Deserted channels may remain until the number of channels has
// doubled, or until the user reaches a quota.
func TestClosedChannelsAreRemoved(t *testing.T) {
	const many = 4 * maxCheckedChannels
	p := newFixture(t).startProgram(byWrite)
	var all []int
	for range many {
		all = append(all, p.createChannel())
	}
	for _, ch := range all[1:] {
		p.closeFD(ch)
	}
	for range 2 * many {
		p.closeFD(p.createChannel())
	}
	if n := len(p.f.events.channels); n > 2*many {
		t.Errorf("channels: got %d, want at most %d", n, 2*many)
	}
	p.f.events.closeUnusedFiles()
	if n := len(p.f.events.channels); n != 1 {
		t.Errorf("channels after the sweep: got %d, want the program's own channel", n)
	}
}

func TestAsyncEvents(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		w := newFixture(t)
		p := w.startProgram(form)
		pd, cq := p.allocPD(), p.createCQ(-1, 100)
		qp := p.createQP(pd, cq, 200, uapi.QPTRC).QPHandle
		w.runWithCallbacks(func() {
			p.fakeQP(qp).Raise(ib.EventCommEst)
			w.handle.DispatchEvent(ib.EventPortErr, 1)
			p.fakeCQ(cq).Raise(ib.EventCQErr)
			p.fakeQP(qp).Raise(ib.EventQPFatal)
		})
		buf := make([]byte, asyncRecordSize)
		for range 2 {
			if _, err := unix.Read(p.async, buf); err != nil {
				t.Fatal(err)
			}
		}
		r, err := sendPlain[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qp})
		must(t, err)
		if r.EventsReported != 1 {
			t.Errorf("reported events of the queue pair: got %d, want 1", r.EventsReported)
		}
		want := []string{fmt.Sprintf("%v:100", uapi.EventCQErr)}
		if got, end := p.readAsyncEvents(p.async); end || !slices.Equal(got, want) {
			t.Errorf("left: %v, end %v, want %v", got, end, want)
		}
		if r := p.destroyCQ(cq); r.AsyncEventsReported != 1 || r.CompEventsReported != 0 {
			t.Errorf("destroy CQ: got %+v, want 1 asynchronous event and 0 completion events", r)
		}
	})
}

// TestAllAsyncFilesGetDeviceEvents checks several asynchronous event files. Objects must use the first file, and all
// files must receive events of the device.
func TestAllAsyncFilesGetDeviceEvents(t *testing.T) {
	w := newFixture(t)
	p := w.open(byIoctl)
	_, err := p.callMethod(uapi.ObjectAsyncEvent, uapi.MethodAsyncEventAlloc, uapi.Attr{})
	wantErrno(t, "no context yet", err, syscall.EINVAL)
	_, err = p.callMethod(uapi.ObjectDevice, uapi.MethodGetContext)
	must(t, err)
	alloc := func() int {
		attrs, err := p.callMethod(uapi.ObjectAsyncEvent, uapi.MethodAsyncEventAlloc, uapi.Attr{AttrID: 99}, uapi.Attr{})
		must(t, err)
		return int(int64(attrs[1].Data))
	}
	before := p.createCQ(-1, 1) // this queue has no event file
	first := alloc()
	second := alloc()
	after := p.createCQ(-1, 2)
	w.runWithCallbacks(func() {
		p.fakeCQ(before).Raise(ib.EventCQErr)
		p.fakeCQ(after).Raise(ib.EventCQErr)
		w.handle.DispatchEvent(ib.EventPortActive, 1)
	})
	port := fmt.Sprintf("%v:1", uapi.EventPortActive)
	if got, _ := p.readAsyncEvents(first); !slices.Equal(got, []string{fmt.Sprintf("%v:2", uapi.EventCQErr), port}) {
		t.Errorf("first: %v", got)
	}
	if got, _ := p.readAsyncEvents(second); !slices.Equal(got, []string{port}) {
		t.Errorf("second: %v", got)
	}
	p.closeFD(second)
	third := alloc()
	if n := len(p.f.events.async); n != 2 {
		t.Errorf("event files: got %d, want 2", n)
	}
	w.runWithCallbacks(func() { w.handle.DispatchEvent(ib.EventPortActive, 1) })
	if got, _ := p.readAsyncEvents(third); !slices.Equal(got, []string{port}) {
		t.Errorf("third: %v", got)
	}
}

// TestDestroyCountsReadEvents reads, arms and destroys as fast as possible while completions arrive. The numbers
// that the destructions report must equal the events read.
func TestDestroyCountsReadEvents(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byIoctl)
	ch := p.createChannel()
	must(t, unix.SetNonblock(ch, true))
	read, reported := map[uint64]uint32{}, map[uint64]uint32{}
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		buf := make([]byte, compRecordSize)
		for {
			if n, _ := unix.Read(ch, buf); n > 0 {
				read[uint64At(buf)]++
				continue
			}
			select {
			case <-stop:
				return
			default:
				unix.Poll([]unix.PollFd{{Fd: int32(ch), Events: unix.POLLIN}}, 1)
			}
		}
	})
	for user := range uint64(300) {
		other, cq := p.createCQ(ch, 1<<32+user), p.createCQ(ch, user)
		var producers sync.WaitGroup
		for range 2 {
			producers.Go(func() {
				for range 5 {
					for _, h := range []uint32{other, cq} {
						if err := sendWithoutResponse(p, uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: h}); err != nil {
							t.Error(err)
						}
						p.fakeCQ(h).Complete(ib.WC{})
					}
				}
			})
		}
		producers.Wait()
		reported[user] = p.destroyCQ(cq).CompEventsReported
		reported[1<<32+user] = p.destroyCQ(other).CompEventsReported
	}
	close(stop)
	reader.Wait()
	for user, n := range reported {
		if read[user] != n {
			t.Errorf("queue %#x: %d reported, %d read", user, n, read[user])
		}
	}
	if len(read) == 0 {
		t.Error("nothing was read")
	}
}

// TestProgramWritesIntoItsChannel checks that data which a program writes to its own pipe affect only this program.
func TestProgramWritesIntoItsChannel(t *testing.T) {
	p := newFixture(t).startProgram(byWrite)
	ch := p.createChannel()
	a, b := p.createCQ(ch, 0xa), p.createCQ(ch, 0xb)
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", ch), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	p.armAndComplete(a)
	if _, err := unix.Write(fd, make([]byte, 1001)); err != nil {
		t.Fatal(err)
	}
	p.armAndComplete(b)
	p.destroyCQ(a)
	p.armAndComplete(b)
	p.destroyCQ(b)
}

func TestClosedEventFilesRefuseNew(t *testing.T) {
	checkNoDescriptorLeak(t)
	var s eventFiles
	s.close()
	_, _, err := s.newChannel()
	wantErrno(t, "channel", err, syscall.EBADF)
	_, _, err = s.newAsync()
	wantErrno(t, "asynchronous event file", err, syscall.EBADF)
	if s.defaultAsyncFile() != nil {
		t.Error("defaultAsyncFile after the close of the file: got a file, want nil")
	}

	s.close() // waits for these

	e, reader, err := newEventFile(compRecordSize, nil, nil, nil)
	must(t, err)
	unix.Close(reader)
	e.close()
	<-e.over
	var other [2]int // receives the descriptor, because its number is the lowest free one
	must(t, unix.Pipe2(other[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	if other[1] != e.fd {
		t.Fatalf("descriptor: got %d, want %d", other[1], e.fd)
	}
	e.raiseCompletion(nil, new(eventSource), 1)
	if n, err := unix.Read(other[0], make([]byte, 8)); err != unix.EAGAIN {
		t.Errorf("bytes in another file: got %d, want none", n)
	}
	unix.Close(other[0])
	unix.Close(other[1])
}

// TestEventDuringWriteIsSeparate checks an event that is raised during the write of an identical event. The new event
// must be separate, because the program may have read the first event and armed the queue again before the write
// returns. If the pipe is full, however, the two events are coalesced.
func TestEventDuringWriteIsSeparate(t *testing.T) {
	e, reader, err := newEventFile(compRecordSize, nil, nil, nil)
	must(t, err)
	defer unix.Close(reader)
	defer e.close()
	e.token <- struct{}{} // the test acts as the writer
	src := &eventSource{}
	e.raiseCompletion(nil, src, 0xa)
	var buf [pipeWriteSize]byte
	n := e.nextRecords(buf[:])
	if n != e.size {
		t.Fatalf("bytes of one event: got %d, want %d", n, e.size)
	}
	e.mu.Lock()
	e.full = true // the state after a write to a full pipe
	e.mu.Unlock()
	for range 2 {
		e.raiseCompletion(nil, src, 0xa)
	}
	if _, err := unix.Write(e.fd, buf[:n]); err != nil {
		t.Fatal(err)
	}
	e.recordWriteResult(nil)
	e.mu.Lock()
	raised, waiting := src.raised, src.waiting
	e.mu.Unlock()
	if raised != 2 || waiting != 1 {
		t.Errorf("after the write: got %d events raised and %d queued, want 2 and 1", raised, waiting)
	}
	<-e.token
}

// TestEventsAreBounded checks the number of identical events that wait for a blocked pipe. The test also checks that
// records that the program has read are removed.
func TestEventsAreBounded(t *testing.T) {
	e, reader, err := newEventFile(compRecordSize, nil, nil, nil)
	must(t, err)
	defer unix.Close(reader)
	defer e.close()
	e.token <- struct{}{} // simulates a thread that is in a call on the pipe
	srcs := []*eventSource{{}, {}}
	for range 3 * maxIdenticalEvents {
		for i, src := range srcs {
			e.raiseCompletion(nil, src, uint64(i))
		}
	}
	e.mu.Lock()
	for i, src := range srcs {
		if src.waiting != maxIdenticalEvents || src.raised != maxIdenticalEvents {
			t.Errorf("source %d: got %d of %d raised events waiting, want %d", i, src.waiting, src.raised, maxIdenticalEvents)
		}
	}
	if got, want := len(e.records), 2*maxIdenticalEvents; got != want {
		t.Errorf("got %d records, want %d", got, want)
	}
	e.mu.Unlock()
	<-e.token
	read := func(n int) {
		t.Helper()
		waitUntilWritten(e)
		for range n {
			if n, err := unix.Read(reader, make([]byte, compRecordSize)); n != compRecordSize {
				t.Fatalf("read: got %d bytes, %v", n, err)
			}
		}
	}
	read(2 * maxIdenticalEvents)
	for range 1000 {
		e.raiseCompletion(nil, srcs[0], 0)
		read(1)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if got, most := len(e.records), 4*maxIdenticalEvents; got > most {
		t.Errorf("records after all were read: got %d, want at most %d", got, most)
	}
	if got, want := srcs[0].raised, maxIdenticalEvents+1000; got != want {
		t.Errorf("raised events: got %d, want %d", got, want)
	}
}

// TestEventFileIsFoundByIdentity checks that a pipe is found by the pair of its device and inode number, among the
// files of its kind.
func TestEventFileIsFoundByIdentity(t *testing.T) {
	var s eventFiles
	defer s.close()
	channel, r1, err := s.newChannel()
	must(t, err)
	defer unix.Close(r1)
	async, r2, err := s.newAsync()
	must(t, err)
	defer unix.Close(r2)
	const noChannel = "not a completion channel of this context: bad file descriptor"
	const noAsync = "not an asynchronous event file of this context: bad file descriptor"
	for _, test := range []struct {
		name     string
		find     func(dev, ino uint64) (*eventFile, error)
		dev, ino uint64
		want     *eventFile
		text     string
	}{
		{"channel", s.findChannel, channel.dev, channel.ino, channel, ""},
		{"channel, another device", s.findChannel, channel.dev + 1, channel.ino, nil, noChannel},
		{"channel, another inode", s.findChannel, channel.dev, channel.ino + 1, nil, noChannel},
		{"channel that is an asynchronous event file", s.findChannel, async.dev, async.ino, nil, noChannel},
		{"asynchronous event file", s.findAsyncFile, async.dev, async.ino, async, ""},
		{"asynchronous event file, another device", s.findAsyncFile, async.dev + 1, async.ino, nil, noAsync},
		{"asynchronous event file, another inode", s.findAsyncFile, async.dev, async.ino + 1, nil, noAsync},
		{"asynchronous event file that is a channel", s.findAsyncFile, channel.dev, channel.ino, nil, noAsync},
	} {
		got, err := test.find(test.dev, test.ino)
		if got != test.want || test.want == nil && (err == nil || err.Error() != test.text) {
			t.Errorf("%s: got %p, %v, want %p, %s", test.name, got, err, test.want, test.text)
		}
		if test.want == nil {
			wantErrno(t, test.name, err, syscall.EBADF)
		}
	}
	if channel.cqs != 1 {
		t.Errorf("uses of the channel: got %d, want 1", channel.cqs)
	}
	s.releaseChannel(channel)
}

// lateCaller runs work after its call has been answered, as the test asks.
type lateCaller struct {
	*program
	refuses bool
	mate    Process // the caller runs work only for this process
	kept    []ib.LateWork
}

func (c *lateCaller) RunLater(w ib.LateWork, of Process) bool {
	if c.refuses || of != c.mate {
		return false
	}
	c.kept = append(c.kept, w)
	return true
}

// TestEventAfterTheAnswer checks which thread writes the event of a completion that a caller's thread delivers: that
// thread after the answer, or a goroutine at once. The thread may wait only for pipes of processes that belong to
// the caller.
func TestEventAfterTheAnswer(t *testing.T) {
	for _, test := range []struct {
		name    string
		refuses bool
		other   bool               // the process does not belong to the caller
		late    bool               // the event is written after the answer
		between func(e *eventFile) // runs before the work, in place of the rest of a call
		after   func(e *eventFile) // runs after the work
		ends    bool               // the pipe ends
	}{
		{name: "the process belongs to the caller", late: true},
		{name: "the caller has no time", refuses: true},
		{name: "another process", other: true},
		{name: "another thread is at the pipe", late: true, between: func(e *eventFile) { e.token <- struct{}{} },
			after: func(e *eventFile) { <-e.token }},
		{name: "too many threads are at pipes", late: true, between: func(e *eventFile) {
			for range maxAtPipes {
				e.gate.enter(nil)
			}
		}, after: func(e *eventFile) {
			for range maxAtPipes {
				e.gate.leave()
			}
		}},
		{name: "the channel ends", late: true, between: func(e *eventFile) { e.endEventFile(false) }, ends: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newFixture(t)
			p := w.startProgram(byWrite)
			caller := w.open(byWrite)
			ch := p.createChannel()
			cq := p.createCQ(ch, 0xa)
			e := p.f.events.channels[0]
			must(t, sendWithoutResponse(p, uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: cq}))
			late := &lateCaller{program: caller, refuses: test.refuses, mate: p}
			if test.other {
				late.mate = caller
			}

			h := caller.f.newHold(nil)
			p.fakeCQ(cq).Complete(ib.WC{})
			runCallbacks(h, late)
			if got := len(late.kept) == 1; got != test.late {
				t.Fatalf("the caller has work after the answer: got %v, want %v", got, test.late)
			}
			if test.late {
				if n, err := unix.IoctlGetInt(ch, unix.TIOCINQ); n != 0 || err != nil {
					t.Errorf("before the answer: got %d bytes in the pipe, %v, want none", n, err)
				}
				if test.between != nil {
					test.between(e)
				}
				late.kept[0].RunLate()
				if test.after != nil {
					test.after(e)
				}
			}
			buf := make([]byte, compRecordSize)
			n, err := unix.Read(ch, buf) // blocks until the record is written, or the pipe ends
			if want := map[bool]int{false: compRecordSize, true: 0}[test.ends]; n != want || err != nil {
				t.Errorf("read of the channel: got %d bytes, %v, want %d", n, err, want)
			}
			if !test.ends {
				p.armAndComplete(cq) // the next event takes the usual way
				if n, err := unix.Read(ch, buf); n != compRecordSize || err != nil {
					t.Errorf("read of the next event: got %d bytes, %v, want %d", n, err, compRecordSize)
				}
			}
		})
	}
}

// TestLateEventOfFullPipe checks that work after the answer does not wait until a pipe has space.
func TestLateEventOfFullPipe(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byWrite)
	ch := p.createChannel()
	cq := p.createCQ(ch, 0xa)
	must(t, p.fillPipe(p.f.events.channels[0]))
	must(t, sendWithoutResponse(p, uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: cq}))
	late := &lateCaller{program: p, mate: p}
	h := p.f.newHold(nil)
	p.fakeCQ(cq).Complete(ib.WC{})
	runCallbacks(h, late)
	if len(late.kept) != 1 {
		t.Fatalf("work after the answer: got %d elements, want 1", len(late.kept))
	}
	late.kept[0].RunLate() // returns although the pipe is full
	for last := uint64(0); last != 0xa; {
		buf := make([]byte, compRecordSize)
		if _, err := unix.Read(ch, buf); err != nil {
			t.Fatal(err)
		}
		last = uint64At(buf)
	}
}

// fillPipe fills the pipe of e with bytes that are no event, as the program could.
func (p *program) fillPipe(e *eventFile) error {
	e.token <- struct{}{}
	defer func() { <-e.token }()
	for {
		if _, err := unix.Write(e.fd, make([]byte, compRecordSize)); err == unix.EAGAIN {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// TestNoEventWaitsForAResponse checks that an event is written before the response of the delivering command, because
// the response may block in memory for ever.
func TestNoEventWaitsForAResponse(t *testing.T) {
	w := newFixture(t)
	p, a := w.startProgram(byWrite), w.startProgram(byWrite)
	ch := p.createChannel()
	cq := p.createCQ(ch, 0xa)
	must(t, sendWithoutResponse(p, uapi.CmdReqNotifyCQ, uapi.ReqNotifyCQ{CQHandle: cq}))
	qp := a.createQP(a.allocPD(), a.createCQ(-1, 0), 0, uapi.QPTRC).QPHandle

	h := p.f.newHold(nil) // a doorbell in progress
	defer runCallbacks(h, nil)
	p.fakeCQ(cq).Complete(ib.WC{})
	late := &lateCaller{program: a, mate: p}
	c := &struct {
		*observedCaller
		LateWorker
	}{&observedCaller{program: a}, late}
	stored := false
	c.before = func(what string) {
		if stored = what == "stores the response"; stored {
			if n, err := unix.Read(ch, make([]byte, compRecordSize)); n != compRecordSize || err != nil {
				t.Errorf("before the response: got %d bytes of the event, %v, want %d", n, err, compRecordSize)
			}
		}
	}
	cmd := uapi.AppendTo(nil, &uapi.CmdHdr{Command: uint32(uapi.CmdPostRecv), OutWords: 1,
		InWords: uint16((cmdHdrSize + uapi.SizeOf[uapi.PostRecv]() + uapi.SizeOf[uapi.RecvWR]()) / 4)})
	cmd = uapi.AppendTo(cmd, &uapi.PostRecv{QPHandle: qp, WRCount: 1, WQESize: uint32(uapi.SizeOf[uapi.RecvWR]()),
		Response: addressOf(a.allocMem(8))})
	cmd = uapi.AppendTo(cmd, &uapi.RecvWR{})
	if _, err := a.f.Write(c, addressOf(a.storeBytes(cmd)), len(cmd)); err != nil {
		t.Fatal(err)
	}
	if !stored {
		t.Error("the command has stored no response")
	}
	if len(late.kept) != 0 {
		t.Errorf("work after the answer: got %d elements, want none", len(late.kept))
	}
}
