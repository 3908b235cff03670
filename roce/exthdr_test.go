package roce_test

import (
	"bytes"
	"testing"

	"verbena/roce"
)

// The test encodes each header into a buffer of ones, compares the result with the bytes on the wire, and decodes it.
func TestExtendedHeadersEncodeDecode(t *testing.T) {
	buf := func(n int) []byte { return bytes.Repeat([]byte{0xff}, n) }
	check := func(name string, h []byte, wire []byte, decoded bool) {
		t.Helper()
		if !bytes.Equal(h, wire) {
			t.Errorf("%s: got % x, want % x", name, h, wire)
		}
		if !decoded {
			t.Errorf("%s: decoded header: got other values, want the encoded ones", name)
		}
	}

	reth := roce.RETH(buf(roce.RETHLen))
	reth.Encode(0x0102030405060708, 0x11121314, 0x21222324)
	check("RETH", reth, []byte{1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24},
		reth.VA() == 0x0102030405060708 && reth.RKey() == 0x11121314 && reth.DMALen() == 0x21222324)

	aeth := roce.AETH(buf(roce.AETHLen))
	aeth.Encode(roce.NAKRemoteAccessError, 0xff010203)
	check("AETH", aeth, []byte{0x62, 1, 2, 3},
		aeth.Syndrome() == roce.NAKRemoteAccessError && aeth.MSN() == 0x010203)

	imm := roce.ImmDt(buf(roce.ImmDtLen))
	imm.Encode(0x01020304)
	check("ImmDt", imm, []byte{1, 2, 3, 4}, imm.Data() == 0x01020304)

	ieth := roce.IETH(buf(roce.IETHLen))
	ieth.Encode(0x01020304)
	check("IETH", ieth, []byte{1, 2, 3, 4}, ieth.RKey() == 0x01020304)

	deth := roce.DETH(buf(roce.DETHLen))
	deth.Encode(roce.GSIQKey, 0xff000001)
	check("DETH", deth, []byte{0x80, 1, 0, 0, 0, 0, 0, 1}, deth.QKey() == roce.GSIQKey && deth.SrcQPN() == roce.QPNGSI)

	at := roce.AtomicETH(buf(roce.AtomicETHLen))
	at.Encode(0x0102030405060708, 0x11121314, 0x2122232425262728, 0x3132333435363738)
	check("AtomicETH", at, []byte{
		1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14,
		0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,
	}, at.VA() == 0x0102030405060708 && at.RKey() == 0x11121314 &&
		at.SwapAdd() == 0x2122232425262728 && at.Compare() == 0x3132333435363738)

	ack := roce.AtomicAckETH(buf(roce.AtomicAckETHLen))
	ack.Encode(0x0102030405060708)
	check("AtomicAckETH", ack, []byte{1, 2, 3, 4, 5, 6, 7, 8}, ack.Orig() == 0x0102030405060708)

	xrc := roce.XRCETH(buf(roce.XRCETHLen))
	xrc.Encode(0xff010203)
	check("XRCETH", xrc, []byte{0, 1, 2, 3}, xrc.SRQN() == 0x010203)

	feth := roce.FETH(buf(roce.FETHLen))
	feth.Encode(roce.FlushPersistent, roce.FlushMR)
	check("FETH", feth, []byte{0, 0, 0, 0x12}, feth.Type() == roce.FlushPersistent && feth.Level() == roce.FlushMR)
	feth.Encode(roce.FlushGlobal|roce.FlushPersistent, roce.FlushRange)
	check("FETH", feth, []byte{0, 0, 0, 0x03},
		feth.Type() == roce.FlushGlobal|roce.FlushPersistent && feth.Level() == roce.FlushRange)
}
