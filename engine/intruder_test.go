package engine

import (
	"bytes"
	"testing"

	"verbena/ib"
)

// TestIntruder: a queue pair that names a connection of others as its own peer reaches nothing of it, whether packets
// take the shortcut or travel.
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
				t.Error("what was stopped is not counted where it would have arrived")
			}
			// The connection has not lost its place.
			b.a.send(ib.SendWR{ID: 2, Opcode: ib.WRSend, SGList: b.a.sge(200, 60), Flags: ib.SendSignaled})
			b.a.expect(ib.WC{ID: 2, Opcode: ib.WCSend})
			b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: 60})
		}
	})
}
