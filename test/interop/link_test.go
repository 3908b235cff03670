//go:build interop

package interop

import (
	"fmt"
	"time"
)

// role assigns the two sides to requester and responder.
type role struct{ req, resp func() *peer }

var (
	theKernel = func() *peer { return kernelPeer }
	verbena   = func() *peer { return verbenaPeer }
)

// roles holds both assignments of the two sides.
var roles = []role{{theKernel, verbena}, {verbena, theKernel}}

func (r role) String() string { return r.req().name + " → " + r.resp().name }

// linkEnd is one side of a link.
type linkEnd struct {
	*peer
	gid string
	qp  qp
	buf mr
	srq int
}

// link is a pair of connected queue pairs. For UD, each queue pair knows the address of the peer instead.
type link struct {
	service   string
	req, resp *linkEnd
	ah        int // address handle of the requester
	seed      int
}

// linkOptions holds the options of a link. The comments name the default values.
type linkOptions struct {
	mtu       int      // default 1024
	size      int      // size of the buffers; default slightly more than 1 MB
	access    []string // rights of the responder's buffer; default all rights
	qpAccess  []string // rights of the responder's queue pair; default all rights
	timeout   int      // local ACK timeout as the exponent; default 18, which is 1.07 s
	retry     int      // default 7
	noRetry   bool     // retry is 0
	rnrRetry  int      // default 7, which means infinite
	minRNR    int      // default 12, which is 0.64 ms
	srq       int      // size of the responder's shared receive queue; 0 means none
	psn       int      // first PSN of the requester
	hopLimit  int      // default 64
	tclass    int
	sge       int // maximum number of elements in a list
	inline    int
	connected string // side that goes to RTS; "" means both, "requester" means one
}

// allAccess lists all rights of a peer on a buffer.
var allAccess = []string{"LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND"}

const (
	qkey    = 0x11111111
	grhLen  = 40
	guard   = 64 // zeros after a message, which must stay unchanged
	maxSize = 1 << 20
)

// orDefault returns v, or the second value if v is zero.
func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// newLink creates the queue pairs and the buffers.
func newLink(r role, service, ip string, o linkOptions) (*link, error) {
	l := &link{service: service, seed: 1,
		req:  &linkEnd{peer: r.req(), gid: r.req().ip[ip]},
		resp: &linkEnd{peer: r.resp(), gid: r.resp().ip[ip]}}
	for _, e := range []*linkEnd{l.req, l.resp} {
		var err error
		if e == l.resp && o.srq > 0 {
			var s struct{ ID int }
			if err := e.callMethod(&s, "srq", methodArgs{"wr": o.srq}); err != nil {
				return nil, err
			}
			e.srq = s.ID
		}
		if err := e.callMethod(&e.qp, "qp", methodArgs{"type": service, "srq": e.srq, "sge": orDefault(o.sge, 1),
			"inline": o.inline}); err != nil {
			return nil, err
		}
		access := allAccess
		if e == l.resp && o.access != nil {
			access = o.access
		}
		if e.buf, err = e.regMR(orDefault(o.size, maxSize)+guard+grhLen, access...); err != nil {
			return nil, err
		}
	}
	rememberFlow(l.req, l.resp)
	rememberFlow(l.resp, l.req)
	psn := map[*linkEnd]int{l.req: orDefault(o.psn, 0xfffffd), l.resp: 0x123456} // wraps around
	for _, e := range []*linkEnd{l.req, l.resp} {
		other := l.resp
		if e == l.resp {
			other = l.req
			if o.connected == "requester" {
				continue
			}
		}
		retry := orDefault(o.retry, 7)
		if o.noRetry {
			retry = 0
		}
		qpAccess := allAccess[:4]
		if e == l.resp && o.qpAccess != nil {
			qpAccess = o.qpAccess
		}
		a := methodArgs{"qp": e.qp.ID, "type": service, "local": e.gid, "remote": other.gid, "qpn": other.qp.QPN,
			"psn": psn[e], "remote_psn": psn[other], "mtu": orDefault(o.mtu, 1024), "timeout": orDefault(o.timeout,
				18), "retry": retry,
			"rnr_retry": orDefault(o.rnrRetry, 7), "min_rnr": orDefault(o.minRNR, 12), "access": qpAccess, "qkey": qkey,
			"hop_limit": orDefault(o.hopLimit, 64), "traffic_class": o.tclass}
		// The argument named timeout is the timeout of the queue pair, an int. Peer.call ignores it.
		if err := e.callMethod(nil, "connect", a); err != nil {
			return nil, err
		}
	}
	if service == "UD" {
		var h struct{ ID int }
		if err := l.req.callMethod(&h, "ah", methodArgs{"local": l.req.gid, "remote": l.resp.gid,
			"hop_limit":     orDefault(o.hopLimit, 64),
			"traffic_class": o.tclass}); err != nil {
			return nil, err
		}
		l.ah = h.ID
	}
	return l, nil
}

// recvTarget returns the object to which the responder's receives are posted.
func (l *link) recvTarget() int { return orDefault(l.resp.srq, l.resp.qp.ID) }

// grhHeadroom returns the number of bytes before the data in a receive of UD.
func (l *link) grhHeadroom() int {
	if l.service == "UD" {
		return grhLen
	}
	return 0
}

// withDestination adds the destination to a work request.
func (l *link) withDestination(a methodArgs) methodArgs {
	if l.service == "UD" {
		a["ah"], a["qpn"], a["qkey"] = l.ah, l.resp.qp.QPN, qkey
	}
	return a
}

// postSend posts a send work request at the requester.
func (l *link) postSend(a methodArgs) error {
	_, err := l.req.postSend(l.req.qp, l.withDestination(a))
	return err
}

// withMessageSize adds the size of the message to an error.
func withMessageSize(size int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("message of %d bytes: %w", size, err)
}

// wantWC compares the completion of a receive with the expectation.
func (l *link) wantWC(c wc, op string, size int, imm *uint32) error {
	flags := 0
	if l.service == "UD" {
		flags |= wcGRH
	}
	if imm != nil {
		flags |= wcWithImm
	}
	// Contrary to the specification, the kernel's rxe also reports a GRH on connected receives.
	if l.resp.name == "kernel" && l.service != "UD" {
		c.Flags &^= wcGRH
	}
	switch {
	case c.Op != op:
		return fmt.Errorf("%s: receive: got opcode %s, want %s", l.resp.name, c.Op, op)
	case c.Len != size+l.grhHeadroom():
		return fmt.Errorf("%s: receive: got %d bytes, want %d", l.resp.name, c.Len, size+l.grhHeadroom())
	case c.Flags != flags:
		return fmt.Errorf("%s: receive: got flags %#x, want %#x", l.resp.name, c.Flags, flags)
	case imm != nil && ntohl(c.Imm) != *imm:
		return fmt.Errorf("%s: receive: got immediate data %#x, want %#x", l.resp.name, ntohl(c.Imm), *imm)
	case c.QPN != l.resp.qp.QPN:
		return fmt.Errorf("%s: receive: got queue pair %#x, want %#x", l.resp.name, c.QPN, l.resp.qp.QPN)
	case l.service == "UD" && c.SrcQP != l.req.qp.QPN:
		return fmt.Errorf("%s: receive: got source queue pair %#x, want %#x", l.resp.name, c.SrcQP, l.req.qp.QPN)
	}
	return nil
}

// ntohl converts the immediate data of ibv_wc from network order.
func ntohl(v uint32) uint32 { return v<<24 | v>>24 | v<<8&0xff0000 | v>>8&0xff00 }

// logRepeat logs the repetition of a message of an unreliable service, which tools/verdict counts.
func (l *link) logRepeat(op string) {
	fmt.Printf("repeat: %s %s from %s to %s was lost\n", l.service, op, l.req.name, l.resp.name)
}

// Unreliable services may lose a message on a busy machine. The following constants limit the repetitions and the
// wait for each message.
const (
	repeats = 6
	lossy   = 3 * time.Second
)
