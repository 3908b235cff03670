package msg

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

var allAttributes = []Attribute{
	AttrREQ, AttrMRA, AttrREJ, AttrREP, AttrRTU, AttrDREQ, AttrDREP, AttrSIDRREQ, AttrSIDRREP, AttrLAP, AttrAPR,
}

// TestFieldsDoNotOverlap checks that the fields of a message lie within the message and do not overlap.
func TestFieldsDoNotOverlap(t *testing.T) {
	for _, a := range allAttributes {
		var used [(Len - headerLen) * 8]bool
		c := &codec{b: make([]byte, Len-headerLen), visit: func(bit, width int) {
			for i := range width {
				if bit+i >= len(used) || used[bit+i] {
					t.Fatalf("%v: got bit %d of byte %d, want an unused one of the message", a, bit%8, bit/8)
				}
				used[bit+i] = true
			}
		}}
		newMessage(a).visitFields(c)
		n := 0
		for _, u := range used {
			if u {
				n++
			}
		}
		t.Logf("%v: %d of %d bits", a, n, len(used))
	}
}

// TestPlaces checks the offsets of fields against the specification, in bytes after the header of 24 (IBA tables 106 to
// 120).
func TestPlaces(t *testing.T) {
	gid := GID{0xfe, 0x80, 15: 1}
	for _, c := range []struct {
		m    Message
		at   int
		want string
	}{
		{&REQ{LocalCommID: 0x01020304}, 0, "01020304"},
		{&REQ{ServiceID: MakeServiceID(PortSpaceTCP, 7471)}, 8, "0000000001061d2f"},
		{&REQ{LocalCAGUID: 0x0102030405060708}, 16, "0102030405060708"},
		{&REQ{LocalQPN: 0x123456, ResponderResources: 0xab}, 32, "123456ab"},
		{&REQ{InitiatorDepth: 0xcd}, 39, "cd"},
		{&REQ{RemoteTimeout: 20, Transport: TransportUC, FlowControl: true}, 43, "a3"},
		{&REQ{StartingPSN: 0xabcdef, LocalTimeout: 18, RetryCount: 7}, 44, "abcdef97"},
		{&REQ{PKey: 0xffff, PathMTU: 5, RDCExists: true, RNRRetryCount: 6, MaxCMRetries: 15, SRQ: true, Extended: 1}, 48,
			"ffff5ef9"},
		{&REQ{Primary: Path{LocalLID: 0xffff, RemoteLID: 0xfffe, LocalGID: gid}}, 52,
			"fffffffefe800000000000000000000000000001"},
		{&REQ{Primary: Path{FlowLabel: 0xabcde, PacketRate: 0x3f, TrafficClass: 1, HopLimit: 64, SL: 5, SubnetLocal: true,
			ACKTimeout: 17}},
			88, "abcde03f014058" + "88"},
		{&REQ{Alternate: Path{LocalLID: 0x1234}}, 96, "1234"},
		{&REQ{Data: []byte("data")}, 140, "64617461"},
		{&MRA{LocalCommID: 1, RemoteCommID: 2, Of: OfREP, ServiceTimeout: 24}, 0, "00000001" + "00000002" + "40" + "c0"},
		{&REJ{LocalCommID: 1, RemoteCommID: 2, Of: OfOther, InfoLength: 8, Reason: ReasonConsumer}, 0, "0000000100000002" +
			"8010001c"},
		{&REJ{Data: []byte("no")}, 84, "6e6f"},
		{&REP{LocalCommID: 1, RemoteCommID: 2, LocalQPN: 0x010203, StartingPSN: 0x040506}, 0,
			"0000000100000002" + "00000000" + "01020300" + "00000000" + "04050600"},
		{&REP{ResponderResources: 1, InitiatorDepth: 2, TargetACKDelay: 15, Failover: 1, FlowControl: true, RNRRetryCount: 7,
			SRQ: true}, 24,
			"01027bf0"},
		{&REP{LocalCAGUID: 9, Data: []byte{1}}, 28, "0000000000000009" + "01"},
		{&RTU{LocalCommID: 1, RemoteCommID: 2, Data: []byte{3}}, 0, "0000000100000002" + "03"},
		{&DREQ{RemoteQPN: 0x123456, Data: []byte{3}}, 8, "12345600" + "03"},
		{&DREP{LocalCommID: 1, RemoteCommID: 2, Data: []byte{3}}, 0, "0000000100000002" + "03"},
		{&SIDRREQ{RequestID: 5, PKey: 0xffff, ServiceID: MakeServiceID(PortSpaceUDP, 7471), Data: []byte{1}}, 0,
			"00000005" + "ffff0000" + "0000000001111d2f" + "01"},
		{&SIDRREP{RequestID: 5, Status: SIDRRejected, InfoLength: 1, QPN: 0x123456, ServiceID: 7, QKey: 0x01234567}, 0,
			"00000005" + "02010000" + "12345600" + "0000000000000007" + "01234567"},
		{&SIDRREP{Data: []byte{1}}, 96, "01"},
	} {
		b := Append(nil, 0, c.m)[headerLen:]
		want, err := hex.DecodeString(c.want)
		if err != nil {
			t.Fatal(err)
		}
		if got := b[c.at:][:len(want)]; !bytes.Equal(got, want) {
			t.Errorf("%+v: bytes from %d on: got %x, want %x", c.m, c.at, got, want)
		}
	}
	h := Append(nil, 0x0102030405060708, &DREP{})[:headerLen]
	if got := hex.EncodeToString(h); got != "01070203"+"00000000"+"0102030405060708"+"0016"+"0000"+"00000000" {
		t.Errorf("header: got %s, want the constants and the transaction ID", got)
	}
}

// TestParsedMessageEncodesSame checks that a parsed message is encoded to the same bytes, except for reserved bits.
func TestParsedMessageEncodesSame(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, a := range allAttributes {
		for range 200 {
			b := Append(nil, r.Uint64(), newMessage(a))
			for i := headerLen; i < Len; i++ {
				b[i] = byte(r.Uint32())
			}
			tid, m, err := Parse(b)
			if err != nil {
				t.Fatal(a, err)
			}
			_, n, err := Parse(Append(nil, tid, m))
			if err != nil || !reflect.DeepEqual(m, n) {
				t.Fatalf("%v: sent %+v, got %+v and error %v, want the same message", a, m, n, err)
			}
		}
	}
}

func TestParseRefusesInvalidMessages(t *testing.T) {
	good := Append(nil, 1, &RTU{})
	for _, c := range []struct {
		what string
		b    []byte
		want error
	}{
		{"short", good[:255], errLength},
		{"long", append(bytes.Clone(good), 0), errLength},
		{"empty", nil, errLength},
		{"base version", withByte(good, 0, 2), errClass},
		{"class", withByte(good, 1, 3), errClass},
		{"class version", withByte(good, 2, 1), errClass},
		{"method", withByte(good, 3, 1), errMethod},
		{"status", withByte(good, 5, 1), errStatus},
		{"attribute", withByte(good, 17, 0x1b), errAttribute},
	} {
		if _, _, err := Parse(c.b); !errors.Is(err, c.want) {
			t.Errorf("Parse of %s: got %v, want %v", c.what, err, c.want)
		}
	}
}

func withByte(b []byte, at int, v byte) []byte {
	b = bytes.Clone(b)
	b[at] = v
	return b
}

// TestAppendPanicsOnLargeValues checks that Append panics on values that exceed their fields.
func TestAppendPanicsOnLargeValues(t *testing.T) {
	for what, m := range map[string]Message{
		"24 bits": &REQ{LocalQPN: 1 << 24}, "3 bits": &REQ{RetryCount: 8}, "5 bits": &REP{TargetACKDelay: 32},
		"data": &REQ{Data: make([]byte, 93)},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: got no panic, want a panic", what)
				}
			}()
			Append(nil, 0, m)
		}()
	}
}

func TestIPHeaderRoundTrip(t *testing.T) {
	for _, h := range []IPHeader{
		{SrcPort: 0x1234, Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2")},
		{SrcPort: 1, Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fe80::2")},
	} {
		b := AppendIPHeader(nil, h)
		got, err := ParseIPHeader(b)
		if err != nil || got != h || len(b) != IPHeaderLen {
			t.Errorf("IP header %+v: got %+v and error %v after a round trip", h, got, err)
		}
	}
	b := AppendIPHeader(nil, IPHeader{SrcPort: 0x1234, Src: netip.MustParseAddr("10.0.0.1"),
		Dst: netip.MustParseAddr("10.0.0.2")})
	if got, want := hex.EncodeToString(b), "00401234"+strings.Repeat("0", 24)+"0a000001"+strings.Repeat("0",
		24)+"0a000002"; got != want {
		t.Errorf("bytes of the IP header: got %s, want %s", got, want)
	}
	if _, err := ParseIPHeader(b[:35]); !errors.Is(err, errIPHeader) {
		t.Error(err)
	}
	for _, bad := range [][]byte{withByte(b, 0, 1), withByte(b, 1, 0x50)} {
		if _, err := ParseIPHeader(bad); !errors.Is(err, errIPVersion) {
			t.Error(err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, a := range allAttributes {
		f.Add(Append(nil, 1, newMessage(a)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		tid, m, err := Parse(b)
		if err != nil {
			return
		}
		tid2, n, err := Parse(Append(nil, tid, m))
		if err != nil || tid2 != tid || !reflect.DeepEqual(m, n) {
			t.Errorf("sent %+v, got %+v and error %v, want the same message", m, n, err)
		}
		if r, ok := m.(*REQ); ok {
			if h, err := ParseIPHeader(r.Data); err == nil && h.Src.Is4() != h.Dst.Is4() {
				t.Errorf("addresses: got %+v, want one family", h)
			}
		}
	})
}
