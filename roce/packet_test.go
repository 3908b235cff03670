package roce_test

import (
	"bytes"
	"errors"
	"testing"

	"verbena/roce"
)

func TestNewAndParsePacket(t *testing.T) {
	for op := range opcodeTable() {
		for n := range 10 {
			if n > 0 && !op.Has(roce.FlagPayload) {
				continue
			}
			buf := bytes.Repeat([]byte{0xee}, 100)
			f := roce.BTHFields{Opcode: op, PadCount: 3, PKey: 0xffff, DestQPN: 5, PSN: 6}
			p := roce.NewPacket(buf, &f, n)
			payload := []byte("abcdefghij")[:n]
			if copy(p.Payload, payload) != n || len(p.Payload) != n || cap(p.Payload) != n {
				t.Fatalf("%v: got a payload of %d bytes, want %d", op, len(p.Payload), n)
			}
			if len(p.Data) != op.PacketLen(n) || len(p.Data)%4 != 0 || buf[len(p.Data)] != 0xee {
				t.Errorf("%v with %d bytes of payload: got a packet of %d bytes, want PacketLen", op, n, len(p.Data))
			}
			pad := p.Data[op.HeaderLen()+n : len(p.Data)-roce.ICRCLen]
			if len(pad) != roce.PadCount(n) || p.BTH().PadCount() != len(pad) || len(bytes.Trim(pad, "\x00")) != 0 {
				t.Errorf("%v with %d bytes of payload: got padding % x and pad count %d, want zeros and equal counts",
					op, n, pad, p.BTH().PadCount())
			}
			got, err := roce.ParsePacket(p.Data)
			if err != nil {
				t.Errorf("%v, %d bytes: %v", op, n, err)
				continue
			}
			if got.Opcode != op || got.Flags != op.Flags() || !bytes.Equal(got.Payload, payload) ||
				got.BTH().DestQPN() != 5 || got.BTH().PSN() != 6 || cap(got.Payload) != n {
				t.Errorf("%v, %d bytes: parsed %+v", op, n, got)
			}
		}
	}
}

func TestParsePacketDropReasons(t *testing.T) {
	pkt := func(op roce.Opcode, pad, size int) []byte {
		b := make([]byte, size)
		roce.BTH(b).Encode(&roce.BTHFields{Opcode: op, PadCount: uint8(pad)})
		return b
	}
	version := pkt(roce.RCSendOnly, 0, 16)
	version[1] |= 1
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"nothing", nil, roce.DropTooShort},
		{"BTH without ICRC", pkt(roce.RCSendOnly, 0, 15), roce.DropTooShort},
		{"least packet", pkt(roce.RCSendOnly, 0, 16), nil},
		{"version 1", version, roce.DropVersion},
		{"RD SEND First", pkt(0x40, 0, 64), roce.DropOpcode},
		{"reserved opcode of RC", pkt(0x15, 0, 64), roce.DropOpcode},
		{"UC RDMA READ", pkt(0x2c, 0, 64), roce.DropOpcode},
		{"Acknowledge without AETH", pkt(roce.RCAcknowledge, 0, 16), roce.DropHeaders},
		{"Acknowledge", pkt(roce.RCAcknowledge, 0, 20), nil},
		{"Acknowledge with payload", pkt(roce.RCAcknowledge, 0, 24), roce.DropPayload},
		{"FetchAdd cut short", pkt(roce.RCFetchAdd, 0, 40), roce.DropHeaders},
		{"FetchAdd", pkt(roce.RCFetchAdd, 0, 44), nil},
		{"UD without DETH", pkt(roce.UDSendOnly, 0, 20), roce.DropHeaders},
		{"WRITE with Immediate without ImmDt", pkt(roce.RCRDMAWriteOnlyWithImmediate, 0, 32), roce.DropHeaders},
		{"length not a multiple of 4", pkt(roce.RCSendOnly, 0, 17), roce.DropUnaligned},
		{"padding without payload", pkt(roce.RCSendOnly, 1, 16), roce.DropPad},
		{"padding of an Acknowledge", pkt(roce.RCAcknowledge, 3, 20), roce.DropPad},
		{"one byte and padding", pkt(roce.RCSendOnly, 3, 20), nil},
		{"CNP", pkt(roce.CNP, 0, 32), nil},
		{"CNP cut short", pkt(roce.CNP, 0, 28), roce.DropHeaders},
	} {
		p, err := roce.ParsePacket(c.b)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err != nil && p.Data != nil {
			t.Errorf("%s: dropped, and yet %+v", c.name, p)
		}
	}
}

func TestDropReasonsAreNamed(t *testing.T) {
	seen := map[string]bool{}
	for r := range roce.NumDropReasons {
		s := roce.DropReason(r).Error()
		if s == roce.DropReason(roce.NumDropReasons).Error() || seen[s] {
			t.Errorf("reason %d is %q", r, s)
		}
		seen[s] = true
	}
}

func TestNewPacketPanics(t *testing.T) {
	for _, c := range []struct {
		name string
		size int
		op   roce.Opcode
		n    int
	}{
		{"short buffer", 19, roce.RCSendOnly, 1},
		{"unknown opcode", 64, 0x15, 0},
		{"Acknowledge with payload", 64, roce.RCAcknowledge, 1},
		{"negative payload", 64, roce.RCSendOnly, -1},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", c.name)
				}
			}()
			roce.NewPacket(make([]byte, c.size), &roce.BTHFields{Opcode: c.op}, c.n)
		}()
	}
}

func FuzzParsePacket(f *testing.F) {
	for _, ip := range rxeFrames(f) {
		if ip[0]>>4 == 4 && len(ip) < 200 {
			f.Add(ip[28:])
		}
	}
	f.Add([]byte{})
	f.Add(make([]byte, 16))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := roce.ParsePacket(b)
		if err != nil {
			var r roce.DropReason
			if !errors.As(err, &r) || int(r) >= roce.NumDropReasons || r == roce.DropICRC {
				t.Fatalf("dropped for %v", err)
			}
			return
		}
		if !p.Opcode.Known() || p.Flags != p.Opcode.Flags() || p.BTH().TVer() != 0 {
			t.Fatalf("accepted %+v", p)
		}
		if p.Opcode.PacketLen(len(p.Payload)) != len(b) {
			t.Fatalf("PacketLen of %v with %d bytes of payload: got %d, want %d", p.Opcode, len(p.Payload),
				p.Opcode.PacketLen(len(p.Payload)), len(b))
		}
		// Every header must lie within the packet, and must exist if its flag is set.
		for _, h := range []struct {
			flag roce.Flags
			view []byte
			n    int
		}{
			{roce.FlagXRCETH, p.XRCETH(), roce.XRCETHLen}, {roce.FlagDETH, p.DETH(), roce.DETHLen},
			{roce.FlagFETH, p.FETH(), roce.FETHLen}, {roce.FlagRETH, p.RETH(), roce.RETHLen},
			{roce.FlagAtomicETH, p.AtomicETH(), roce.AtomicETHLen}, {roce.FlagAETH, p.AETH(), roce.AETHLen},
			{roce.FlagAtomicAckETH, p.AtomicAckETH(), roce.AtomicAckETHLen},
			{roce.FlagImmDt, p.ImmDt(), roce.ImmDtLen}, {roce.FlagIETH, p.IETH(), roce.IETHLen},
		} {
			want := 0
			if p.Flags&h.flag != 0 {
				want = h.n
			}
			if len(h.view) != want {
				t.Fatalf("%v: got a header of %d bytes, want %d", p.Opcode, len(h.view), want)
			}
		}
		p.ICRC()
	})
}
