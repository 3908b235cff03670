package rblk

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"verbena/ib"
	"verbena/rdmacm"
)

// targetSession is the target's side of a connection. The first message of a session is a login. A request uses a slot
// until its response is complete. The tag of the request identifies the slot:
//
//	free -> fetching (RDMA READ, of a write) -> storing (a worker) -> responding -> free
//	  +------------- (read, sync) ------------------^                    |
//	                                          next request <-------------+ (has come while responding)
//
// The memory of a slot belongs to the device until the response has completed. The initiator may use the tag again as
// soon as it has the response, which may be earlier.
type targetSession struct {
	dev   *ib.Device
	depth int
	maxIO int

	opened chan struct{}   // closed when open has returned
	ep     *endpoint       // nil if open has failed
	conn   *rdmacm.Conn    // nil if open has failed
	ctl    *endpointMemory // depth+1 requests received, then depth responses to send
	data   *endpointMemory // maxIO bytes for each tag
	slots  []requestSlot

	hello chan []byte                   // receive buffer of the login
	store atomic.Pointer[exportedStore] // nil before the login
	epoch uint64                        // sequence number of the login

	work    chan uint16 // tags of requests for the workers; never full
	workers sync.WaitGroup
	ending  atomic.Bool   // set when workers must skip tags that they have not begun
	over    chan struct{} // closed when the session has ended

	mu   sync.Mutex
	why  error         // the first reason for the end
	lost chan struct{} // closed when why is set
}

// requestSlot is the state of a request. While the slot is serving, req belongs to the completion handler, or to the
// worker that has its tag.
type requestSlot struct {
	req request

	mu    sync.Mutex
	state slotState
	next  *request // the next request with the tag; only while responding
}

type slotState uint8

const (
	slotFree slotState = iota
	slotServing
	slotResponding
)

// begin begins a request. If the response to the last one is not complete, the request waits, and begin returns false.
func (p *requestSlot) begin(r request) (now bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.state == slotFree:
		p.state, p.req = slotServing, r
		return true, nil
	case p.state == slotResponding && p.next == nil:
		p.next = &r
		return false, nil
	}
	return false, fmt.Errorf("request with tag %d, which is in use", r.tag)
}

func (p *requestSlot) respond() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = slotResponding
}

// finish is called when the response is complete. It reports whether the next request begins.
func (p *requestSlot) finish() (again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.state = slotFree
		return false
	}
	p.state, p.req, p.next = slotServing, *p.next, nil
	return true
}

// These constants are kinds of completions. The upper half of a work request ID holds the kind, and the lower half
// a tag or a receive slot. A message is a request of the initiator, or a response of the target.
const (
	ofRecv uint64 = iota << 32
	ofFetch
	ofReply
	ofHello
	ofMessage
)

func newSession(dev *ib.Device, depth, maxIO int) *targetSession {
	return &targetSession{
		dev: dev, depth: depth, maxIO: maxIO, opened: make(chan struct{}), slots: make([]requestSlot, depth),
		hello: make(chan []byte, 1),
		work:  make(chan uint16, depth), over: make(chan struct{}), lost: make(chan struct{}),
	}
}

// open creates the objects of the session, and accepts the connection. The method end destroys them.
func (s *targetSession) open(r *rdmacm.Request, workers int) (err error) {
	defer close(s.opened)
	if s.ctl, err = newMemory((s.depth+1)*requestLen+s.depth*responseLen, ib.AccessLocalWrite); err != nil {
		return err
	}
	if s.data, err = newMemory(s.depth*s.maxIO, ib.AccessLocalWrite); err != nil {
		return err
	}
	// A slot has at most an RDMA WRITE and a response in flight.
	if s.ep, err = newEndpoint(s.dev, 2*s.depth, s.depth+1, s.handleCompletion,
		func(e ib.EventType) { s.beginEnd(fmt.Errorf("%v", e)) },
		s.ctl, s.data); err != nil {
		return err
	}
	if err = r.Init(s.ep.qp.QP); err != nil {
		return err
	}
	if err = s.ep.postLoginReceive(); err != nil {
		return err
	}
	for i := range s.depth + 1 {
		if err = s.postReceive(i); err != nil {
			return err
		}
	}
	if s.conn, err = r.Accept(s.ep.qp.QP, rdmacm.Param{InitiatorDepth: min(readDepth, r.Param.InitiatorDepth)},
		nil); err != nil {
		return err
	}
	for range workers {
		s.workers.Go(s.serveRequests)
	}
	return nil
}

// beginEnd starts the end of the session for a reason. beginEnd may not sleep.
func (s *targetSession) beginEnd(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil {
		s.why = why
		close(s.lost)
	}
}

func (s *targetSession) endReason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// endSession returns when the session no longer uses the device or the store. Several goroutines may call end.
func (s *targetSession) endSession(why error) {
	s.beginEnd(why)
	if s.ending.Swap(true) {
		<-s.over
		return
	}
	<-s.opened
	if s.ep != nil {
		s.ep.close() // no handler runs after this point, so the channel work receives no more tags
	}
	close(s.work)
	s.workers.Wait()
	if s.conn != nil {
		s.conn.Close()
	}
	close(s.over)
}

// login returns the first message of the session.
func (s *targetSession) login(within time.Duration) (*loginMessage, error) {
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case b := <-s.hello:
		s.conn.Establish()
		l := new(loginMessage)
		return l, json.Unmarshal(b, l)
	case <-late.C:
		return nil, fmt.Errorf("no login within %v", within)
	case <-s.conn.Done():
		return nil, s.conn.Err()
	case <-s.lost:
		return nil, s.endReason()
	}
}

// watchConnection waits for the end of the session. watchConnection probes the peer, which may have ended without a
// message.
func (s *targetSession) watchConnection(probe time.Duration) {
	tick := time.NewTicker(probe)
	defer tick.Stop()
	for {
		select {
		case <-s.conn.Done():
			s.beginEnd(s.conn.Err())
			return
		case <-s.lost:
			return
		case <-tick.C:
			if err := s.ep.probePeer(); err != nil {
				s.beginEnd(err)
			}
		}
	}
}

func (s *targetSession) requestBytes(slot int) []byte {
	return s.ctl.bytes[slot*requestLen:][:requestLen]
}

// postReceive posts a slot to the receive queue.
func (s *targetSession) postReceive(slot int) error {
	return s.ep.postRecv(ib.RecvWR{ID: ofRecv | uint64(slot), SGList: []ib.SGE{{
		Addr: s.ctl.addr + uint64(slot*requestLen), Length: requestLen, LKey: s.ep.mrs[0].LKey(),
	}}})
}

// slotData returns a slot's part of the data memory.
func (s *targetSession) slotData(tag uint16, n uint32) []byte {
	return s.data.bytes[int(tag)*s.maxIO:][:n]
}

func (s *targetSession) slotSGL(tag uint16, n uint32) []ib.SGE {
	return []ib.SGE{{Addr: s.data.addr + uint64(int(tag)*s.maxIO), Length: n, LKey: s.ep.mrs[1].LKey()}}
}

// handleCompletion is called for each completion, so it may not sleep.
func (s *targetSession) handleCompletion(wc *ib.WC) {
	if wc.Status != ib.WCSuccess {
		s.beginEnd(fmt.Errorf("completion: %v", wc.Status))
		return
	}
	var err error
	switch low := uint32(wc.ID); wc.ID &^ 0xffffffff {
	case ofRecv:
		err = s.handleRequest(int(low), wc.ByteLen)
	case ofFetch:
		s.work <- uint16(low)
	case ofMessage:
		if s.slots[low].finish() {
			err = s.startRequest(uint16(low))
		}
	case ofHello:
		s.hello <- s.ep.receivedHandshakeBytes(wc) // the buffered channel has room for this only login
	}
	if err != nil {
		s.beginEnd(err)
	}
}

// handleRequest starts a received request.
func (s *targetSession) handleRequest(slot int, n uint32) error {
	r, err := parseRequest(s.requestBytes(slot)[:min(n, requestLen)], s.depth, s.maxIO)
	if err != nil {
		return err
	}
	if s.store.Load() == nil {
		return errors.New("got a request before the welcome")
	}
	now, err := s.slots[r.tag].begin(r)
	if err != nil {
		return err
	}
	if err := s.postReceive(slot); err != nil || !now {
		return err
	}
	return s.startRequest(r.tag)
}

// startRequest starts the request of a slot that is serving.
func (s *targetSession) startRequest(tag uint16) error {
	store, r := s.store.Load(), s.slots[tag].req
	if size := uint64(store.Size()); r.offset > size || uint64(r.length) > size-r.offset {
		return s.sendResponse(tag, statusInvalid)
	}
	if r.op != opWrite || r.length == 0 {
		s.work <- tag
		return nil
	}
	return s.ep.postSends(ib.SendWR{
		ID: ofFetch | uint64(tag), Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: s.slotSGL(tag, r.length),
		RemoteAddr: r.addr, RKey: r.rkey,
	})
}

// serveRequests is a worker that executes requests. It may sleep.
func (s *targetSession) serveRequests() {
	for tag := range s.work {
		if s.ending.Load() {
			continue
		}
		store, p := s.store.Load(), &s.slots[tag]
		r := p.req
		var err error
		switch data := s.slotData(tag, r.length); r.op {
		case opRead:
			var n int
			if n, err = store.ReadAt(data, int64(r.offset)); n == len(data) { // ReadAt may return io.EOF with complete data
				err = s.ep.postSends(ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: s.slotSGL(tag, r.length), RemoteAddr: r.addr,
					RKey: r.rkey})
				if err != nil {
					s.beginEnd(err)
					continue
				}
			}
		case opWrite:
			_, err = store.WriteAt(data, int64(r.offset))
		case opSync:
			err = store.Sync()
		}
		if err := s.sendResponse(tag, statusOf(err)); err != nil {
			s.beginEnd(err)
		}
	}
}

// sendResponse sends the response to the initiator. The slot is free when the response is complete. The data arrives
// before the response, because a queue pair keeps the order.
func (s *targetSession) sendResponse(tag uint16, st responseStatus) error {
	off := (s.depth+1)*requestLen + int(tag)*responseLen
	response{tag, st}.encodeTo(s.ctl.bytes[off:])
	s.slots[tag].respond()
	return s.ep.postSends(ib.SendWR{
		ID: ofMessage | uint64(tag), Opcode: ib.WRSend, Flags: ib.SendSignaled,
		SGList: []ib.SGE{{Addr: s.ctl.addr + uint64(off), Length: responseLen, LKey: s.ep.mrs[0].LKey()}},
	})
}
