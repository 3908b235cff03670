package reports

import (
	"bytes"
	"errors"
	"net/netip"
	"syscall"

	"verbena/test/suite"
	"verbena/verbs"
	"verbena/verbs/cm"
)

// privateBytes returns private data of n bytes without a zero byte.
func privateBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i%255) + 1
	}
	return b
}

// testPrivateData tests that private data of the maximum length arrives complete. The rest of the message's field
// arrives as zeros.
func testPrivateData(w *suite.CMTestbed) {
	l, at := w.Listen()
	defer l.Close()
	for _, n := range []struct{ request, reply int }{{56, 196}, {0, 0}, {1, 1}} {
		done := make(chan []byte, 1)
		var passive *cm.Conn
		go func() {
			_, c, got, err := w.Accept(l, privateBytes(n.reply))
			if err != nil {
				w.Errorf("accept: %v", err)
			}
			passive = c
			done <- got
		}()
		_, active, reply, err := w.Dial(at, privateBytes(n.request))
		w.Must(err)
		for _, x := range []struct {
			what      string
			got       []byte
			sent, all int
		}{{"request", <-done, n.request, 56}, {"reply", reply, n.reply, 196}} {
			if want := append(privateBytes(x.sent), make([]byte, x.all-x.sent)...); !bytes.Equal(x.got, want) {
				w.Errorf("%s of %d bytes: got %d, % x", x.what, x.sent, len(x.got), x.got)
			}
		}
		w.Must(active.Close())
		w.Must(passive.Close())
	}
}

// testRefusalData tests that the data of a rejection arrives complete, regardless of the data of the request.
func testRefusalData(w *suite.CMTestbed) {
	l, at := w.Listen()
	defer l.Close()
	for _, n := range []int{148, 1, 0} {
		go func() {
			if r, err := l.Accept(w.ShortContext()); err == nil {
				_ = r.Reject(privateBytes(n))
			}
		}()
		_, c, _, err := w.Dial(at, privateBytes(56))
		var refused *cm.RefusedError
		if !errors.As(err, &refused) || refused.Reason != 28 ||
			!bytes.Equal(refused.Data, append(privateBytes(n), make([]byte, 148-n)...)) {
			w.Errorf("%d bytes: got %+v", n, err)
		}
		w.Must(c.Close())
	}
}

// testPortInUse tests the errors for a port that another listener uses. The error is EADDRINUSE at the same address,
// and EADDRNOTAVAIL if one of the two listens on all addresses.
func testPortInUse(w *suite.CMTestbed) {
	l, at := w.Listen()
	if _, err := w.Manager.Listen(at, 0); !errors.Is(err, syscall.EADDRINUSE) {
		w.Errorf("Listen at the same address: got %v, want EADDRINUSE", err)
	}
	all := netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
	if _, err := w.Manager.Listen(all, 0); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		w.Errorf("Listen at all addresses: got %v, want EADDRNOTAVAIL", err)
	}
	w.Must(l.Close())
	l, err := w.Manager.Listen(all, 0)
	w.Must(err)
	if _, err := w.Manager.Listen(at, 0); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		w.Errorf("Listen at one address, after all addresses: got %v, want EADDRNOTAVAIL", err)
	}
	w.Must(l.Close())
	l, err = w.Manager.Listen(at, 0) // the port is free at once
	w.Must(err)
	w.Must(l.Close())
}

// testSourceAddress tests two concurrent connections from the same local address.
func testSourceAddress(w *suite.CMTestbed) {
	l, at := w.Listen()
	defer l.Close()
	var conns []*cm.Conn
	for range 2 {
		c, err := w.Manager.Resolve(w.ShortContext(), cm.Target{Addr: at, Source: netip.AddrPortFrom(w.Addr, 0)})
		w.Must(err)
		if c.LocalAddr().Addr() != w.Addr || c.LocalAddr().Port() == 0 {
			w.Errorf("local address: got %v, want a port of %v", c.LocalAddr(), w.Addr)
		}
		conns = append(conns, c)
	}
	if conns[0].LocalAddr() == conns[1].LocalAddr() {
		w.Errorf("ports of the connections: got %d for both, want different ports", conns[0].LocalAddr().Port())
	}
	for _, c := range conns {
		w.Must(c.Close())
	}
}

// testRequestIsAnsweredOnce tests that a request is answered only once. A second answer fails and does not change the
// connection.
func testRequestIsAnsweredOnce(w *suite.CMTestbed) {
	l, at := w.Listen()
	defer l.Close()
	passive := w.NewEnd(verbs.QPInit{})
	done := make(chan *cm.Conn, 1)
	go func() {
		defer close(done)
		r, err := l.Accept(w.ShortContext())
		if err == nil {
			err = r.Init(passive.QP)
		}
		if err != nil {
			w.Error(err)
			return
		}
		passive.PostRecv(1, 0, 8)
		c, err := r.Accept(passive.QP, cm.Param{}, nil)
		if err != nil {
			w.Error(err)
			return
		}
		if err := r.Reject(nil); !errors.Is(err, syscall.EINVAL) {
			w.Errorf("Reject after Accept: got %v, want EINVAL", err)
		}
		if _, err := r.Accept(passive.QP, cm.Param{}, nil); !errors.Is(err, syscall.EINVAL) {
			w.Errorf("second Accept: got %v, want EINVAL", err)
		}
		done <- c
	}()
	e, active, _, err := w.Dial(at, nil)
	w.Must(err)
	c := <-done
	if c == nil {
		w.FailNow()
	}
	w.Must(c.Established(w.ShortContext()))
	e.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: sge(e, 0, 8)})
	e.WaitSuccess(2)
	passive.WaitSuccess(1)
	w.Must(active.Close())
	w.Must(c.Close())
}
