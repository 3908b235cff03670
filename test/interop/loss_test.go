//go:build interop

package interop

import (
	"fmt"
	"strings"
	"testing"
)

// packetDisturbance is a disturbance of packets. It consists of a fault rule for the packets of Verbena, and a netem
// rule for the packets of the kernel.
type packetDisturbance struct {
	name  string
	rule  []string // flags of `verbena fault add`
	netem string
}

var packetDisturbances = []packetDisturbance{
	{"2 % lost", []string{"--drop", "2%"}, "loss 2%"},
	{"5 % doubled", []string{"--duplicate", "5%"}, "duplicate 5%"},
	{"5 % reordered", []string{"--reorder", "5%"}, "delay 2ms reorder 95%"},
	{"2 % damaged", []string{"--corrupt", "2%"}, "corrupt 2%"},
	{"1 % lost, 1 % doubled, 1 % reordered", []string{"--drop", "1%", "--duplicate", "1%", "--reorder", "1%"},
		"delay 1ms loss 1% duplicate 1% reorder 99%"},
}

// apply disturbs the packets of one side, and returns a function that ends the disturbance.
func (d packetDisturbance) apply(by *peer) (undo func() error, err error) {
	if by.name == "Verbena" {
		l := by.lab
		undo = func() error {
			_, err := l.runCommand(l.verbena, "fault", "clear", "--dev", "rxe0")
			return err
		}
		_, err = l.runCommand(append([]string{l.verbena, "fault", "add", "--dev", "rxe0"}, d.rule...)...)
		return undo, err
	}
	d.netem = "netem limit 100000 " + d.netem
	return d.applyTC(by)
}

// applyTC applies the queueing discipline d.netem to the kernel's packets.
func (d packetDisturbance) applyTC(by *peer) (undo func() error, err error) {
	// The rule selects only RoCEv2, because it must not disturb the connection to the peers.
	undo = func() error {
		_, err := by.runShell("tc qdisc del dev eth0 root")
		return err
	}
	steps := []string{
		"tc qdisc add dev eth0 root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
		"tc qdisc add dev eth0 parent 1:2 handle 2: " + d.netem,
		"tc filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:2",
		"tc filter add dev eth0 parent 1: protocol ipv6 prio 2 u32 match ip6 protocol 17 0xff match ip6 dport 4791 0xffff flowid 1:2",
	}
	_, err = by.runShell(strings.Join(steps, " && "))
	return undo, err
}

// testLoss tests that RC delivers all messages once and in order, and that the messages delivered by UC and UD are
// correct.
func testLoss(t *testing.T) {
	for _, by := range []*peer{verbenaPeer, kernelPeer} {
		for _, d := range packetDisturbances {
			undo, err := d.apply(by)
			if err != nil {
				t.Errorf("disturb the packets of %s: got %v, want success", by.name, err)
				continue
			}
			for _, service := range allServices {
				for _, r := range roles {
					if service != "RC" && r.req() != by {
						continue // only requests are relevant
					}
					for _, ip := range reportedIPVersions("loss", by.name, d.name, service, r.String()) {
						c := reportCell{Section: "loss", Operation: fmt.Sprintf("packets from %s, %s", by.name, d.name), Service: service,
							Role: r.String(), IP: ip}
						runCell(t, c, func() error {
							l, err := newLink(r, service, ip, linkOptions{timeout: 14})
							if err != nil {
								return err
							}
							if service == "RC" {
								return l.transferReliably()
							}
							return l.transferUnreliably()
						})
					}
				}
			}
			if err := undo(); err != nil {
				t.Errorf("stop the disturbance of the packets of %s: got %v, want success", by.name, err)
			}
		}
	}
}

// transferReliably transfers 64 KB messages of each operation. It also adds to a counter, to check that each atomic
// operation ran once.
func (l *link) transferReliably() error {
	const size = 65536
	for _, op := range []string{"SEND", "WRITE", "READ", "WRITE_IMM"} {
		for range 3 {
			if err := l.transferMessage(op, size); err != nil {
				return fmt.Errorf("%s: %w", op, err)
			}
		}
	}
	if err := l.resp.writeUint64(l.resp.buf, 64, 0); err != nil {
		return err
	}
	for i := range uint64(20) {
		got, err := l.runAtomic("FETCH_ADD", methodArgs{"compare_add": uint64(1)})
		if err != nil {
			return err
		}
		if got != i {
			return fmt.Errorf("%s: fetch and add number %d: got %d, want %d", l.req.name, i, got, i)
		}
	}
	if err := l.resp.expectUint64("the counter", l.resp.buf, 64, 20); err != nil {
		return err
	}
	return testManyOutstandingMessages(l)
}

// transferUnreliably sends numbered messages. Each message that arrives must be complete, must equal a sent message,
// and must be in order.
func (l *link) transferUnreliably() error {
	const n = 40
	size, at := 3000, l.grhHeadroom()
	if l.service == "UD" {
		size = 1000
	}
	for i := range n {
		if err := l.req.fillBuffer(l.req.buf, i*size, size, 200+i); err != nil {
			return err
		}
		if err := l.resp.postRecv(l.recvTarget(), i, sge(l.resp.buf, i*(size+at), size+at)); err != nil {
			return err
		}
	}
	for i := range n {
		if err := l.postSend(methodArgs{"op": "SEND_IMM", "wr_id": i, "imm": i, "sg": sgl{sge(l.req.buf, i*size,
			size)}}); err != nil {
			return err
		}
	}
	sent, err := l.req.pollCompletions(l.req.qp.SendCQ, n, completionTimeout)
	if err != nil {
		return err
	}
	if len(sent) != n {
		return fmt.Errorf("%s: got %d completions, want %d", l.req.name, len(sent), n)
	}
	got, err := l.resp.pollCompletions(l.resp.qp.RecvCQ, n, lossy/6)
	if err != nil {
		return err
	}
	last := -1
	for i, c := range got {
		number := int(ntohl(c.Imm))
		if c.Status != "SUCCESS" || c.ID != i || c.Len != size+at || number < 0 || number >= n {
			return fmt.Errorf("%s: receive %d: got %+v, want a complete message", l.resp.name, i, c)
		}
		if l.service == "UC" && number <= last {
			return fmt.Errorf("%s: got message %d after message %d, want messages in order", l.resp.name, number, last)
		}
		last = number
		if err := l.resp.checkBuffer(l.resp.buf, i*(size+at)+at, size, 200+number); err != nil {
			return fmt.Errorf("message %d: %w", number, err)
		}
	}
	if len(got) < n/4 {
		return fmt.Errorf("%s: got %d of %d messages, want at least a quarter", l.resp.name, len(got), n)
	}
	return nil
}
