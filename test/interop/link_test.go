//go:build interop

package interop

import (
	"fmt"
	"time"
)

// role says who requests of whom.
type role struct{ req, resp func() *peer }

var (
	theKernel = func() *peer { return kernelPeer }
	verbena   = func() *peer { return verbenaPeer }
)

// roles are the two sides as requester and responder.
var roles = []role{{theKernel, verbena}, {verbena, theKernel}}

func (r role) String() string { return r.req().name + " → " + r.resp().name }

// end is one side of a link.
type end struct {
	*peer
	gid string
	qp  qp
	buf mr
	srq int
}

// link is two queue pairs that are connected, or, for UD, know of each other.
type link struct {
	service   string
	req, resp *end
	ah        int // at the requester
	seed      int
}

// linkOptions are what a cell wants of its link.
type linkOptions struct {
	mtu       int      // 1024
	size      int      // of the buffers, 1 MB and a bit
	access    []string // of the responder's buffer; default everything
	qpAccess  []string // of the responder's queue pair; default everything
	timeout   int      // local ack timeout, as the exponent; 18, which is 1.07 s
	retry     int      // 7
	noRetry   bool     // retry is 0
	rnrRetry  int      // 7, without end
	minRNR    int      // 12, which is 0.64 ms
	srq       int      // size of the responder's shared receive queue; 0: none
	psn       int      // the requester's first
	hopLimit  int      // 64
	tclass    int
	sge       int // elements of a list
	inline    int
	connected string // who goes to RTS: "" both, "requester"
}

// everything a peer may do with a buffer.
var everything = []string{"LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND"}

const (
	qkey    = 0x11111111
	grhLen  = 40
	guard   = 64 // zeros after a message, which must stay
	maxSize = 1 << 20
)

// or is v, unless it is zero.
func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// newLink makes the queue pairs and the buffers.
func newLink(r role, service, ip string, o linkOptions) (*link, error) {
	l := &link{service: service, seed: 1,
		req:  &end{peer: r.req(), gid: r.req().ip[ip]},
		resp: &end{peer: r.resp(), gid: r.resp().ip[ip]}}
	for _, e := range []*end{l.req, l.resp} {
		var err error
		if e == l.resp && o.srq > 0 {
			var s struct{ ID int }
			if err := e.call(&s, "srq", args{"wr": o.srq}); err != nil {
				return nil, err
			}
			e.srq = s.ID
		}
		if err := e.call(&e.qp, "qp", args{"type": service, "srq": e.srq, "sge": or(o.sge, 1),
			"inline": o.inline}); err != nil {
			return nil, err
		}
		access := everything
		if e == l.resp && o.access != nil {
			access = o.access
		}
		if e.buf, err = e.mr(or(o.size, maxSize)+guard+grhLen, access...); err != nil {
			return nil, err
		}
	}
	remember(l.req, l.resp)
	remember(l.resp, l.req)
	psn := map[*end]int{l.req: or(o.psn, 0xfffffd), l.resp: 0x123456} // over the wrap
	for _, e := range []*end{l.req, l.resp} {
		other := l.resp
		if e == l.resp {
			other = l.req
			if o.connected == "requester" {
				continue
			}
		}
		retry := or(o.retry, 7)
		if o.noRetry {
			retry = 0
		}
		qpAccess := everything[:4]
		if e == l.resp && o.qpAccess != nil {
			qpAccess = o.qpAccess
		}
		a := args{"qp": e.qp.ID, "type": service, "local": e.gid, "remote": other.gid, "qpn": other.qp.QPN,
			"psn": psn[e], "remote_psn": psn[other], "mtu": or(o.mtu, 1024), "timeout": or(o.timeout, 18), "retry": retry,
			"rnr_retry": or(o.rnrRetry, 7), "min_rnr": or(o.minRNR, 12), "access": qpAccess, "qkey": qkey,
			"hop_limit": or(o.hopLimit, 64), "traffic_class": o.tclass}
		// The method's argument named timeout is the queue pair's, an int: call takes no notice of it.
		if err := e.call(nil, "connect", a); err != nil {
			return nil, err
		}
	}
	if service == "UD" {
		var h struct{ ID int }
		if err := l.req.call(&h, "ah", args{"local": l.req.gid, "remote": l.resp.gid, "hop_limit": or(o.hopLimit, 64),
			"traffic_class": o.tclass}); err != nil {
			return nil, err
		}
		l.ah = h.ID
	}
	return l, nil
}

// recvTo is where the responder's receives go.
func (l *link) recvTo() int { return or(l.resp.srq, l.resp.qp.ID) }

// headroom is what a UD receive has in front of the data.
func (l *link) headroom() int {
	if l.service == "UD" {
		return grhLen
	}
	return 0
}

// address adds to a work request whom it is for.
func (l *link) address(a args) args {
	if l.service == "UD" {
		a["ah"], a["qpn"], a["qkey"] = l.ah, l.resp.qp.QPN, qkey
	}
	return a
}

// post is a send work request of the requester.
func (l *link) post(a args) error {
	_, err := l.req.send(l.req.qp, l.address(a))
	return err
}

// failed says which message it was.
func failed(size int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("message of %d bytes: %w", size, err)
}

// wantWC compares a completion of a receive with what it should say.
func (l *link) wantWC(c wc, op string, size int, imm *uint32) error {
	flags := 0
	if l.service == "UD" {
		flags |= wcGRH
	}
	if imm != nil {
		flags |= wcWithImm
	}
	// The kernel's rxe reports a GRH on connected receives, too, where the specification has none.
	if l.resp.name == "kernel" && l.service != "UD" {
		c.Flags &^= wcGRH
	}
	switch {
	case c.Op != op:
		return fmt.Errorf("%s: the receive completed as %s, want %s", l.resp.name, c.Op, op)
	case c.Len != size+l.headroom():
		return fmt.Errorf("%s: the receive has %d bytes, want %d", l.resp.name, c.Len, size+l.headroom())
	case c.Flags != flags:
		return fmt.Errorf("%s: the receive has flags %#x, want %#x", l.resp.name, c.Flags, flags)
	case imm != nil && ntohl(c.Imm) != *imm:
		return fmt.Errorf("%s: immediate data %#x, want %#x", l.resp.name, ntohl(c.Imm), *imm)
	case c.QPN != l.resp.qp.QPN:
		return fmt.Errorf("%s: the receive names queue pair %#x, want %#x", l.resp.name, c.QPN, l.resp.qp.QPN)
	case l.service == "UD" && c.SrcQP != l.req.qp.QPN:
		return fmt.Errorf("%s: the receive names source queue pair %#x, want %#x", l.resp.name, c.SrcQP, l.req.qp.QPN)
	}
	return nil
}

// ntohl: ibv_wc has immediate data in network order.
func ntohl(v uint32) uint32 { return v<<24 | v>>24 | v<<8&0xff0000 | v>>8&0xff00 }

// noteRepeat logs that a message of an unreliable service is sent again, for tools/verdict to count.
func (l *link) noteRepeat(op string) {
	fmt.Printf("repeat: %s %s from %s to %s was lost\n", l.service, op, l.req.name, l.resp.name)
}

// unreliable services may lose a message on a busy machine: so often it is sent again, and so long waited for.
const (
	repeats = 6
	lossy   = 3 * time.Second
)
