//go:build interop

package interop

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"
)

// peer is one side of the test, which runs peer.py.
type peer struct {
	name string // "kernel" or "Verbena"
	lab  *testbed
	ip   map[string]string // addresses by the keys "IPv4" and "IPv6"
	conn net.Conn
	in   *bufio.Reader
	dead error
}

// acceptPeer waits for a peer to connect while its program runs.
func acceptPeer(ln net.Listener, of *program, timeout time.Duration) (*peer, error) {
	type result struct {
		c   net.Conn
		err error
	}
	got := make(chan result, 1)
	ln.(*net.TCPListener).SetDeadline(time.Now().Add(timeout))
	go func() {
		c, err := ln.Accept()
		got <- result{c, err}
	}()
	select {
	case <-of.done:
		return nil, fmt.Errorf("%s exited before it connected:\n%s", of.name, of.out)
	case r := <-got:
		if r.err != nil {
			return nil, fmt.Errorf("accept the connection of %s: %w\n%s", of.name, r.err, of.out)
		}
		p := &peer{conn: r.c, in: bufio.NewReader(r.c)}
		var hello struct{ Name string }
		line, err := p.in.ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &hello)
		}
		p.name = hello.Name
		return p, err
	}
}

// methodArgs holds the arguments of a method of class Peer.
type methodArgs map[string]any

// callError is the error of a peer's method.
type callError struct {
	peer, method, text string
	errno              syscall.Errno
}

func (e *callError) Error() string {
	if e.errno != 0 {
		return fmt.Sprintf("%s: %s: %v", e.peer, e.method, e.errno)
	}
	return fmt.Sprintf("%s: %s: %s", e.peer, e.method, e.text)
}

func (e *callError) Unwrap() error { return e.errno }

// isUnsupported reports whether the error means that a side does not support a feature.
func isUnsupported(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EPROTONOSUPPORT)
}

// callTimeout limits a call, in addition to the requested wait of the method.
const callTimeout = 2 * time.Minute

// callMethod runs a method and stores its result in out, unless out is nil.
func (p *peer) callMethod(out any, method string, a methodArgs) error {
	if p.dead != nil {
		return p.dead
	}
	if a == nil {
		a = methodArgs{}
	}
	limit := callTimeout
	if t, ok := a["timeout"].(float64); ok {
		limit += time.Duration(t * float64(time.Second))
	}
	a["do"] = method
	req, err := json.Marshal(a)
	if err != nil {
		return err
	}
	p.conn.SetDeadline(time.Now().Add(limit))
	_, err = p.conn.Write(append(req, '\n'))
	var line []byte
	if err == nil {
		line, err = p.in.ReadBytes('\n')
	}
	if err != nil {
		p.dead = fmt.Errorf("%s: lost the connection to the peer during %s: %w", p.name, method, err)
		return p.dead
	}
	var answer struct {
		OK    json.RawMessage
		Error string
		Errno int
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return fmt.Errorf("%s: %s: bad answer %q: %w", p.name, method, line, err)
	}
	if answer.Error != "" {
		return &callError{p.name, method, answer.Error, syscall.Errno(answer.Errno)}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer.OK, out)
}

// peerInfo holds a peer's description of its system and its device.
type peerInfo struct {
	Release string
	Caps    uint64 // device_cap_flags_ex
}

func (p *peer) queryPeerInfo() (h peerInfo, err error) {
	err = p.callMethod(&h, "hello", nil)
	return h, err
}

// mr is a registered buffer.
type mr struct {
	ID         int
	Addr       uint64
	RKey, LKey uint32
	Len        int
}

func (p *peer) regMR(length int, access ...string) (m mr, err error) {
	err = p.callMethod(&m, "mr", methodArgs{"length": length, "access": access})
	return m, err
}

func (p *peer) fillBuffer(m mr, off, n, seed int) error {
	return p.callMethod(nil, "fill", methodArgs{"mr": m.ID, "off": off, "len": n, "seed": seed})
}

func (p *peer) zeroBuffer(m mr, off, n int) error {
	return p.callMethod(nil, "zero", methodArgs{"mr": m.ID, "off": off, "len": n})
}

// checkBuffer compares the buffer with the pattern of fill.
func (p *peer) checkBuffer(m mr, off, n, seed int) error {
	var diff *int
	if err := p.callMethod(&diff, "check", methodArgs{"mr": m.ID, "off": off, "len": n, "seed": seed}); err != nil {
		return err
	}
	if diff != nil {
		return fmt.Errorf("%s: buffer: got a difference in %d bytes at offset %d, want the pattern", p.name, n, *diff)
	}
	return nil
}

// checkZeros checks that zeros are unchanged.
func (p *peer) checkZeros(m mr, off, n int) error {
	var zero bool
	if err := p.callMethod(&zero, "is_zero", methodArgs{"mr": m.ID, "off": off, "len": n}); err != nil {
		return err
	}
	if !zero {
		return fmt.Errorf("%s: bytes %d to %d of the buffer: got a change, want zeros", p.name, off, off+n)
	}
	return nil
}

func (p *peer) writeUint64(m mr, off int, v uint64) error {
	return p.callMethod(nil, "set64", methodArgs{"mr": m.ID, "off": off, "value": v})
}

func (p *peer) readUint64(m mr, off int) (v uint64, err error) {
	err = p.callMethod(&v, "get64", methodArgs{"mr": m.ID, "off": off})
	return v, err
}

// expectUint64 checks a number in a buffer.
func (p *peer) expectUint64(what string, m mr, off int, want uint64) error {
	got, err := p.readUint64(m, off)
	if err == nil && got != want {
		err = fmt.Errorf("%s: %s: got %#x, want %#x", p.name, what, got, want)
	}
	return err
}

// sge returns an element of a scatter/gather list. Key 0 selects the L_Key of the buffer.
func sge(m mr, off, n int, key ...uint32) [4]int {
	k := 0
	if len(key) > 0 {
		k = int(key[0])
	}
	return [4]int{m.ID, off, n, k}
}

type sgl = [][4]int

// qp is a queue pair with its completion queues.
type qp struct {
	ID             int
	QPN            uint32
	SendCQ, RecvCQ int
}

func (q *qp) UnmarshalJSON(b []byte) error {
	var v struct {
		ID     int    `json:"id"`
		QPN    uint32 `json:"qpn"`
		SendCQ int    `json:"send_cq"`
		RecvCQ int    `json:"recv_cq"`
	}
	err := json.Unmarshal(b, &v)
	*q = qp(v)
	return err
}

func (p *peer) queryQPState(q qp) (s string, err error) {
	err = p.callMethod(&s, "state", methodArgs{"qp": q.ID})
	return s, err
}

// wantState waits for a state of a queue pair.
func (p *peer) wantState(q qp, want string) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		s, err := p.queryQPState(q)
		if err != nil || s == want {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: state of the queue pair: got %s, want %s", p.name, s, want)
		}
	}
}

// postRecv posts a receive to a queue pair or a shared receive queue.
func (p *peer) postRecv(to int, id int, sg ...[4]int) error {
	return p.callMethod(nil, "recv", methodArgs{"to": to, "wr_id": id, "sg": sgl(sg)})
}

// postSend posts a send work request. It returns the new key of a memory window.
func (p *peer) postSend(q qp, a methodArgs) (rkey uint32, err error) {
	var r struct{ RKey uint32 }
	a["qp"] = q.ID
	err = p.callMethod(&r, "send", a)
	return r.RKey, err
}

// The following constants are flags of completions (enum ibv_wc_flags).
const (
	wcGRH        = 1 << 0
	wcWithImm    = 1 << 1
	wcIPChecksum = 1 << 2
	wcWithInv    = 1 << 3
)

// wc is a completion.
type wc struct {
	ID         int `json:"wr_id"`
	Status, Op string
	Len        int
	QPN        uint32
	SrcQP      uint32 `json:"src_qp"`
	Flags      int
	Imm        uint32
}

// pollCompletions waits for n completions.
func (p *peer) pollCompletions(cq, n int, timeout time.Duration) (got []wc, err error) {
	err = p.callMethod(&got, "poll", methodArgs{"cq": cq, "n": n, "timeout": timeout.Seconds()})
	return got, err
}

// completionTimeout limits the time of a completion that must arrive, on a slow machine.
const completionTimeout = 30 * time.Second

// awaitCompletion waits for one completion and checks its status.
func (p *peer) awaitCompletion(what string, cq, id int, statuses ...string) (wc, error) {
	got, err := p.pollCompletions(cq, 1, completionTimeout)
	switch {
	case err != nil:
		return wc{}, err
	case len(got) == 0:
		return wc{}, fmt.Errorf("%s: %s: got no completion, want one", p.name, what)
	case !slices.Contains(statuses, got[0].Status):
		return got[0], fmt.Errorf("%s: %s: got status %s, want %s", p.name, what, got[0].Status,
			strings.Join(statuses, " or "))
	case got[0].ID != id:
		return got[0], fmt.Errorf("%s: %s: got wr_id %d, want %d", p.name, what, got[0].ID, id)
	}
	return got[0], nil
}

// runShell runs a shell command on the peer's system.
func (p *peer) runShell(command string) (string, error) {
	var r struct {
		Status int
		Out    string
	}
	if err := p.callMethod(&r, "sh", methodArgs{"command": command}); err != nil {
		return "", err
	}
	if r.Status != 0 {
		return r.Out, fmt.Errorf("%s: %s: exit status %d: %s", p.name, command, r.Status, strings.TrimSpace(r.Out))
	}
	return r.Out, nil
}
