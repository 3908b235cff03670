package service

import (
	"errors"
	"syscall"
	"testing"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
)

// TestDoManagesService tests that Do has the rights of a manager, that it refuses requests that only a connection can
// make, and that other users do not learn the address of the web page.
func TestDoManagesService(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.43"}})
	s.opts.Web = "http://127.0.0.1:1/secret/"
	if r, err := s.Do(&ctl.Request{Op: ctl.OpQPShow}); err != nil || r.QPs == nil {
		t.Errorf("qp show: got %+v and error %v, want a list", r, err)
	}
	if _, err := s.Do(&ctl.Request{Op: ctl.OpLinkSet, Set: &ctl.LinkSet{Name: "rxe0", State: ctl.LinkDown}}); err != nil {
		t.Errorf("link set: got %v, want success", err)
	}
	if links, err := s.Links(); err != nil || links[0].Link != ctl.LinkDown {
		t.Errorf("link after link set down: got %+v and error %v, want down", links, err)
	}
	for _, op := range []ctl.Op{ctl.OpStop, ctl.OpYield, ctl.OpAttach, ctl.OpOpen, ctl.OpCapture} {
		if _, err := s.Do(&ctl.Request{Op: op}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: got %v, want EINVAL", op, err)
		}
	}
	if r, err := c.Do(&ctl.Request{Op: ctl.OpInfo}); err != nil || r.Info.Web != s.opts.Web {
		t.Errorf("info for the owner: got %+v and error %v, want the address of the page", r, err)
	}
	ends := testutil.NewUnixPair(t)
	go s.serveAndClose(ctl.Conn{UnixConn: ends[0]}, userPeer(4242), 0)
	user := ctl.NewClient(ends[1], 0, 0)
	if r, err := user.Do(&ctl.Request{Op: ctl.OpInfo}); err != nil || r.Info.Web != "" {
		t.Errorf("info for another user: got %+v and error %v, want no address of the page", r, err)
	}
}
