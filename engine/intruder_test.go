package engine

import (
	"bytes"
	"testing"

	"verbena/ib"
)

// TestIntruder tests that a queue pair that names another connection's queue pair as its peer reaches nothing of the
// connection, over the shortcut and over the network.
func TestIntruder(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		for _, typ := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC} {
			s.typ = typ
			b := newBench(t, s)
			b.connect(conn{})
			intruder := b.a.newQP(setup{typ: typ, cap: userCap, sigAll: true})
			defer func() { check(t, intruder.Destroy()) }()
			toRTR(t, intruder, b.b.dev, b.b.qp.Num(), conn{})
			toRTS(t, intruder, conn{timeout: 1, retry: 1})
			before := bytes.Clone(b.b.buf)
			b.b.recv(1, 0, 100)
			fill(b.a.buf, 7)
			if _, err := intruder.PostSend(
				ib.SendWR{ID: 9, Opcode: ib.WRSend, SGList: b.a.sge(0, 50)},
				ib.SendWR{ID: 9, Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 50), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()},
			); err != nil {
				t.Fatal(err)
			}
			b.a.poll(2)
			b.b.none()
			if !bytes.Equal(b.b.buf, before) {
				t.Error("the intruder has written")
			}
			if n := b.b.dev.Stats()["drop_wrong_source"]; n == 0 {
				t.Error("drop_wrong_source: got 0, want some")
			}
			// The connection still works.
			b.a.send(ib.SendWR{ID: 2, Opcode: ib.WRSend, SGList: b.a.sge(200, 60), Flags: ib.SendSignaled})
			b.a.expect(ib.WC{ID: 2, Opcode: ib.WCSend})
			b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: 60})
		}
	})
}
