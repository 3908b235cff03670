// Package panics_in_callback has callbacks that do not return.
package panics_in_callback

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"log"
	"os"
	"runtime"

	"verbena/ib"
	"verbena/ib/completion"
)

type port struct {
	cq      *ib.CQ
	qp      *completion.QP
	buf     []byte
	names   [4]string
	waiting map[uint64]chan struct{}
}

func (p *port) handle(cq *ib.CQ) {
	cq.ReqNotify(ib.NotifyNextComp)
	var wcs [8]ib.WC
	n, _ := cq.Poll(wcs[:])
	for i := range wcs[:n] {
		p.complete(&wcs[i])
	}
}

func (p *port) complete(wc *ib.WC) {
	check(wc)
	if wc.Status != ib.WCSuccess {
		if p.qp == nil {
			return
		}
		log.Panicln("failed", wc.Status) // want "panic: .*handle.* may not return: it calls log.Panicln" "nosleep"
	}
	ch := p.waiting[wc.ID]
	if ch == nil {
		panic("no such request") // want "panic: .* may not return: it panics"
	}
	close(ch)
}

func check(wc *ib.WC) {
	switch wc.VendorErr {
	case 0, 1:
	default:
		fail("vendor error")
	}
}

func fail(what string) {
	panic(errors.New(what)) // want "panic: .* may not return: it panics"
}

// parse is for the bytes of a peer.
func parse(b []byte) (kind int, err error) {
	if kind = int(binary.BigEndian.Uint16(b)); kind > 3 {
		return 0, errors.New("unknown kind")
	}
	return kind, nil
}

func (p *port) post(sgl []ib.SGE) error {
	return p.qp.PostRecv(ib.RecvWR{SGList: sgl}, func(wc *ib.WC) {
		if wc.Status != ib.WCSuccess {
			return
		}
		kind, err := parse(p.buf)
		if err != nil {
			panic(err) // want "panic: .* may not return: it panics"
		}
		_ = p.names[kind]
		var m struct{ Version int }
		if json.Unmarshal(p.buf, &m); m.Version != 1 {
			panic("version") // want "panic: .* may not return: it panics"
		}
		if err := p.post(sgl); err != nil {
			log.Fatalf("post: %v", err) // want "panic: .* may not return: it calls log.Fatalf" "nosleep"
		}
	})
}

func (p *port) quit(sgl []ib.SGE) error {
	return p.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: sgl}, func(*ib.WC) {
		defer func() { recover() }()
		p.end()
	})
}

func (p *port) end() {
	defer runtime.Goexit() // want "panic: .* may not return: it calls runtime.Goexit"
	p.names = [4]string{}
}

func open(d *ib.Device) (*port, error) {
	p := &port{}
	d.OnEvent(func(e ib.Event) {
		if e.Type == ib.EventDeviceFatal {
			os.Exit(1) // want "panic: .* may not return: it calls os.Exit"
		}
	})
	var err error
	p.cq, err = d.CreateCQ(ib.CQInit{Entries: 8, Handler: p.handle, Event: unexpected})
	return p, err
}

func unexpected(*ib.CQ, ib.EventType) { panic("unexpected event") } // want "panic: .*unexpected.* may not return: it panics"

// exit is a variable for tests.
var exit = os.Exit

func closed(d *ib.Device) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 4, Handler: func(cq *ib.CQ) {
		exit(1) // want "panic: .* may not return: it calls os.Exit"
	}})
}
