package rblk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"verbena/ib"
	"verbena/rdmacm"
)

// initiatorSession is the initiator's side of a session.
type initiatorSession struct {
	disk   *Disk
	ep     *endpoint
	conn   *rdmacm.Conn
	ctl    *endpointMemory // depth requests to send, then depth responses received
	failed func(error)     // cancels the session
	hello  chan []byte     // the received welcome
	watch  chan struct{}   // closed when guard has returned

	sends []sendSlot // by tag

	oldest int           // guarded by Disk.mu: tag of the request with the response that proves the link; -1: none
	proved chan struct{} // closed by that response
}

// sendSlot is the memory of a request that is sent. It belongs to the device until the SEND has completed, which may be
// after the response.
type sendSlot struct {
	mu   sync.Mutex
	busy bool
	next *request // waits for the completion
}

// begin reports whether the request can be sent now. Otherwise the request waits until finish returns it.
func (m *sendSlot) begin(r request) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy {
		m.next = &r
		return false
	}
	m.busy = true
	return true
}

// finish is called when the SEND has completed. It returns the next request, or nil.
func (m *sendSlot) finish() (next *request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next, m.next = m.next, nil
	m.busy = next != nil
	return next
}

// loginTimeout limits one attempt to log in.
const loginTimeout = 10 * time.Second

const (
	// number of RDMA READs that the target may have in flight
	readDepth = 4
	// Seven retries of 67 ms: the queue pair reports a lost peer after half a second without a response. The
	// requests persist beyond this time.
	ackTimeout = 14
	retryCount = 7
)

// login creates a session on a device. After an error login has destroyed all objects.
func (d *Disk) login(ctx context.Context, dev *ib.Device, failed func(error)) (_ *initiatorSession, err error) {
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	l := &initiatorSession{disk: d, failed: failed, hello: make(chan []byte, 1), watch: make(chan struct{}),
		proved: make(chan struct{})}
	defer func() {
		if err != nil {
			if l.ep != nil {
				l.ep.close()
			}
			if l.conn != nil {
				l.conn.Close()
			}
		}
	}()
	if l.conn, err = d.cfg.Manager.Resolve(ctx, rdmacm.Target{Addr: d.cfg.Target, Device: dev,
		ACKTimeout: ackTimeout}); err != nil {
		return nil, err
	}
	if d.data == nil {
		if d.data, err = newMemory(d.cfg.Depth*d.cfg.MaxIO,
			ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead); err != nil {
			return nil, err
		}
	}
	depth := d.cfg.Depth
	l.sends = make([]sendSlot, depth)
	if l.ctl, err = newMemory(depth*(requestLen+responseLen), ib.AccessLocalWrite); err != nil {
		return nil, err
	}
	if l.ep, err = newEndpoint(dev, depth, depth, l.handleCompletion, func(e ib.EventType) {
		failed(fmt.Errorf("%v",
			e))
	}, l.ctl,
		d.data); err != nil {
		return nil, err
	}
	if err = l.conn.Init(l.ep.qp.QP); err != nil {
		return nil, err
	}
	if err = l.ep.postLoginReceive(); err != nil {
		return nil, err
	}
	for slot := range depth {
		if err = l.postReceive(slot); err != nil {
			return nil, err
		}
	}
	param := rdmacm.Param{ResponderResources: readDepth, RetryCount: retryCount}
	if _, _, err = l.conn.Connect(ctx, l.ep.qp.QP, param, sessionOffer{depth, d.cfg.MaxIO}.bytes()); err != nil {
		var no *rdmacm.RefusedError
		if errors.As(err, &no) {
			if r, ok := parseRefusal(no.Data); ok {
				err = r
			}
		}
		return nil, err
	}
	d.epoch++
	if err = l.ep.sendHandshake(loginMessage{Initiator: d.name, Epoch: d.epoch, Export: d.cfg.Export}); err != nil {
		return nil, err
	}
	var w welcomeMessage
	select {
	case b := <-l.hello:
		err = json.Unmarshal(b, &w)
	case <-l.conn.Done():
		err = l.conn.Err()
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("login: %w", err)
	}
	if w.Refused != "" {
		return nil, &sessionRefusal{w.Refused, w.Retry}
	}
	if err = d.applyWelcome(&w); err != nil {
		return nil, err
	}
	go l.watchConnection()
	return l, nil
}

// watchConnection waits for the end of the connection. watchConnection detects requests without a response. If no
// requests are outstanding, it detects a dead target by probes.
func (l *initiatorSession) watchConnection() {
	defer close(l.watch)
	hang := l.disk.cfg.Hang
	tick := time.NewTicker(max(hang/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-l.conn.Done():
			l.failed(fmt.Errorf("connection to the target: %w", l.conn.Err()))
			return
		case <-tick.C:
		}
		since := l.disk.oldestPostTime()
		if since.IsZero() {
			if err := l.ep.probePeer(); err != nil {
				l.failed(err)
			}
		} else if time.Since(since) >= hang {
			l.failed(fmt.Errorf("no response for %v", hang))
		}
	}
}

// close destroys the session. Once it has returned, the peer cannot write to the disk's memory.
func (l *initiatorSession) close() {
	l.ep.close()
	l.conn.Close()
	<-l.watch
}

func (l *initiatorSession) responseOffset(slot int) int {
	return l.disk.cfg.Depth*requestLen + slot*responseLen
}

func (l *initiatorSession) postReceive(slot int) error {
	return l.ep.postRecv(ib.RecvWR{ID: ofRecv | uint64(slot), SGList: []ib.SGE{{
		Addr: l.ctl.addr + uint64(l.responseOffset(slot)), Length: responseLen, LKey: l.ep.mrs[0].LKey(),
	}}})
}

// postRequest sends a request, or leaves it to the completion of the last SEND with its tag. It does not sleep.
func (l *initiatorSession) postRequest(r request) error {
	if !l.sends[r.tag].begin(r) {
		return nil
	}
	return l.sendRequest(r)
}

func (l *initiatorSession) sendRequest(r request) error {
	r.rkey = l.ep.mrs[1].RKey()
	off := int(r.tag) * requestLen
	r.encodeTo(l.ctl.bytes[off:])
	return l.ep.postSends(ib.SendWR{
		ID: ofMessage | uint64(r.tag), Opcode: ib.WRSend, Flags: ib.SendSignaled,
		SGList: []ib.SGE{{Addr: l.ctl.addr + uint64(off), Length: requestLen, LKey: l.ep.mrs[0].LKey()}},
	})
}

// handleCompletion is called for each completion, so it may not sleep.
func (l *initiatorSession) handleCompletion(wc *ib.WC) {
	if wc.Status != ib.WCSuccess {
		l.failed(fmt.Errorf("completion: %v", wc.Status))
		return
	}
	switch wc.ID &^ 0xffffffff {
	case ofHello:
		l.hello <- l.ep.receivedHandshakeBytes(wc) // the buffered channel has room for this only response
		return
	case ofMessage:
		if r := l.sends[uint32(wc.ID)].finish(); r != nil {
			if err := l.sendRequest(*r); err != nil {
				l.failed(err)
			}
		}
		return
	case ofRecv:
	default:
		return
	}
	slot := int(uint32(wc.ID))
	a, err := parseResponse(l.ctl.bytes[l.responseOffset(slot):][:min(wc.ByteLen, responseLen)], l.disk.depth)
	if err == nil {
		err = l.postReceive(slot)
	}
	if err == nil {
		err = l.disk.handleResponse(l, a)
	}
	if err != nil {
		l.failed(err)
	}
}
