package roce_test

import (
	"bytes"
	"testing"

	"verbena/roce"
)

func TestBTHEncodeDecode(t *testing.T) {
	for _, c := range []struct {
		f    roce.BTHFields
		wire []byte
	}{
		{
			roce.BTHFields{Opcode: roce.RCSendOnly, PKey: 0xffff, DestQPN: 0x11, AckReq: true, PSN: 0x123456},
			[]byte{0x04, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x80, 0x12, 0x34, 0x56},
		},
		{ // scapy's UC packet
			roce.BTHFields{Opcode: roce.UCSendOnly, MigReq: true, PadCount: 2, PKey: 0xffff, DestQPN: 211, PSN: 13571856},
			[]byte{0x24, 0x60, 0xff, 0xff, 0x00, 0x00, 0x00, 0xd3, 0x00, 0xcf, 0x17, 0x10},
		},
		{
			roce.BTHFields{Opcode: roce.CNP, PKey: 0x8001, BECN: true, DestQPN: 0xd2},
			[]byte{0x81, 0x00, 0x80, 0x01, 0x40, 0x00, 0x00, 0xd2, 0x00, 0x00, 0x00, 0x00},
		},
		{
			roce.BTHFields{Opcode: roce.UDSendOnly, SolicitedEvent: true, PadCount: 3, FECN: true, DestQPN: 0xffffff,
				PSN: 0xffffff},
			[]byte{0x64, 0xb0, 0x00, 0x00, 0x80, 0xff, 0xff, 0xff, 0x00, 0xff, 0xff, 0xff},
		},
	} {
		b := roce.BTH(bytes.Repeat([]byte{0xa5}, roce.BTHLen)) // Encode must overwrite
		b.Encode(&c.f)
		if !bytes.Equal(b, c.wire) {
			t.Errorf("%+v\n got % x\nwant % x", c.f, []byte(b), c.wire)
		}
		got := roce.BTHFields{
			Opcode: b.Opcode(), SolicitedEvent: b.SolicitedEvent(), MigReq: b.MigReq(), PadCount: uint8(b.PadCount()),
			PKey: b.PKey(), FECN: b.FECN(), BECN: b.BECN(), DestQPN: b.DestQPN(), AckReq: b.AckReq(), PSN: b.PSN(),
		}
		if got != c.f || b.TVer() != 0 {
			t.Errorf("decoded %+v version %d, want %+v", got, b.TVer(), c.f)
		}
	}
}

// A value that is too wide for its field must not change other fields.
func TestBTHEncodeMasks(t *testing.T) {
	b := make(roce.BTH, roce.BTHLen)
	b.Encode(&roce.BTHFields{PadCount: 0xff, DestQPN: 0xff000001, PSN: 0xff000002})
	want := []byte{0, 0x30, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2}
	if !bytes.Equal(b, want) {
		t.Errorf("got % x, want % x", []byte(b), want)
	}
}

func TestBTHSetters(t *testing.T) {
	for _, fill := range []byte{0x00, 0xff} {
		for _, c := range []struct {
			name string
			set  func(roce.BTH)
			mask []byte // bits that the setter may change
			want []byte // their values
		}{
			{"SetPadCount", func(b roce.BTH) { b.SetPadCount(2) }, []byte{1: 0x30, 11: 0}, []byte{1: 0x20, 11: 0}},
			{"SetSolicitedEvent", roce.BTH.SetSolicitedEvent, []byte{1: 0x80, 11: 0}, []byte{1: 0x80, 11: 0}},
			{"SetPSN", func(b roce.BTH) { b.SetPSN(0x5a1234) }, []byte{9: 0xff, 10: 0xff, 11: 0xff},
				[]byte{9: 0x5a, 10: 0x12, 11: 0x34}},
		} {
			b := roce.BTH(bytes.Repeat([]byte{fill}, roce.BTHLen))
			c.set(b)
			for i := range b {
				if want := fill&^c.mask[i] | c.want[i]; b[i] != want {
					t.Errorf("%s on %#02x: byte %d: got %#02x, want %#02x", c.name, fill, i, b[i], want)
				}
			}
		}
	}
}
