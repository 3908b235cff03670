//go:build interop

package interop

import (
	"fmt"
	"strings"
	"testing"
)

// errorCase is a row of the table of errors: one failing work request, and the expected results on both sides.
type errorCase struct {
	name    string
	service string
	options linkOptions
	// receive is the length of a receive that the responder posts first, or -1 for none.
	receive int
	wr      func(*link) methodArgs
	// prepare, if set, runs before the request.
	prepare func(*link) error
	// requester is the status of the request's completion. responder is the status of the completion of the
	// receive, or "" for none.
	requester, responder string
	// reqState and respState are the states of the queue pairs at the end.
	reqState, respState string
	// event is the event of the responder, or "" for none.
	event string
	// kernel holds the deviations of the kernel for each of its roles.
	kernel map[string]kernelDeviation
}

// kernelDeviation overrides some of a failure's expectations.
type kernelDeviation struct {
	requester, responder, respState string // "" keeps the expectation; "none" means no completion
	why                             string
}

// bufferRequest returns a request that targets the responder's buffer.
func bufferRequest(op string, off, n int) func(*link) methodArgs {
	return func(l *link) methodArgs {
		return methodArgs{"op": op, "sg": sgl{sge(l.req.buf, 0, n)}, "rkey": l.resp.buf.RKey, "addr": l.resp.buf.Addr +
			uint64(off)}
	}
}

// modifyRequest modifies a request.
func modifyRequest(f func(*link) methodArgs, change func(*link, methodArgs)) func(*link) methodArgs {
	return func(l *link) methodArgs {
		a := f(l)
		change(l, a)
		return a
	}
}

func setWrongKey(l *link, a methodArgs) { a["rkey"] = l.resp.buf.RKey ^ 0x5a5a5a00 }

var (
	small     = linkOptions{size: 8192}
	noRights  = linkOptions{size: 8192, access: []string{"LOCAL_WRITE"}}
	noRemote  = linkOptions{size: 8192, qpAccess: []string{"LOCAL_WRITE"}}
	bufferLen = 8192 + guard + grhLen
)

// The following constants are events of a responder (IBA volume 1, 11.6.3.2).
const (
	accessEvent  = "QP_ACCESS_ERR"
	requestEvent = "QP_REQ_ERR"
)

var errorCases = []errorCase{
	{name: "RDMA WRITE, wrong R_Key", service: "RC", options: small, receive: -1,
		wr:        modifyRequest(bufferRequest("WRITE", 0, 100), setWrongKey),
		requester: "REM_ACCESS_ERR", reqState: "ERR", respState: "ERR", event: accessEvent},
	{name: "RDMA WRITE, wrong R_Key, 3 packets", service: "RC", options: small, receive: -1,
		wr:        modifyRequest(bufferRequest("WRITE", 0, 3000), setWrongKey),
		requester: "REM_ACCESS_ERR", reqState: "ERR", respState: "ERR", event: accessEvent},
	{name: "RDMA WRITE with immediate, wrong R_Key", service: "RC", options: small, receive: 64,
		wr:        modifyRequest(bufferRequest("WRITE_IMM", 0, 100), setWrongKey),
		requester: "REM_ACCESS_ERR", responder: "WR_FLUSH_ERR", reqState: "ERR", respState: "ERR", event: accessEvent,
		kernel: map[string]kernelDeviation{"responder": {responder: "REM_ACCESS_ERR",
			why: "the kernel's rxe completes the receive, which the message has not reached, with REM_ACCESS_ERR"}}},
	{name: "RDMA READ, wrong R_Key", service: "RC", options: small, receive: -1,
		wr:        modifyRequest(bufferRequest("READ", 0, 100), setWrongKey),
		requester: "REM_ACCESS_ERR", reqState: "ERR", respState: "ERR", event: accessEvent},
	{name: "compare and swap, wrong R_Key", service: "RC", options: small, receive: -1,
		wr:        modifyRequest(bufferRequest("CMP_SWAP", 0, 8), setWrongKey),
		requester: "REM_ACCESS_ERR", reqState: "ERR", respState: "ERR", event: accessEvent},
	{name: "RDMA WRITE beyond the region", service: "RC", options: small, receive: -1,
		wr:        bufferRequest("WRITE", bufferLen-50, 100),
		requester: "REM_ACCESS_ERR", reqState: "ERR", respState: "ERR", event: accessEvent},
	{name: "RDMA READ beyond the region", service: "RC", options: small, receive: -1,
		wr:        bufferRequest("READ", bufferLen-50, 100),
		requester: "REM_ACCESS_ERR", reqState: "ERR", respState: "ERR", event: accessEvent},
	{name: "RDMA WRITE to a region without the right", service: "RC", options: noRights, receive: -1,
		wr:        bufferRequest("WRITE", 0, 100),
		requester: "REM_ACCESS_ERR", reqState: "ERR", respState: "ERR", event: accessEvent},
	{name: "RDMA READ of a region without the right", service: "RC", options: noRights, receive: -1,
		wr:        bufferRequest("READ", 0, 100),
		requester: "REM_ACCESS_ERR", reqState: "ERR", respState: "ERR", event: accessEvent},
	{name: "fetch and add to a region without the right", service: "RC", options: noRights, receive: -1,
		wr:        bufferRequest("FETCH_ADD", 0, 8),
		requester: "REM_ACCESS_ERR", reqState: "ERR", respState: "ERR", event: accessEvent},
	{name: "RDMA WRITE to a queue pair without the right", service: "RC", options: noRemote, receive: -1,
		wr:        bufferRequest("WRITE", 0, 100),
		requester: "REM_INV_REQ_ERR", reqState: "ERR", respState: "ERR", event: requestEvent},
	{name: "RDMA READ of a queue pair without the right", service: "RC", options: noRemote, receive: -1,
		wr:        bufferRequest("READ", 0, 100),
		requester: "REM_INV_REQ_ERR", reqState: "ERR", respState: "ERR", event: requestEvent},
	{name: "fetch and add to a queue pair without the right", service: "RC", options: noRemote, receive: -1,
		wr:        bufferRequest("FETCH_ADD", 0, 8),
		requester: "REM_INV_REQ_ERR", reqState: "ERR", respState: "ERR", event: requestEvent},
	{name: "SEND longer than the receive", service: "RC", options: small, receive: 100, wr: bufferRequest("SEND", 0, 101),
		requester: "REM_INV_REQ_ERR", responder: "LOC_LEN_ERR", reqState: "ERR", respState: "ERR", kernel: tooLong},
	{name: "SEND longer than the receive, 3 packets", service: "RC", options: small, receive: 1500,
		wr:        bufferRequest("SEND", 0, 3000),
		requester: "REM_INV_REQ_ERR", responder: "LOC_LEN_ERR", reqState: "ERR", respState: "ERR", kernel: tooLong},
	{name: "SEND to a receive with a wrong L_Key", service: "RC", options: small, receive: -1, prepare: postBadReceive,
		wr:        bufferRequest("SEND", 0, 64),
		requester: "REM_OP_ERR", responder: "LOC_PROT_ERR", reqState: "ERR", respState: "ERR",
		kernel: map[string]kernelDeviation{"responder": {responder: "LOC_QP_OP_ERR", why: protectionDeviation}}},
	{name: "SEND with a wrong L_Key", service: "RC", options: small, receive: 100,
		wr: modifyRequest(bufferRequest("SEND", 0, 64), func(l *link, a methodArgs) {
			a["sg"] = sgl{sge(l.req.buf, 0, 64, l.req.buf.LKey^0x5a5a5a00)}
		}),
		requester: "LOC_PROT_ERR", reqState: "ERR", respState: "RTS",
		kernel: map[string]kernelDeviation{"requester": {requester: "LOC_QP_OP_ERR", why: protectionDeviation}}},
	{name: "SEND without a receive, one RNR retry", service: "RC", options: linkOptions{size: 8192, rnrRetry: 1},
		receive: -1, wr: bufferRequest("SEND", 0, 64),
		requester: "RNR_RETRY_EXC_ERR", reqState: "ERR", respState: "RTS"},
	{name: "SEND to a missing queue pair", service: "RC",
		options: linkOptions{size: 8192, timeout: 14, retry: 2}, receive: -1,
		prepare: destroyResponderQP, wr: bufferRequest("SEND", 0, 64), requester: "RETRY_EXC_ERR", reqState: "ERR"},
	{name: "SEND to a queue pair in RESET", service: "RC",
		options: linkOptions{size: 8192, timeout: 14, retry: 2, connected: "requester"},
		receive: -1, wr: bufferRequest("SEND", 0, 64), requester: "RETRY_EXC_ERR", reqState: "ERR", respState: "RESET"},
	{name: "datagram longer than the receive: lost", service: "UD", options: small, receive: grhLen + 99,
		wr:        bufferRequest("SEND", 0, 100),
		requester: "SUCCESS", reqState: "RTS", respState: "RTS", kernel: tooLongUnreliable},
	{name: "datagram with a wrong Q_Key: lost", service: "UD", options: small, receive: grhLen + 100,
		wr:        modifyRequest(bufferRequest("SEND", 0, 100), func(l *link, a methodArgs) { a["wrong_qkey"] = true }),
		requester: "SUCCESS", reqState: "RTS", respState: "RTS"},
	{name: "SEND longer than the receive: lost", service: "UC", options: small, receive: 100, wr: bufferRequest("SEND", 0,
		101),
		requester: "SUCCESS", reqState: "RTS", respState: "RTS", kernel: tooLongUnreliable},
	{name: "RDMA WRITE, wrong R_Key: lost", service: "UC", options: small, receive: -1,
		wr:        modifyRequest(bufferRequest("WRITE", 0, 100), setWrongKey),
		requester: "SUCCESS", reqState: "RTS", respState: "RTS"},
}

// protectionDeviation is the deviation of the kernel's rxe in several rows.
const protectionDeviation = "the kernel's rxe reports a local protection error as LOC_QP_OP_ERR"

var (
	tooLong = map[string]kernelDeviation{"responder": {requester: "REM_OP_ERR", responder: "LOC_QP_OP_ERR",
		why: "the kernel's rxe takes a receive that is too short for its own fault: LOC_QP_OP_ERR, and REM_OP_ERR at the requester"}}
	tooLongUnreliable = map[string]kernelDeviation{"responder": {responder: "LOC_QP_OP_ERR", respState: "ERR",
		why: "the kernel's rxe completes a receive that is too short with LOC_QP_OP_ERR, and its queue pair goes to ERR"}}
)

// postBadReceive posts a receive with unregistered memory.
func postBadReceive(l *link) error {
	return l.resp.postRecv(l.recvTarget(), 1, sge(l.resp.buf, 0, 100, l.resp.buf.LKey^0x5a5a5a00))
}

// destroyResponderQP destroys the responder's queue pair.
func destroyResponderQP(l *link) error {
	return l.resp.callMethod(nil, "close", methodArgs{"ids": []int{l.resp.qp.ID}})
}

// testErrors tests that failures have the specified results on both sides.
func testErrors(t *testing.T) {
	for _, f := range errorCases {
		for _, ip := range ipNames {
			for _, r := range roles {
				runCell(t, reportCell{Section: "errors", Operation: f.name, Service: f.service, Role: r.String(), IP: ip},
					func() error {
						l, err := newLink(r, f.service, ip, f.options)
						if err != nil {
							return err
						}
						return f.run(l)
					})
			}
		}
	}
	for _, service := range rc {
		for _, ip := range ipNames {
			for _, r := range roles {
				runCell(t, reportCell{Section: "errors", Operation: "SEND before its receive (RNR, then delivered)",
					Service: service,
					Role:    r.String(), IP: ip},
					func() error { return testLateReceive(r, service, ip) })
			}
		}
	}
}

// run posts the request and a second request after it, and compares the results.
func (f *errorCase) run(l *link) error {
	expect, notes := f.withDeviations(l)
	if f.prepare != nil {
		if err := f.prepare(l); err != nil {
			return err
		}
	}
	if f.receive >= 0 {
		if err := l.resp.postRecv(l.recvTarget(), 1, sge(l.resp.buf, 0, f.receive)); err != nil {
			return err
		}
	}
	wr := l.withDestination(f.wr(l))
	wr["wr_id"] = 1
	if wr["wrong_qkey"] != nil {
		delete(wr, "wrong_qkey")
		wr["qkey"] = qkey + 1
	}
	if _, err := l.req.postSend(l.req.qp, wr); err != nil {
		return err
	}
	if _, err := l.req.awaitCompletion("request", l.req.qp.SendCQ, 1, expect.requester); err != nil {
		return err
	}
	if expect.responder != "" {
		if _, err := l.resp.awaitCompletion("receive", l.resp.qp.RecvCQ, 1, expect.responder); err != nil {
			return err
		}
	} else if f.receive >= 0 {
		if got, err := l.resp.pollCompletions(l.resp.qp.RecvCQ, 1, lossy/10); err != nil || len(got) > 0 {
			return fmt.Errorf("%s: got a completion of the receive, want none: %v %v", l.resp.name, got, err)
		}
	}
	if expect.reqState == "ERR" { // requests posted now are flushed
		if _, err := l.req.postSend(l.req.qp, methodArgs{"op": "SEND", "wr_id": 2, "sg": sgl{sge(l.req.buf, 0,
			8)}}); err != nil {
			return err
		}
		if _, err := l.req.awaitCompletion("request after the error", l.req.qp.SendCQ, 2, "WR_FLUSH_ERR"); err != nil {
			return err
		}
	}
	if err := l.req.wantState(l.req.qp, expect.reqState); err != nil {
		return err
	}
	if expect.respState != "" {
		if err := l.resp.wantState(l.resp.qp, expect.respState); err != nil {
			return err
		}
	}
	if f.event != "" {
		n, err := l.resp.waitEvents(boolInt(expect.event != ""), f.event)
		if err != nil {
			return err
		}
		if n != boolInt(expect.event != "") {
			return fmt.Errorf("%s: got %d events %s, want %d", l.resp.name, n, f.event, boolInt(expect.event != ""))
		}
	}
	if len(notes) > 0 {
		return &deviationError{strings.Join(notes, "; ")}
	}
	return nil
}

// withDeviations returns the failure with the deviations of the kernel applied, and their texts.
func (f *errorCase) withDeviations(l *link) (errorCase, []string) {
	e := *f
	var notes []string
	for _, p := range []struct {
		name string
		who  *linkEnd
	}{{"requester", l.req}, {"responder", l.resp}} {
		d, ok := f.kernel[p.name]
		if !ok || p.who.name != "kernel" {
			continue
		}
		notes = append(notes, d.why)
		overrideString(&e.requester, d.requester)
		overrideString(&e.responder, d.responder)
		overrideString(&e.respState, d.respState)
	}
	if e.event != "" && l.resp.name == "kernel" {
		e.event = ""
		notes = append(notes, "the kernel's rxe raises no asynchronous event")
	}
	return e, notes
}

func overrideString(s *string, to string) {
	switch to {
	case "":
	case "none":
		*s = ""
	default:
		*s = to
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// testLateReceive posts the receive after the responder has refused the request, and checks that the retry is
// delivered.
func testLateReceive(r role, service, ip string) error {
	l, err := newLink(r, service, ip, linkOptions{size: 8192})
	if err != nil {
		return err
	}
	const size = 3000
	if err := l.req.fillBuffer(l.req.buf, 0, size, 3); err != nil {
		return err
	}
	for i := range 5 {
		if err := l.resp.zeroBuffer(l.resp.buf, 0, size); err != nil {
			return err
		}
		if err := l.postSend(methodArgs{"op": "SEND", "wr_id": i, "sg": sgl{sge(l.req.buf, 0, size)}}); err != nil {
			return err
		}
		if got, err := l.req.pollCompletions(l.req.qp.SendCQ, 1, lossy/50); err != nil || len(got) > 0 {
			return fmt.Errorf("%s: SEND before the receive: got a completion %v and error %v, want none", l.req.name, got, err)
		}
		if err := l.resp.postRecv(l.recvTarget(), i, sge(l.resp.buf, 0, size)); err != nil {
			return err
		}
		if _, err := l.req.awaitCompletion("SEND", l.req.qp.SendCQ, i, "SUCCESS"); err != nil {
			return err
		}
		if _, err := l.resp.awaitCompletion("receive", l.resp.qp.RecvCQ, i, "SUCCESS"); err != nil {
			return err
		}
		if err := l.resp.checkBuffer(l.resp.buf, 0, size, 3); err != nil {
			return err
		}
	}
	return nil
}
