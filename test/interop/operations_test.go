//go:build interop

package interop

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// operation is a row of the matrix: an operation and the services that support it.
type operation struct {
	name     string
	services []string
	options  linkOptions
	do       func(*link) error
}

var (
	connectedServices = []string{"RC", "UC"}
	allServices       = []string{"RC", "UC", "UD"}
	rc                = []string{"RC"}
)

// The following constants are the sizes of messages at a path MTU of 1024: none, one byte, around a packet, several
// packets, and 1 MB.
var (
	sizes   = []int{0, 1, 7, 1023, 1024, 1025, 4096, 65537, maxSize}
	sizesUD = []int{0, 1, 7, 1023, 1024, 1025, 4096}
)

var operations = []operation{
	{"SEND", allServices, linkOptions{}, transferAllSizes("SEND")},
	{"SEND with immediate", allServices, linkOptions{}, transferAllSizes("SEND_IMM")},
	{"SEND with invalidate", rc, linkOptions{}, testSendInvalidate},
	{"RDMA WRITE", connectedServices, linkOptions{}, transferAllSizes("WRITE")},
	{"RDMA WRITE with immediate", connectedServices, linkOptions{}, transferAllSizes("WRITE_IMM")},
	{"RDMA READ", rc, linkOptions{}, transferAllSizes("READ")},
	{"compare and swap", rc, linkOptions{}, testCompareSwap},
	{"fetch and add", rc, linkOptions{}, testFetchAdd},
	{"SEND, path MTU 256", connectedServices, linkOptions{mtu: 256}, transferAllSizes("SEND", 0, 1, 255, 256, 257, 16384)},
	{"SEND, path MTU 4096", connectedServices, linkOptions{mtu: 4096}, transferAllSizes("SEND", 0, 1, 4095, 4096, 4097,
		maxSize)},
	{"RDMA WRITE, path MTU 4096", rc, linkOptions{mtu: 4096}, transferAllSizes("WRITE", 0, 1, 4095, 4096, 4097, maxSize)},
	{"RDMA READ, path MTU 256", rc, linkOptions{mtu: 256}, transferAllSizes("READ", 0, 1, 255, 256, 257, 16384)},
	{"RDMA READ, path MTU 4096", rc, linkOptions{mtu: 4096}, transferAllSizes("READ", 0, 1, 4095, 4096, 4097, maxSize)},
	{"SEND, inline", allServices, linkOptions{inline: 64}, testInline},
	{"SEND, gathered and scattered", allServices, linkOptions{sge: 4}, testScatteredBuffers},
	{"SEND, many outstanding, unsignalled", rc, linkOptions{}, testManyOutstandingMessages},
	{"RDMA READ, several outstanding, then fenced SEND", rc, linkOptions{}, testFencedRequests},
	{"SEND to a shared receive queue", allServices, linkOptions{srq: 32}, transferAllSizes("SEND", 0, 1, 1024, 4096)},
	{"limit of a shared receive queue", rc, linkOptions{srq: 32}, testSRQLimit},
	{"GRH in front of the data", []string{"UD"}, linkOptions{tclass: 0x68, hopLimit: 33}, testGRHBeforeDatagram},
	{"multicast", []string{"UD"}, linkOptions{}, testMulticast},
	{"bind memory window type 1", rc, linkOptions{}, testWindowType1},
	{"bind memory window type 2", rc, linkOptions{}, testWindowType2},
	{"ATOMIC WRITE", rc, linkOptions{}, requireCapability("ATOMIC WRITE", 1<<40)},
	{"FLUSH", rc, linkOptions{}, requireCapability("FLUSH", 1<<38|1<<39)},
	{"XRC SEND", []string{"XRC"}, linkOptions{}, nil},
}

// testOperations runs the matrix: operation x service type x role x IP version.
func testOperations(t *testing.T) {
	for _, op := range operations {
		for _, service := range op.services {
			for _, ip := range ipNames {
				for _, r := range roles {
					runCell(t, reportCell{Section: "operations", Operation: op.name, Service: service, Role: r.String(), IP: ip},
						func() error {
							if service == "XRC" {
								return openXRCDomains(r)
							}
							l, err := newLink(r, service, ip, op.options)
							if err != nil {
								return err
							}
							return op.do(l)
						})
				}
			}
		}
	}
}

// openXRCDomains opens an XRC domain on both sides. The open fails on a device without XRC.
func openXRCDomains(r role) error {
	for _, p := range []*peer{r.req(), r.resp()} {
		if err := p.callMethod(nil, "xrcd", nil); err != nil {
			return err
		}
	}
	return errors.New("both sides now have XRC domains, but this test has no transfer for them: add one")
}

// requireCapability reports whether both sides support an operation that Linux has had since 6.2 (enum
// ib_uverbs_device_cap_flags).
func requireCapability(name string, bits uint64) func(*link) error {
	return func(l *link) error {
		for _, p := range []*linkEnd{l.req, l.resp} {
			h, err := p.queryPeerInfo()
			if err != nil {
				return err
			}
			if h.Caps&bits == 0 {
				return &callError{p.name, name, "", syscall.EOPNOTSUPP}
			}
		}
		return errors.New("both sides have " + name + " now, but this test has no transfer for it: add one")
	}
}

// transferAllSizes transfers messages of all sizes. It checks completions and data, and that no other memory was
// written.
func transferAllSizes(op string, some ...int) func(*link) error {
	return func(l *link) error {
		list := sizes
		if l.service == "UD" {
			list = sizesUD
		}
		if some != nil {
			list = some
		}
		for _, size := range list {
			if err := l.transferMessage(op, size); err != nil {
				return withMessageSize(size, err)
			}
		}
		return nil
	}
}

func (l *link) transferMessage(op string, size int) error {
	l.seed++
	seed, at := l.seed, l.grhHeadroom()
	from, to := l.req, l.resp
	if op == "READ" {
		from, to, at = l.resp, l.req, 0
	}
	if err := from.fillBuffer(from.buf, 0, size, seed); err != nil {
		return err
	}
	if err := to.zeroBuffer(to.buf, 0, size+guard+grhLen); err != nil {
		return err
	}
	wr := methodArgs{"op": op, "wr_id": seed, "sg": sgl{sge(l.req.buf, 0, size)}, "rkey": l.resp.buf.RKey,
		"addr": l.resp.buf.Addr}
	var imm *uint32
	if op == "SEND_IMM" || op == "WRITE_IMM" {
		v := uint32(0xc0ffee00 + seed)
		imm, wr["imm"] = &v, v
	}
	consumes := op == "SEND" || op == "SEND_IMM" || op == "WRITE_IMM"
	if consumes {
		if err := l.resp.postRecv(l.recvTarget(), seed, sge(l.resp.buf, 0, size+at)); err != nil {
			return err
		}
	}
	err := l.deliverMessage(op, seed, size, wr, imm, consumes)
	if err != nil {
		return err
	}
	if err := to.checkBuffer(to.buf, at, size, seed); err != nil {
		return err
	}
	return to.checkZeros(to.buf, at+size, guard)
}

// deliverMessage posts the work request and waits for both completions. If the service may lose messages and lost this
// message, deliverMessage posts the request again.
func (l *link) deliverMessage(op string, seed, size int, wr methodArgs, imm *uint32, consumes bool) error {
	for try := 1; ; try++ {
		if err := l.postSend(wr); err != nil {
			return err
		}
		if _, err := l.req.awaitCompletion(op, l.req.qp.SendCQ, seed, "SUCCESS"); err != nil {
			return err
		}
		wait := completionTimeout
		if l.service != "RC" {
			wait = lossy
		}
		if !consumes {
			if l.service == "RC" {
				return nil
			}
			err := l.resp.awaitData(l.resp.buf, size, seed, wait) // for UC, only the memory shows the arrival
			if err == nil || try == repeats {
				return err
			}
			l.logRepeat(op)
			continue
		}
		got, err := l.resp.pollCompletions(l.resp.qp.RecvCQ, 1, wait)
		switch {
		case err != nil:
			return err
		case len(got) == 0 && (l.service == "RC" || try == repeats):
			return fmt.Errorf("%s: receive: got no completion, want one", l.resp.name)
		case len(got) == 0:
			l.logRepeat(op)
			continue
		case got[0].Status != "SUCCESS" || got[0].ID != seed:
			return fmt.Errorf("%s: receive: got %s and wr_id %d, want SUCCESS and %d", l.resp.name, got[0].Status,
				got[0].ID, seed)
		}
		want := "RECV"
		if op == "WRITE_IMM" {
			want = "RECV_RDMA_WITH_IMM"
		}
		return l.wantWC(got[0], want, size, imm)
	}
}

// awaitData waits until the buffer holds the data of the seed.
func (p *peer) awaitData(m mr, size, seed int, timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		err := p.checkBuffer(m, 0, size, seed)
		if err == nil || p.dead != nil || time.Now().After(deadline) {
			return err
		}
	}
}

// testInline tests that the device copies inline data at the post, so that the buffer may change at once.
func testInline(l *link) error {
	at := l.grhHeadroom()
	if err := l.req.fillBuffer(l.req.buf, 0, 64, 7); err != nil {
		return err
	}
	if err := l.resp.postRecv(l.recvTarget(), 1, sge(l.resp.buf, 0, 64+at)); err != nil {
		return err
	}
	if err := l.deliverMessage("SEND", 1, 64, methodArgs{"op": "SEND", "wr_id": 1, "flags": []string{"SIGNALED", "INLINE"},
		"sg": sgl{sge(l.req.buf, 0, 64)}}, nil, true); err != nil {
		return err
	}
	return l.resp.checkBuffer(l.resp.buf, at, 64, 7)
}

// testScatteredBuffers sends from four ranges and receives into four other ranges.
func testScatteredBuffers(l *link) error {
	at := l.grhHeadroom()
	const size = 900
	if err := l.req.fillBuffer(l.req.buf, 0, size, 8); err != nil {
		return err
	}
	b := l.resp.buf
	if err := l.resp.postRecv(l.recvTarget(), 1, sge(b, 0, at+100), sge(b, 5000, 1), sge(b, 2000, 599),
		sge(b, 8000, 4096)); err != nil {
		return err
	}
	a := l.req.buf
	if err := l.deliverMessage("SEND", 1, size, methodArgs{"op": "SEND", "wr_id": 1,
		"sg": sgl{sge(a, 0, 1), sge(a, 1, 511), sge(a, 512, 88), sge(a, 600, 300)}}, nil, true); err != nil {
		return err
	}
	var want, got []byte
	for _, s := range []struct {
		e      *linkEnd
		off, n int
		to     *[]byte
	}{{l.req, 0, size, &want}, {l.resp, at, 100, &got}, {l.resp, 5000, 1, &got}, {l.resp, 2000, 599, &got}, {l.resp, 8000,
		200, &got}} {
		part, err := s.e.readBuffer(s.e.buf, s.off, s.n)
		if err != nil {
			return err
		}
		*s.to = append(*s.to, part...)
	}
	if !bytes.Equal(want, got) {
		return errors.New("gathered data: got other bytes, want the sent bytes")
	}
	return nil
}

// readBuffer returns a part of a buffer.
func (p *peer) readBuffer(m mr, off, n int) ([]byte, error) {
	var s string
	if err := p.callMethod(&s, "read", methodArgs{"mr": m.ID, "off": off, "len": n}); err != nil {
		return nil, err
	}
	return hex.DecodeString(s)
}

// testManyOutstandingMessages posts fifty messages at once, of which only the last is signalled. All messages must
// arrive in order.
func testManyOutstandingMessages(l *link) error {
	const n, size = 50, 3000
	for i := range n {
		if err := l.req.fillBuffer(l.req.buf, i*size, size, 100+i); err != nil {
			return err
		}
		if err := l.resp.postRecv(l.recvTarget(), i, sge(l.resp.buf, i*size, size)); err != nil {
			return err
		}
	}
	for i := range n {
		flags := []string{}
		if i == n-1 {
			flags = []string{"SIGNALED"}
		}
		if err := l.postSend(methodArgs{"op": "SEND", "wr_id": i, "flags": flags,
			"sg": sgl{sge(l.req.buf, i*size, size)}}); err != nil {
			return err
		}
	}
	if _, err := l.req.awaitCompletion("last SEND", l.req.qp.SendCQ, n-1, "SUCCESS"); err != nil {
		return err
	}
	got, err := l.resp.pollCompletions(l.resp.qp.RecvCQ, n, completionTimeout)
	if err != nil {
		return err
	}
	if len(got) != n {
		return fmt.Errorf("%s: got %d completions of receives, want %d", l.resp.name, len(got), n)
	}
	for i, c := range got {
		if c.Status != "SUCCESS" || c.ID != i || c.Len != size {
			return fmt.Errorf("%s: receive %d: got %+v, want success", l.resp.name, i, c)
		}
		if err := l.resp.checkBuffer(l.resp.buf, i*size, size, 100+i); err != nil {
			return err
		}
	}
	return nil
}

// testFencedRequests tests that a fenced SEND sends the data fetched by earlier READs.
func testFencedRequests(l *link) error {
	const n, size = 8, 5000
	if err := l.resp.fillBuffer(l.resp.buf, 0, n*size, 9); err != nil {
		return err
	}
	if err := l.resp.postRecv(l.recvTarget(), 99, sge(l.resp.buf, n*size, n*size)); err != nil {
		return err
	}
	for i := range n {
		if err := l.postSend(methodArgs{"op": "READ", "wr_id": i, "sg": sgl{sge(l.req.buf, i*size, size)},
			"rkey": l.resp.buf.RKey,
			"addr": l.resp.buf.Addr + uint64(i*size)}); err != nil {
			return err
		}
	}
	if err := l.postSend(methodArgs{"op": "SEND", "wr_id": n, "flags": []string{"SIGNALED", "FENCE"},
		"sg": sgl{sge(l.req.buf, 0, n*size)}}); err != nil {
		return err
	}
	got, err := l.req.pollCompletions(l.req.qp.SendCQ, n+1, completionTimeout)
	if err != nil {
		return err
	}
	for i, c := range got {
		if c.Status != "SUCCESS" || c.ID != i {
			return fmt.Errorf("%s: completion %d: got %+v, want success", l.req.name, i, c)
		}
	}
	if len(got) != n+1 {
		return fmt.Errorf("%s: got %d completions, want %d", l.req.name, len(got), n+1)
	}
	if _, err := l.resp.awaitCompletion("receive", l.resp.qp.RecvCQ, 99, "SUCCESS"); err != nil {
		return err
	}
	return l.resp.checkBuffer(l.resp.buf, n*size, n*size, 9)
}

// runAtomic runs one atomic operation and returns the fetched value.
func (l *link) runAtomic(op string, a methodArgs) (uint64, error) {
	a["op"], a["wr_id"], a["sg"] = op, 5, sgl{sge(l.req.buf, 8, 8)}
	a["rkey"], a["addr"] = l.resp.buf.RKey, l.resp.buf.Addr+64
	if err := l.postSend(a); err != nil {
		return 0, err
	}
	c, err := l.req.awaitCompletion(op, l.req.qp.SendCQ, 5, "SUCCESS")
	if err != nil {
		return 0, err
	}
	if want := map[string]string{"CMP_SWAP": "COMP_SWAP", "FETCH_ADD": "FETCH_ADD"}[op]; c.Op != want {
		return 0, fmt.Errorf("%s: got opcode %s, want %s", l.req.name, c.Op, want)
	}
	return l.req.readUint64(l.req.buf, 8)
}

func testCompareSwap(l *link) error {
	const old, other, swap = 0x0123456789abcdef, 0x1111111111111111, 0xfedcba9876543210
	for _, c := range []struct{ was, compare, want uint64 }{{old, old, swap}, {old, other, old}} {
		if err := l.resp.writeUint64(l.resp.buf, 64, c.was); err != nil {
			return err
		}
		got, err := l.runAtomic("CMP_SWAP", methodArgs{"compare_add": c.compare, "swap": uint64(swap)})
		if err != nil {
			return err
		}
		if got != c.was {
			return fmt.Errorf("%s: got %#x, want %#x", l.req.name, got, c.was)
		}
		if err := l.resp.expectUint64("the value", l.resp.buf, 64, c.want); err != nil {
			return err
		}
	}
	return nil
}

func testFetchAdd(l *link) error {
	value := uint64(0xffffffffffffff00) // wraps around
	if err := l.resp.writeUint64(l.resp.buf, 64, value); err != nil {
		return err
	}
	for range 5 {
		got, err := l.runAtomic("FETCH_ADD", methodArgs{"compare_add": uint64(0x101)})
		if err != nil {
			return err
		}
		if got != value {
			return fmt.Errorf("%s: got %#x, want %#x", l.req.name, got, value)
		}
		value += 0x101
	}
	return l.resp.expectUint64("the value", l.resp.buf, 64, value)
}

// testSRQLimit tests that the event arrives once, when the number of receives in the queue falls below the limit.
func testSRQLimit(l *link) error {
	for i := range 6 {
		if err := l.resp.postRecv(l.recvTarget(), i, sge(l.resp.buf, 0, 64)); err != nil {
			return err
		}
	}
	if err := l.resp.callMethod(nil, "srq_limit", methodArgs{"srq": l.resp.srq, "limit": 4}); err != nil {
		return err
	}
	for i := range 5 {
		if err := l.postSend(methodArgs{"op": "SEND", "wr_id": i, "sg": sgl{sge(l.req.buf, 0, 16)}}); err != nil {
			return err
		}
		if _, err := l.req.awaitCompletion("SEND", l.req.qp.SendCQ, i, "SUCCESS"); err != nil {
			return err
		}
		if _, err := l.resp.awaitCompletion("receive", l.resp.qp.RecvCQ, i, "SUCCESS"); err != nil {
			return err
		}
		want := 0
		if i >= 2 { // three receives remain, which is below the limit of four
			want = 1
		}
		events, err := l.resp.waitEvents(want, "SRQ_LIMIT_REACHED")
		if err != nil {
			return err
		}
		if events != want {
			return fmt.Errorf("%s: got %d events SRQ_LIMIT_REACHED with %d receives and a limit of 4, want %d", l.resp.name,
				events, 5-i, want)
		}
	}
	return nil
}

// waitEvents waits for n asynchronous events of a kind and returns their number.
func (p *peer) waitEvents(n int, kind string) (int, error) {
	var all []string
	wait := completionTimeout
	if n == 0 {
		wait = 50 * time.Millisecond
	}
	err := p.callMethod(&all, "events", methodArgs{"n": n, "timeout": wait.Seconds()})
	count := 0
	for _, e := range all {
		if e == kind {
			count++
		}
	}
	return count, err
}

// testGRHBeforeDatagram tests that the receiver of a datagram finds the IP header in the 40 bytes before the data. An
// IPv4 header is in the last 20 of these bytes.
func testGRHBeforeDatagram(l *link) error {
	if err := l.transferMessage("SEND", 500); err != nil {
		return err
	}
	h, err := l.resp.readBuffer(l.resp.buf, 0, grhLen)
	if err != nil {
		return err
	}
	var src, dst []byte
	var hop, tclass byte
	if netip.MustParseAddr(l.req.gid).Is4() {
		src, dst, hop, tclass = h[20+12:20+16], h[20+16:], h[20+8], h[20+1]
	} else {
		src, dst, hop, tclass = h[8:24], h[24:], h[7], h[0]<<4|h[1]>>4
	}
	if s, d := netip.MustParseAddr(l.req.gid).AsSlice(), netip.MustParseAddr(l.resp.gid).AsSlice(); !bytes.Equal(src, s) ||
		!bytes.Equal(dst, d) {
		return fmt.Errorf("%s: GRH: got addresses %x to %x, want %x to %x", l.resp.name, src, dst, s, d)
	}
	want := byte(33)
	if l.req.name == "kernel" {
		want = 64
	}
	if hop != want || tclass != 0x68 {
		return fmt.Errorf("%s: got hop limit %d and traffic class %#x, want %d and 0x68", l.resp.name, hop, tclass, want)
	}
	if l.req.name == "kernel" {
		return &deviationError{"the kernel puts the route's hop limit, 64, in place of the address vector's, 33"}
	}
	return nil
}

// multicastGroups holds multicast groups as IP addresses.
var multicastGroups = map[bool]string{true: "239.77.0.9", false: "ff0e::7709"}

func testMulticast(l *link) error {
	group := multicastGroups[netip.MustParseAddr(l.req.gid).Is4()]
	if err := l.resp.callMethod(nil, "multicast", methodArgs{"qp": l.resp.qp.ID, "gid": group, "join": true}); err != nil {
		return err
	}
	if l.resp.name == "kernel" { // the kernel's rxe does not join the IP group; programs join it through rdma_cm
		if err := l.resp.callMethod(nil, "join", methodArgs{"group": group, "local": l.resp.gid}); err != nil {
			return err
		}
	}
	var h struct{ ID int }
	if err := l.req.callMethod(&h, "ah", methodArgs{"local": l.req.gid, "remote": group}); err != nil {
		return err
	}
	const size = 777
	for i, qpn := range []int{0xffffff, 0xffffff} {
		if err := l.req.fillBuffer(l.req.buf, 0, size, 20+i); err != nil {
			return err
		}
		if err := l.resp.postRecv(l.recvTarget(), i, sge(l.resp.buf, 0, size+grhLen)); err != nil {
			return err
		}
		var got []wc
		for try := 0; len(got) == 0 && try < repeats; try++ {
			if try > 0 {
				l.logRepeat("multicast SEND")
			}
			if _, err := l.req.postSend(l.req.qp, methodArgs{"op": "SEND", "wr_id": i, "sg": sgl{sge(l.req.buf, 0, size)},
				"ah":  h.ID,
				"qpn": qpn, "qkey": qkey}); err != nil {
				return err
			}
			if _, err := l.req.awaitCompletion("SEND", l.req.qp.SendCQ, i, "SUCCESS"); err != nil {
				return err
			}
			var err error
			if got, err = l.resp.pollCompletions(l.resp.qp.RecvCQ, 1, lossy); err != nil {
				return err
			}
		}
		if len(got) == 0 {
			return fmt.Errorf("%s: got no datagram of group %s, want one", l.resp.name, group)
		}
		if err := l.wantWC(got[0], "RECV", size, nil); err != nil {
			return err
		}
		if err := l.resp.checkBuffer(l.resp.buf, grhLen, size, 20+i); err != nil {
			return err
		}
	}
	if err := l.resp.callMethod(nil, "multicast", methodArgs{"qp": l.resp.qp.ID, "gid": group,
		"join": false}); err != nil {
		return err
	}
	if err := l.resp.postRecv(l.recvTarget(), 9, sge(l.resp.buf, 0, size+grhLen)); err != nil {
		return err
	}
	if _, err := l.req.postSend(l.req.qp, methodArgs{"op": "SEND", "wr_id": 9, "sg": sgl{sge(l.req.buf, 0, size)},
		"ah":  h.ID,
		"qpn": 0xffffff, "qkey": qkey}); err != nil {
		return err
	}
	got, err := l.resp.pollCompletions(l.resp.qp.RecvCQ, 1, 300*time.Millisecond)
	if err == nil && len(got) > 0 {
		err = fmt.Errorf("%s: got a datagram after the detach from the group, want none", l.resp.name)
	}
	return err
}

// memoryWindow is a memory window of the responder.
type memoryWindow struct {
	ID   int
	RKey uint32
}

// windowOffset and windowLen are the offset and the length of the windows in the responder's buffer.
const windowOffset, windowLen = 4096, 8192

func (l *link) newWindow(kind int) (w memoryWindow, err error) {
	err = l.resp.callMethod(&w, "mw", methodArgs{"type": kind})
	return w, err
}

// bindType1 binds a window of type 1 with ibv_bind_mw, and returns the new key.
func (l *link) bindType1(w memoryWindow, length int, access ...string) (uint32, error) {
	if access == nil {
		access = []string{}
	}
	var r struct{ RKey uint32 }
	if err := l.resp.callMethod(&r, "bind", methodArgs{"qp": l.resp.qp.ID, "mw": w.ID, "mr": l.resp.buf.ID,
		"off":    windowOffset,
		"length": length,
		"access": access, "wr_id": 30}); err != nil {
		return 0, err
	}
	_, err := l.resp.awaitCompletion("bind", l.resp.qp.SendCQ, 30, "SUCCESS")
	return r.RKey, err
}

// bindType2 binds a window of type 2 with a work request and returns the requested key.
func (l *link) bindType2(w memoryWindow, access ...string) (uint32, error) {
	key, err := l.resp.postSend(l.resp.qp, methodArgs{"op": "BIND_MW", "wr_id": 31, "mw": w.ID, "mr": l.resp.buf.ID,
		"off":    windowOffset,
		"length": windowLen, "access": access})
	if err != nil {
		return 0, err
	}
	_, err = l.resp.awaitCompletion("bind", l.resp.qp.SendCQ, 31, "SUCCESS")
	return key, err
}

// accessWindow reads or writes through a key, and expects one of the given statuses.
func (l *link) accessWindow(op string, key uint32, off, n int, status ...string) error {
	if err := l.postSend(methodArgs{"op": op, "wr_id": 40, "sg": sgl{sge(l.req.buf, 0, n)}, "rkey": key,
		"addr": l.resp.buf.Addr + uint64(off)}); err != nil {
		return err
	}
	what := fmt.Sprintf("%s of %d bytes at %d of a window from %d to %d", op, n, off, windowOffset, windowOffset+windowLen)
	_, err := l.req.awaitCompletion(what, l.req.qp.SendCQ, 40, status...)
	return err
}

// checkWindowUsable writes and reads through a window, and checks the data.
func (l *link) checkWindowUsable(key uint32) error {
	if err := l.req.fillBuffer(l.req.buf, 0, windowLen, 50); err != nil {
		return err
	}
	if err := l.accessWindow("WRITE", key, windowOffset, windowLen, "SUCCESS"); err != nil {
		return err
	}
	if err := l.resp.checkBuffer(l.resp.buf, windowOffset, windowLen, 50); err != nil {
		return err
	}
	if err := l.req.zeroBuffer(l.req.buf, 0, windowLen); err != nil {
		return err
	}
	if err := l.accessWindow("READ", key, windowOffset, windowLen, "SUCCESS"); err != nil {
		return err
	}
	return l.req.checkBuffer(l.req.buf, 0, windowLen, 50)
}

func testWindowType1(l *link) error {
	w, err := l.newWindow(1)
	if err != nil {
		return err
	}
	first, err := l.bindType1(w, windowLen, "REMOTE_WRITE", "REMOTE_READ")
	if err != nil {
		return err
	}
	if err := l.checkWindowUsable(first); err != nil {
		return err
	}
	second, err := l.bindType1(w, windowLen, "REMOTE_READ", "REMOTE_WRITE")
	if err != nil {
		return err
	}
	if first == second {
		return fmt.Errorf("%s: second bind: got the same R_Key %#x, want another one", l.resp.name, first)
	}
	if err := l.checkWindowUsable(second); err != nil {
		return err
	}
	if _, err := l.bindType1(w, 0); err != nil { // length 0 makes the window invalid
		return err
	}
	return l.accessWindow("WRITE", second, windowOffset, 16, "REM_ACCESS_ERR")
}

func testWindowType2(l *link) error {
	w, err := l.newWindow(2)
	if err != nil {
		return err
	}
	key, err := l.bindType2(w, "REMOTE_WRITE", "REMOTE_READ")
	if err != nil {
		return err
	}
	if err := l.checkWindowUsable(key); err != nil {
		return err
	}
	if _, err := l.resp.postSend(l.resp.qp, methodArgs{"op": "LOCAL_INV", "wr_id": 32, "rkey": key}); err != nil {
		return err
	}
	if _, err := l.resp.awaitCompletion("local invalidate", l.resp.qp.SendCQ, 32, "SUCCESS"); err != nil {
		return err
	}
	return l.accessWindow("WRITE", key, windowOffset, 16, "REM_ACCESS_ERR")
}

// testSendInvalidate tests that the receiver's window is invalid after the message has arrived, and that the completion
// names the window.
func testSendInvalidate(l *link) error {
	var note error
	for _, size := range []int{1, 1024, 5000} {
		w, err := l.newWindow(2)
		if err != nil {
			return err
		}
		key, err := l.bindType2(w, "REMOTE_WRITE", "REMOTE_READ")
		if err != nil {
			return err
		}
		if err := l.req.fillBuffer(l.req.buf, 0, size, 60); err != nil {
			return err
		}
		if err := l.resp.postRecv(l.recvTarget(), 1, sge(l.resp.buf, 0, size)); err != nil {
			return err
		}
		if err := l.postSend(methodArgs{"op": "SEND_INV", "wr_id": 2, "sg": sgl{sge(l.req.buf, 0, size)},
			"rkey": key}); err != nil {
			return err
		}
		if _, err := l.req.awaitCompletion("SEND_INV", l.req.qp.SendCQ, 2, "SUCCESS"); err != nil {
			return err
		}
		c, err := l.resp.awaitCompletion("receive", l.resp.qp.RecvCQ, 1, "SUCCESS")
		if err != nil {
			return err
		}
		flag := wcWithInv
		if l.resp.name == "kernel" {
			flag, note = wcIPChecksum,
				&deviationError{"the completion at the kernel's rxe has the flag IBV_WC_IP_CSUM_OK in place of IBV_WC_WITH_INV: " +
					"it gives programs the number that the flag has inside the kernel"}
		}
		if c.Flags&^wcGRH != flag && l.resp.name == "kernel" || c.Flags != flag && l.resp.name != "kernel" || c.Imm != key ||
			c.Len != size {
			return fmt.Errorf("%s: receive: got flags %#x, length %d and invalidated R_Key %#x, want %#x, %d and %#x",
				l.resp.name,
				c.Flags, c.Len, c.Imm, flag, size, key)
		}
		if err := l.resp.checkBuffer(l.resp.buf, 0, size, 60); err != nil {
			return err
		}
		if size == 5000 {
			if err := l.accessWindow("WRITE", key, windowOffset, 16, "REM_ACCESS_ERR"); err != nil {
				return err
			}
		}
	}
	return note
}
