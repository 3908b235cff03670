package rblk

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"verbena/ib"
)

// session is the target's side of one login. A request takes a place, named by its tag, from its arrival to its
// response:
//
//	free -> fetching (RDMA READ, of a write) -> storing (a worker) -> free, response posted
//	  +------------- (read, sync) ------------------^
type session struct {
	ep    *endpoint
	store *export
	conn  net.Conn
	epoch uint64
	depth int
	maxIO int

	ctl    *memory // depth+1 requests received, then depth responses to send
	data   *memory // maxIO bytes for each tag
	places []place

	work    chan uint16 // tags for the workers; room for all
	workers sync.WaitGroup
	nwork   int
	ending  atomic.Bool   // workers leave alone what they have not begun
	over    chan struct{} // closed when it has ended

	mu  sync.Mutex
	why error // the first reason to end
}

// place is where a request is worked on. It belongs to the completion handler, or to the worker that has its tag.
type place struct {
	busy atomic.Bool
	req  request
}

// What a completion is of, in the upper half of a work request's ID; the lower half is a tag or a receive slot.
const (
	ofRecv uint64 = iota << 32
	ofFetch
	ofReply
)

func newSession(cfg *TargetConfig, dev *ib.Device, store *export, c net.Conn, l *login) (*session, error) {
	s := &session{
		store: store, conn: c, epoch: l.Epoch, nwork: cfg.Workers, over: make(chan struct{}),
		depth: min(cfg.Depth, l.Depth), maxIO: min(cfg.MaxIO, l.MaxIO),
	}
	s.places, s.work = make([]place, s.depth), make(chan uint16, s.depth)
	var err error
	if s.ctl, err = newMemory((s.depth+1)*requestLen+s.depth*responseLen, ib.AccessLocalWrite); err != nil {
		return nil, err
	}
	if s.data, err = newMemory(s.depth*s.maxIO, ib.AccessLocalWrite); err != nil {
		return nil, err
	}
	// A place may be taken again when its response is posted, before that has completed: twice the room.
	if s.ep, err = newEndpoint(dev, 4*s.depth, s.depth+1, s.handle, func(e ib.EventType) { s.lose(fmt.Errorf("%v", e)) }, s.ctl, s.data); err != nil {
		return nil, err
	}
	for i := range s.depth + 1 {
		if err == nil {
			err = s.receive(i)
		}
	}
	if err == nil {
		err = s.ep.up(l.QP)
	}
	if err != nil {
		s.ep.close()
		return nil, err
	}
	return s, nil
}

func (s *session) start() {
	for range s.nwork {
		s.workers.Go(s.serve)
	}
}

// lose closes the stream, on which both sides learn that the session ends. It does not sleep.
func (s *session) lose(why error) {
	s.mu.Lock()
	if s.why == nil {
		s.why = why
	}
	s.mu.Unlock()
	s.conn.Close()
}

func (s *session) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// end returns when nothing of the session touches the device or the store any more. The caller holds initiator.mu.
func (s *session) end(why error) {
	s.lose(why)
	if s.ending.Swap(true) {
		return
	}
	s.ep.close() // no handler runs after it, so nobody sends to work
	close(s.work)
	s.workers.Wait()
	close(s.over)
}

func (s *session) request(slot int) []byte { return s.ctl.bytes[slot*requestLen:][:requestLen] }

// receive gives a slot to the receive queue.
func (s *session) receive(slot int) error {
	return s.ep.recv(ib.RecvWR{ID: ofRecv | uint64(slot), SGList: []ib.SGE{{
		Addr: s.ctl.addr + uint64(slot*requestLen), Length: requestLen, LKey: s.ep.mrs[0].LKey(),
	}}})
}

// place's part of the data memory.
func (s *session) piece(tag uint16, n uint32) []byte { return s.data.bytes[int(tag)*s.maxIO:][:n] }

func (s *session) pieceSGL(tag uint16, n uint32) []ib.SGE {
	return []ib.SGE{{Addr: s.data.addr + uint64(int(tag)*s.maxIO), Length: n, LKey: s.ep.mrs[1].LKey()}}
}

// handle is called with each completion, so it does not sleep.
func (s *session) handle(wc *ib.WC) {
	if wc.Status != ib.WCSuccess {
		s.lose(fmt.Errorf("completion: %v", wc.Status))
		return
	}
	var err error
	switch low := uint32(wc.ID); wc.ID &^ 0xffffffff {
	case ofRecv:
		err = s.arrived(int(low), wc.ByteLen)
	case ofFetch:
		s.work <- uint16(low)
	}
	if err != nil {
		s.lose(err)
	}
}

// arrived begins a request.
func (s *session) arrived(slot int, n uint32) error {
	r, err := parseRequest(s.request(slot)[:min(n, requestLen)], s.depth, s.maxIO)
	if err != nil {
		return err
	}
	p := &s.places[r.tag]
	if p.busy.Swap(true) {
		return fmt.Errorf("tag %d is used twice", r.tag)
	}
	p.req = r
	if err := s.receive(slot); err != nil {
		return err
	}
	if size := uint64(s.store.Size()); r.offset > size || uint64(r.length) > size-r.offset {
		return s.respond(r.tag, statusInvalid)
	}
	if r.op != opWrite || r.length == 0 {
		s.work <- r.tag
		return nil
	}
	return s.ep.send(ib.SendWR{
		ID: ofFetch | uint64(r.tag), Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: s.pieceSGL(r.tag, r.length), RemoteAddr: r.addr, RKey: r.rkey,
	})
}

// serve is a worker: what may sleep is done here.
func (s *session) serve() {
	for tag := range s.work {
		if s.ending.Load() {
			continue
		}
		p := &s.places[tag]
		r := p.req
		var err error
		switch data := s.piece(tag, r.length); r.op {
		case opRead:
			var n int
			if n, err = s.store.ReadAt(data, int64(r.offset)); n == len(data) { // and perhaps io.EOF
				err = s.ep.send(ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: s.pieceSGL(tag, r.length), RemoteAddr: r.addr, RKey: r.rkey})
				if err != nil {
					s.lose(err)
					continue
				}
			}
		case opWrite:
			_, err = s.store.WriteAt(data, int64(r.offset))
		case opSync:
			err = s.store.Sync()
		}
		if err := s.respond(tag, statusOf(err)); err != nil {
			s.lose(err)
		}
	}
}

// respond frees the place, and tells the initiator. What it is told of has arrived before, since a queue pair keeps the
// order.
func (s *session) respond(tag uint16, st status) error {
	off := (s.depth+1)*requestLen + int(tag)*responseLen
	response{tag, st}.put(s.ctl.bytes[off:])
	s.places[tag].busy.Store(false)
	return s.ep.send(ib.SendWR{
		ID: ofReply, Opcode: ib.WRSend, Flags: ib.SendSignaled,
		SGList: []ib.SGE{{Addr: s.ctl.addr + uint64(off), Length: responseLen, LKey: s.ep.mrs[0].LKey()}},
	})
}
