package rblk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"verbena/ib"
)

// link is the initiator's side of a session.
type link struct {
	disk   *Disk
	ep     *endpoint
	conn   net.Conn
	ctl    *memory     // depth requests to send, then depth responses received
	failed func(error) // ends the session
	watch  chan struct{}

	oldest int           // under Disk.mu: the tag of the request whose response proves the link; -1: none
	proved chan struct{} // closed by it
}

// refusal is the target's answer to a login that it does not like.
type refusal struct {
	why   string
	retry bool
}

func (r *refusal) Error() string { return "the target refuses: " + r.why }

// loginTime bounds one attempt.
const loginTime = 10 * time.Second

// login makes a session on a device. It leaves nothing if it fails.
func (d *Disk) login(ctx context.Context, dev *ib.Device, failed func(error)) (_ *link, err error) {
	ctx, cancel := context.WithTimeout(ctx, loginTime)
	defer cancel()
	l := &link{disk: d, failed: failed, watch: make(chan struct{}), proved: make(chan struct{})}
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
	if l.conn, err = d.cfg.Dial(ctx); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { l.conn.Close() }) // ends the reading below
	defer stop()
	if d.data == nil {
		if d.data, err = newMemory(d.cfg.Depth*d.cfg.MaxIO, ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead); err != nil {
			return nil, err
		}
	}
	depth := d.cfg.Depth
	if l.ctl, err = newMemory(depth*(requestLen+responseLen), ib.AccessLocalWrite); err != nil {
		return nil, err
	}
	if l.ep, err = newEndpoint(dev, 4*depth, depth, l.handle, func(e ib.EventType) { failed(fmt.Errorf("%v", e)) }, l.ctl, d.data); err != nil {
		return nil, err
	}
	for slot := range depth {
		if err = l.receive(slot); err != nil {
			return nil, err
		}
	}
	d.epoch++
	if err = writeLine(l.conn, login{
		Version: version, Initiator: d.name, Epoch: d.epoch, Export: d.cfg.Export, Depth: depth, MaxIO: d.cfg.MaxIO, QP: l.ep.addr,
	}); err != nil {
		return nil, err
	}
	var w welcome
	if err = readLine(l.conn, &w); err != nil {
		return nil, fmt.Errorf("login: %w", err)
	}
	if w.Refused != "" {
		return nil, &refusal{w.Refused, w.Retry}
	}
	if err = d.prepare(&w); err != nil {
		return nil, err
	}
	if err = l.ep.up(w.QP); err != nil {
		return nil, err
	}
	if !stop() {
		return nil, context.Cause(ctx)
	}
	go l.guard()
	return l, nil
}

// guard reads the stream, on which nothing comes but its end, and looks after requests that hang.
func (l *link) guard() {
	defer close(l.watch)
	hang := l.disk.cfg.Hang
	for {
		l.conn.SetReadDeadline(time.Now().Add(hang / 4))
		_, err := l.conn.Read(make([]byte, 1))
		switch {
		case err == nil:
			err = errors.New("the target spoke out of turn")
		case errors.Is(err, os.ErrDeadlineExceeded):
			if t := l.disk.oldest(); t.IsZero() || time.Since(t) < hang {
				continue
			}
			err = fmt.Errorf("no response for %v", hang)
		default:
			err = fmt.Errorf("the stream to the target: %w", err)
		}
		l.failed(err)
		return
	}
}

// close leaves nothing of the session; when it returns nobody writes to the disk's memory any more.
func (l *link) close() {
	l.ep.close()
	l.conn.Close()
	<-l.watch
}

func (l *link) responseAt(slot int) int { return l.disk.cfg.Depth*requestLen + slot*responseLen }

func (l *link) receive(slot int) error {
	return l.ep.recv(ib.RecvWR{ID: ofRecv | uint64(slot), SGList: []ib.SGE{{
		Addr: l.ctl.addr + uint64(l.responseAt(slot)), Length: responseLen, LKey: l.ep.mrs[0].LKey(),
	}}})
}

// post sends a request. It does not sleep.
func (l *link) post(r request) error {
	r.rkey = l.ep.mrs[1].RKey()
	off := int(r.tag) * requestLen
	r.put(l.ctl.bytes[off:])
	return l.ep.send(ib.SendWR{
		ID: ofReply, Opcode: ib.WRSend, Flags: ib.SendSignaled,
		SGList: []ib.SGE{{Addr: l.ctl.addr + uint64(off), Length: requestLen, LKey: l.ep.mrs[0].LKey()}},
	})
}

// handle is called with each completion, so it does not sleep.
func (l *link) handle(wc *ib.WC) {
	if wc.Status != ib.WCSuccess {
		l.failed(fmt.Errorf("completion: %v", wc.Status))
		return
	}
	if wc.ID&^0xffffffff != ofRecv {
		return
	}
	slot := int(uint32(wc.ID))
	a, err := parseResponse(l.ctl.bytes[l.responseAt(slot):][:min(wc.ByteLen, responseLen)], l.disk.depth)
	if err == nil {
		err = l.receive(slot)
	}
	if err == nil {
		err = l.disk.answered(l, a)
	}
	if err != nil {
		l.failed(err)
	}
}
