package roce_test

import (
	"strings"
	"testing"

	"verbena/roce"
)

// rcOperations is table 38 of the specification for RC. Each row contains the name of an operation, its extended
// headers in order, and its properties. "payload" and "imm" represent the properties that follow from a payload and
// from immediate data.
var rcOperations = []struct {
	op      uint8
	name    string
	headers string
	props   string
}{
	{0x00, "SEND First", "", "request first send takes payload"},
	{0x01, "SEND Middle", "", "request middle send payload"},
	{0x02, "SEND Last", "", "request last send completes payload"},
	{0x03, "SEND Last with Immediate", "ImmDt", "request last send completes payload"},
	{0x04, "SEND Only", "", "request only send takes completes payload"},
	{0x05, "SEND Only with Immediate", "ImmDt", "request only send takes completes payload"},
	{0x06, "RDMA WRITE First", "RETH", "request first write payload"},
	{0x07, "RDMA WRITE Middle", "", "request middle write payload"},
	{0x08, "RDMA WRITE Last", "", "request last write payload"},
	{0x09, "RDMA WRITE Last with Immediate", "ImmDt", "request last write takes completes payload"},
	{0x0a, "RDMA WRITE Only", "RETH", "request only write payload"},
	{0x0b, "RDMA WRITE Only with Immediate", "RETH ImmDt", "request only write takes completes payload"},
	{0x0c, "RDMA READ Request", "RETH", "request only read"},
	{0x0d, "RDMA READ response First", "AETH", "response first readresponse payload"},
	{0x0e, "RDMA READ response Middle", "", "response middle readresponse payload"},
	{0x0f, "RDMA READ response Last", "AETH", "response last readresponse payload"},
	{0x10, "RDMA READ response Only", "AETH", "response only readresponse payload"},
	{0x11, "Acknowledge", "AETH", "response only ack"},
	{0x12, "ATOMIC Acknowledge", "AETH AtomicAckETH", "response only atomicack"},
	{0x13, "CmpSwap", "AtomicETH", "request only atomic"},
	{0x14, "FetchAdd", "AtomicETH", "request only atomic"},
	{0x16, "SEND Last with Invalidate", "IETH", "request last send completes payload"},
	{0x17, "SEND Only with Invalidate", "IETH", "request only send takes completes payload"},
	{0x1c, "FLUSH", "FETH RETH", "request only flush"},
	{0x1d, "ATOMIC WRITE", "RETH", "request only atomicwrite payload"},
}

var headerLens = map[string]int{
	"XRCETH": 4, "DETH": 8, "SRDETH": 8, "FETH": 4, "RETH": 16, "AtomicETH": 28, "AETH": 4, "AtomicAckETH": 8,
	"ImmDt": 4, "IETH": 4,
}

var flagNames = map[string]roce.Flags{
	"request": roce.FlagRequest, "response": roce.FlagResponse,
	"first": roce.FlagFirst, "middle": roce.FlagMiddle, "last": roce.FlagLast, "only": roce.FlagOnly,
	"send": roce.FlagSend, "write": roce.FlagWrite, "read": roce.FlagRead, "atomic": roce.FlagAtomic,
	"atomicwrite": roce.FlagAtomicWrite, "flush": roce.FlagFlush, "readresponse": roce.FlagReadResponse,
	"ack": roce.FlagAck, "atomicack": roce.FlagAtomicAck,
	"takes": roce.FlagStartsReceive, "completes": roce.FlagCompletesReceive, "payload": roce.FlagPayload,
	"flow": roce.FlagFlow, "SRDETH": roce.FlagSRDETH,
	"XRCETH": roce.FlagXRCETH, "DETH": roce.FlagDETH, "FETH": roce.FlagFETH, "RETH": roce.FlagRETH,
	"AtomicETH": roce.FlagAtomicETH, "AETH": roce.FlagAETH, "AtomicAckETH": roce.FlagAtomicAckETH,
	"ImmDt": roce.FlagImmDt, "IETH": roce.FlagIETH,
}

type opcodeRow struct {
	name, headers, props string
}

// srdOpcodes are the opcodes of SRD. Each has a DETH and an SRDETH.
var srdOpcodes = map[roce.Opcode]opcodeRow{
	0xc4: {"SEND Only", "", "request only send takes completes payload"},
	0xc5: {"SEND Only with Immediate", "ImmDt", "request only send takes completes payload"},
	0xca: {"RDMA WRITE Only", "RETH", "request only write payload"},
	0xcb: {"RDMA WRITE Only with Immediate", "RETH ImmDt", "request only write takes completes payload"},
	0xcc: {"RDMA READ Request", "RETH", "request only read"},
	0xd0: {"RDMA READ response Only", "", "response only readresponse payload"},
	0xd1: {"Acknowledge", "", "response only ack payload"},
	0xd8: {"Flow Open", "", "request only flow"},
	0xd9: {"Flow Accept", "", "response only flow"},
	0xda: {"Flow Refuse", "", "response only flow"},
	0xdb: {"Flow Skip", "", "request only flow"},
}

// opcodeTable returns a row for each opcode.
func opcodeTable() map[roce.Opcode]opcodeRow {
	t := map[roce.Opcode]opcodeRow{
		0x64: {"UD SEND Only", "DETH", "request only send takes completes payload"},
		0x65: {"UD SEND Only with Immediate", "DETH ImmDt", "request only send takes completes payload"},
		0x81: {"CNP", "", ""},
	}
	for op, r := range srdOpcodes {
		t[op] = opcodeRow{"SRD " + r.name, "DETH SRDETH " + r.headers, r.props}
	}
	for _, o := range rcOperations {
		t[roce.Opcode(o.op)] = opcodeRow{"RC " + o.name, o.headers, o.props}
		if o.op <= 0x0b {
			t[roce.Opcode(0x20+o.op)] = opcodeRow{"UC " + o.name, o.headers, o.props}
		}
		headers := o.headers
		if strings.Contains(o.props, "request") {
			headers = "XRCETH " + headers
		}
		t[roce.Opcode(0xa0+o.op)] = opcodeRow{"XRC " + o.name, headers, o.props}
	}
	return t
}

func TestOpcodesMatchSpecification(t *testing.T) {
	table := opcodeTable()
	if len(table) != 25+12+2+1+25+11 {
		t.Fatalf("opcodes in the table of the test: got %d, want 76", len(table))
	}
	for i := range 256 {
		op := roce.Opcode(i)
		row, known := table[op]
		if op.Known() != known {
			t.Errorf("%v: known %t", op, op.Known())
			continue
		}
		if op.Service().Opcode(op.Operation()) != op {
			t.Errorf("%v is not %v with %#x", op, op.Service(), op.Operation())
		}
		if !known {
			if op.Flags() != 0 || op.HeaderLen() != 0 {
				t.Errorf("%v: flags %#x, header length %d", op, op.Flags(), op.HeaderLen())
			}
			continue
		}
		if op.String() != row.name {
			t.Errorf("%#02x is %q, want %q", i, op, row.name)
		}
		if service, _, _ := strings.Cut(row.name, " "); op != roce.CNP && op.Service().String() != service {
			t.Errorf("%v: service %v", op, op.Service())
		}
		n := 12
		var flags roce.Flags
		for _, h := range strings.Fields(row.headers) {
			n += headerLens[h]
			flags |= flagNames[h]
		}
		if op == roce.CNP {
			n += 16
		}
		for _, p := range strings.Fields(row.props) {
			flags |= flagNames[p]
		}
		if op.HeaderLen() != n || op.Flags() != flags {
			t.Errorf("%v: got header length %d and flags %#x, want %d and %#x", op, op.HeaderLen(), op.Flags(), n, flags)
		}
	}
	if got := roce.Opcode(0x15).String(); got != "opcode 0x15" {
		t.Errorf("unknown opcode is %q", got)
	}
}

// The views of a packet must have the offsets of the headers.
func TestHeaderOffsets(t *testing.T) {
	for op, row := range opcodeTable() {
		buf := make([]byte, op.PacketLen(0))
		p := roce.NewPacket(buf, &roce.BTHFields{Opcode: op}, 0)
		for i := range buf {
			buf[i] = byte(i)
		}
		views := map[string][]byte{
			"XRCETH": p.XRCETH(), "DETH": p.DETH(), "SRDETH": p.SRDETH(), "FETH": p.FETH(), "RETH": p.RETH(),
			"AtomicETH": p.AtomicETH(),
			"AETH":      p.AETH(), "AtomicAckETH": p.AtomicAckETH(), "ImmDt": p.ImmDt(), "IETH": p.IETH(),
		}
		off := 12
		for _, h := range strings.Fields(row.headers) {
			v := views[h]
			if len(v) != headerLens[h] || cap(v) != len(v) || int(v[0]) != off {
				t.Errorf("%v: %s: got offset %d, %d bytes and capacity %d, want offset %d and %d bytes",
					op, h, v[0], len(v), cap(v), off, headerLens[h])
			}
			off += len(v)
			delete(views, h)
		}
		for h, v := range views {
			if v != nil {
				t.Errorf("%v has a %s", op, h)
			}
		}
	}
}

func TestOpcodeHas(t *testing.T) {
	if !roce.RCSendOnly.Has(roce.FlagStarts) || !roce.RCSendOnly.Has(roce.FlagEnds) ||
		!roce.RCSendFirst.Has(roce.FlagStarts) || roce.RCSendFirst.Has(roce.FlagEnds) ||
		roce.RCSendMiddle.Has(roce.FlagStarts|roce.FlagEnds) || !roce.XRCSendLast.Has(roce.FlagEnds) {
		t.Error("position in the message: got the wrong flags, want those of the opcode")
	}
	if roce.XRC.Opcode(roce.FetchAdd) != roce.XRCFetchAdd || roce.UD.Opcode(roce.SendOnly) != roce.UDSendOnly {
		t.Error("Service.Opcode: got a wrong opcode, want XRCFetchAdd and UDSendOnly")
	}
	if got := roce.Service(2).String(); got != "service 2" {
		t.Errorf("RD is %q", got)
	}
}
