package roce_test

import (
	"testing"

	"verbena/roce"
)

// TestFieldsMatchScapyVectors compares the fields of the packets in scapy's test/contrib/roce.uts with the values in
// that file. TestICRCOfKnownFrames checks the ICRCs of these packets. An exception is a CNP from an article, because
// according to scapy its ICRC is wrong.
func TestFieldsMatchScapyVectors(t *testing.T) {
	frames := scapyFrames(t)
	// The article's CNP goes from 22.22.22.8 to 22.22.22.7 with identification 0x98c6, source port 56238 and queue pair
	// 0xd2. The CNP has no ICRC.
	article := decodeHex(t, "4589003c 98c64000 20110000 16161608 16161607 dbae12b7 00280000"+
		"8100ffff 400000d2 00000000 00000000 00000000 00000000 00000000 00000000")
	for _, c := range []struct {
		name       string
		ip         []byte
		op         roce.Opcode
		qpn        uint32
		psn        roce.PSN
		migReq     bool
		becn       bool
		pad        int
		payload    int
		port       uint16
		tos, ttl   byte
		ident      uint16
		checkSize  int
		sealedICRC bool
	}{
		{name: "UC SEND Only", ip: frames[0], op: roce.UCSendOnly, qpn: 211, psn: 13571856, migReq: true, pad: 2, payload: 18,
			port: 49152, tos: 1, ttl: 64, ident: 1144, checkSize: 64, sealedICRC: true},
		{name: "CNP of a ConnectX-4 Lx", ip: frames[1], op: roce.CNP, qpn: 0x118, becn: true,
			port: 0, tos: 0xc2, ttl: 64, ident: 0x718c, checkSize: 60, sealedICRC: true},
		{name: "CNP of an article", ip: article, op: roce.CNP, qpn: 0xd2, becn: true,
			port: 56238, tos: 0x89, ttl: 32, ident: 0x98c6, checkSize: 60},
	} {
		flow, ident, pkt := splitIPPacket(c.ip)
		p, err := roce.ParsePacket(pkt)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		h := p.BTH()
		if p.Opcode != c.op || h.DestQPN() != c.qpn || h.PSN() != c.psn || h.MigReq() != c.migReq || h.BECN() != c.becn ||
			h.FECN() ||
			h.PadCount() != c.pad || h.PKey() != roce.DefaultPKey || h.AckReq() || h.SolicitedEvent() || h.TVer() != 0 {
			t.Errorf("%s: got %v, queue pair %d, PSN %d, MigReq %t, BECN %t, FECN %t, pad %d, P_Key %#x, AckReq %t, "+
				"solicited %t, version %d, want the published values", c.name,
				p.Opcode, h.DestQPN(), h.PSN(), h.MigReq(), h.BECN(), h.FECN(), h.PadCount(), h.PKey(), h.AckReq(),
				h.SolicitedEvent(), h.TVer())
		}
		if len(p.Payload) != c.payload || len(c.ip) != c.checkSize || c.ip[1] != c.tos || c.ip[8] != c.ttl ||
			ident != c.ident ||
			uint16(c.ip[20])<<8|uint16(c.ip[21]) != c.port {
			t.Errorf("%s: got %d bytes of payload in %d, ToS %#x, TTL %d, identification %#x, want the published values",
				c.name, len(p.Payload), len(c.ip),
				c.ip[1], c.ip[8], ident)
		}
		if right := flow.ICRC(ident, pkt) == p.ICRC(); right != c.sealedICRC {
			t.Errorf("%s: ICRC valid: got %t, want the opposite", c.name, right)
		}
	}
}
