package rxe

import (
	"bytes"
	"testing"

	"verbena/ib"
	"verbena/roce"
	"verbena/uverbs/abi"
)

// FuzzReceive has packets of any kind arrive at the three kinds of queue pairs, and checks that what may not be
// written is not. The input is a list of packets, each preceded by its length, without the fields that have to be
// right for anything to happen: the number of the queue pair and the P_Key.
func FuzzReceive(f *testing.F) {
	packet := func(op roce.Opcode, psn roce.PSN, n int) []byte {
		b := make([]byte, op.PacketLen(n))
		k := roce.NewPacket(b, &roce.BTHFields{Opcode: op, PSN: psn, AckReq: true, PKey: roce.DefaultPKey}, n)
		return append([]byte{byte(len(b) - roce.ICRCLen)}, k.Data[:len(b)-roce.ICRCLen]...)
	}
	f.Add(byte(0), append(packet(roce.RCSendFirst, 0, 256), packet(roce.RCSendLast, 1, 7)...))
	f.Add(byte(0), append(packet(roce.RCRDMAWriteOnly, 0, 40), packet(roce.RCRDMAReadRequest, 1, 0)...))
	f.Add(byte(0), append(packet(roce.RCAcknowledge, 0, 0), packet(roce.RCRDMAReadResponseOnly, 1, 100)...))
	f.Add(byte(0), append(packet(roce.RCFetchAdd, 0, 0), packet(roce.RCAtomicAcknowledge, 2, 0)...))
	f.Add(byte(1), append(packet(roce.UCSendOnly, 0, 40), packet(roce.UCRDMAWriteFirst, 1, 256)...))
	f.Add(byte(2), append(packet(roce.UDSendOnly, 0, 40), packet(roce.UDSendOnlyWithImmediate, 1, 200)...))
	f.Fuzz(func(t *testing.T, kind byte, in []byte) {
		s := setup{typ: []ib.QPType{ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD}[kind%3], bufLen: 4096}
		b := newBenchIn(t, s)
		defer b.close()
		b.connect(conn{mtu: ib.MTU256})
		// A region that nobody was told the key of, beside the one that is used.
		secret := bytes.Repeat([]byte{0x5a}, 4096)
		addr, err := b.b.mem.Add(secret)
		check(t, err)
		mr, err := b.b.pd.RegMR(b.b.mem, nil, addr, 4096, addr, allAccess, nil)
		check(t, err)
		b.b.recv(1, 0, 300)
		b.b.recv(2, 300, 50)
		if s.typ == ib.QPTypeRC { // something that responses may be to; the packets of it get lost
			b.net.SetLink(addrA, false)
			b.b.send(ib.SendWR{ID: 3, Opcode: ib.WRRDMARead, SGList: b.b.sge(1000, 600), RemoteAddr: b.a.addr, RKey: b.a.mr.RKey()},
				ib.SendWR{ID: 4, Opcode: ib.WRSend, SGList: b.b.sge(0, 10)},
				ib.SendWR{ID: 5, Opcode: ib.WRAtomicFetchAdd, SGList: b.b.sge(2000, 8), RemoteAddr: b.a.addr, RKey: b.a.mr.RKey()})
		}
		var packets [][]byte
		for len(in) > 1 {
			n := min(int(in[0])+1, len(in)-1)
			p := bytes.Clone(in[1 : 1+n])
			in = in[1+n:]
			if len(p) >= roce.BTHLen {
				roce.BTH(p).Encode(&roce.BTHFields{
					Opcode: roce.Opcode(p[0]), PadCount: p[1] >> 4 & 3, SolicitedEvent: p[1]>>7 != 0, PKey: roce.DefaultPKey,
					DestQPN: b.b.qp.Num(), AckReq: p[8]>>7 != 0, PSN: roce.BTH(p).PSN(),
				})
			}
			packets = append(packets, p)
		}
		p := b.b.dev.begin(true)
		p.receive(b.b.dev, addrA, addrB, packets)
		p.end()
		if !bytes.Equal(secret, bytes.Repeat([]byte{0x5a}, 4096)) {
			t.Error("memory was written without its key")
		}
		check(t, mr.Dereg())
	})
}

// FuzzSendRing puts any work request into a send ring.
func FuzzSendRing(f *testing.F) {
	for op := range abi.WROpcode(16) {
		h := abi.RXESendWQE{WR: abi.RXESendWR{Opcode: op}}
		h.DMA.Length, h.DMA.NumSGE = 8, 1
		f.Add(abi.AppendTo(abi.AppendTo(nil, &h), &abi.RXESGE{Addr: 1, Length: 8, LKey: 0x100}))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		b := newBenchIn(t, setup{shortcut: true, bufLen: 4096})
		defer b.close()
		b.connect(conn{})
		b.b.recv(1, 0, 4096)
		qp := b.a.qp.Driver().(*QP)
		slot := make([]byte, abi.RXESendWQESize+int(qp.cap.MaxInlineData))
		copy(slot, in)
		if pushed, _ := qp.sq.push(0, slot); !pushed {
			t.Fatal("send ring is full")
		}
		before := bytes.Clone(b.b.buf)
		qp.Doorbell()
		// It ended, well or not, or it waits for a response.
		if op := abi.WROpcode(slot[12]); op != abi.WRSend && op != abi.WRSendWithImm && slot[13]|slot[14]|slot[15] == 0 {
			if h, _ := abi.Decode[abi.RXESendWQE](slot); h.WR.RDMA().RKey != b.b.mr.RKey() && h.WR.Atomic().RKey != b.b.mr.RKey() && !bytes.Equal(before, b.b.buf) {
				t.Error("the peer's memory was written without its key")
			}
		}
	})
}
