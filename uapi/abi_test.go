package uapi

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"verbena/uapi/internal/layout"
)

func TestDecode(t *testing.T) {
	// The bytes are a struct ib_uverbs_alloc_mw and one additional byte.
	b := binary.NativeEndian.AppendUint64(nil, 0x1122334455667788)
	b = binary.NativeEndian.AppendUint32(b, 7)
	b = append(b, 2, 0, 0, 0, 0xff)
	want := AllocMW{Response: 0x1122334455667788, PDHandle: 7, MWType: MWType2}

	for n := range len(b) + 1 {
		got, ok := Decode[AllocMW](b[:n])
		if wantOK := n >= 16; ok != wantOK {
			t.Errorf("Decode of %d bytes: got ok %t, want %t", n, ok, wantOK)
		}
		if ok && got != want || !ok && got != (AllocMW{}) {
			t.Errorf("Decode of %d bytes = %+v", n, got)
		}
	}

	got, _ := Decode[AllocMW](b)
	clear(b)
	if got != want {
		t.Error("result of Decode after a change of its input: got a changed value, want a copy")
	}
}

func TestDecodePrefix(t *testing.T) {
	full := ExCreateCQ{UserHandle: 1, CQE: 2, CompVector: 3, CompChannel: -1, CompMask: 5, Flags: 6, Reserved: 7}
	b := AppendTo(nil, &full)
	for _, test := range []struct {
		name   string
		in     []byte
		want   ExCreateCQ
		excess bool
	}{
		{"nothing", nil, ExCreateCQ{}, false},
		{"part of a member", b[:4], ExCreateCQ{UserHandle: 1}, false},
		{"older version", b[:16], ExCreateCQ{UserHandle: 1, CQE: 2, CompVector: 3}, false},
		{"this version", b, full, false},
		{"newer version, nothing new used", append(slices.Clone(b), 0, 0, 0, 0), full, false},
		{"newer version, something new used", append(slices.Clone(b), 0, 0, 0, 1), full, true},
	} {
		got, excess := DecodePrefix[ExCreateCQ](test.in)
		if got != test.want || excess != test.excess {
			t.Errorf("%s: got %+v, %t; want %+v, %t", test.name, got, excess, test.want, test.excess)
		}
	}
}

func TestEncode(t *testing.T) {
	v := RegMRResp{MRHandle: 1, LKey: 2, RKey: 3}
	var want []byte
	for _, n := range []uint32{1, 2, 3} {
		want = binary.NativeEndian.AppendUint32(want, n)
	}
	for _, room := range []int{0, 5, 12, 20} {
		dst := bytes.Repeat([]byte{0xee}, room)
		n := Encode(dst, &v)
		if n != min(room, 12) || !bytes.Equal(dst[:n], want[:n]) {
			t.Errorf("Encode to %d bytes: got %d bytes written: % x, want at most 12", room, n, dst)
		}
		if rest := dst[n:]; len(bytes.Trim(rest, "\xee")) > 0 {
			t.Errorf("Encode to %d bytes: got a write after byte %d: % x, want none", room, n, dst)
		}
	}
	if got := AppendTo([]byte{9}, &v); !bytes.Equal(got, append([]byte{9}, want...)) {
		t.Errorf("AppendTo = % x", got)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(bytes.Repeat([]byte{1}, SizeOf[ExCreateQP]()-1))
	f.Add(bytes.Repeat([]byte{2}, SizeOf[ExCreateQP]()))
	f.Add(append(make([]byte, SizeOf[ExCreateQP]()), 0, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		size := SizeOf[ExCreateQP]()
		p, excess := DecodePrefix[ExCreateQP](b)
		padded := append(slices.Clone(b), make([]byte, size)...)[:size]
		if !bytes.Equal(AppendTo(nil, &p), padded) {
			t.Errorf("DecodePrefix(% x) = %+v", b, p)
		}
		if want := len(bytes.Trim(b[min(size, len(b)):], "\x00")) > 0; excess != want {
			t.Errorf("DecodePrefix(% x): excess = %t", b, excess)
		}
		v, ok := Decode[ExCreateQP](b)
		if ok != (len(b) >= size) || ok && v != p {
			t.Errorf("Decode(% x) = %+v, %t", b, v, ok)
		}
	})
}

func TestCodecDoesNotAllocate(t *testing.T) {
	buf := make([]byte, 256)
	wqe := RXESendWQE{}
	if n := testing.AllocsPerRun(100, func() {
		wqe.WR.Opcode = WRSend
		Encode(buf, &wqe)
		wqe, _ = Decode[RXESendWQE](buf)
	}); n != 0 {
		t.Errorf("allocations: got %v, want none", n)
	}
}

func TestByteOrder(t *testing.T) {
	if b := NewBE16(0x0102); b != (BE16{1, 2}) || b.Uint16() != 0x0102 {
		t.Errorf("BE16 = %v", b)
	}
	if b := NewBE32(0x01020304); b != (BE32{1, 2, 3, 4}) || b.Uint32() != 0x01020304 {
		t.Errorf("BE32 = %v", b)
	}
	if b := NewBE64(0x0102030405060708); b != (BE64{1, 2, 3, 4, 5, 6, 7, 8}) || b.Uint64() != 0x0102030405060708 {
		t.Errorf("BE64 = %v", b)
	}
	// Immediate data must keep its byte order on the wire. A key is a number in host byte order.
	if b := ImmData(NewBE32(0xa)).Imm(); b.Uint32() != 0xa {
		t.Errorf("immediate data = %#x", b.Uint32())
	}
	x := NewImmRKey(0x12345678)
	if x.InvalidateRKey() != 0x12345678 || binary.NativeEndian.Uint32(x[:]) != 0x12345678 {
		t.Errorf("R_Key = %#x", x.InvalidateRKey())
	}
}

// TestUnionVariantOffsets checks that each variant starts at the offset of its union. TestStructs checks the sizes.
func TestUnionVariantOffsets(t *testing.T) {
	const ones = 0x1111_1111_1111_1111
	var w SendWR
	var x RXESendWR
	for _, test := range []struct {
		name  string
		put   func()
		union []uint64
	}{
		{"SendWR.RDMA", func() { w.RDMA().RemoteAddr = ones }, w.WR[:]},
		{"SendWR.Atomic", func() { w.Atomic().RemoteAddr = ones }, w.WR[:]},
		{"SendWR.UD", func() { *w.UD() = SendWRUD{AH: ones >> 32, RemoteQPN: ones >> 32} }, w.WR[:]},
		{"RXESendWR.Flush", func() { x.Flush().RemoteAddr = ones }, x.WR[:]},
		{"RXESendWR.RDMA", func() { x.RDMA().RemoteAddr = ones }, x.WR[:]},
		{"RXESendWR.Atomic", func() { x.Atomic().RemoteAddr = ones }, x.WR[:]},
		{"RXESendWR.UD", func() { *x.UD() = RXESendWRUD{RemoteQPN: ones >> 32, RemoteQKey: ones >> 32} }, x.WR[:]},
		{"RXESendWR.MW", func() { x.MW().Addr = ones }, x.WR[:]},
	} {
		clear(test.union)
		test.put()
		if test.union[0] != ones || slices.Max(test.union[1:]) != 0 {
			t.Errorf("%s: got union %#x, want the first word set and the others zero", test.name, test.union)
		}
	}
}

func TestRXESockaddr(t *testing.T) {
	for _, s := range []string{"192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"} {
		a := netip.MustParseAddr(s)
		if sa := NewRXESockaddr(a); sa.Addr() != a {
			t.Errorf("address %s: got %s", a, sa.Addr())
		}
	}
	// struct sockaddr_in contains the family, the port and the address. In sockaddr_in6 the flow label precedes the
	// address.
	v4 := NewRXESockaddr(netip.AddrFrom4([4]byte{1, 2, 3, 4}))
	if !bytes.Equal(v4[4:8], []byte{1, 2, 3, 4}) || binary.NativeEndian.Uint16(v4[:]) != 2 {
		t.Errorf("sockaddr_in = % x", v4)
	}
	v6 := NewRXESockaddr(netip.AddrFrom16([16]byte{1, 15: 9}))
	if v6[8] != 1 || v6[23] != 9 || binary.NativeEndian.Uint16(v6[:]) != 10 {
		t.Errorf("sockaddr_in6 = % x", v6)
	}
	if sa := NewRXESockaddr(netip.Addr{}); sa != (RXESockaddr{}) || sa.Addr().IsValid() {
		t.Errorf("no address: got % x, %s", sa, sa.Addr())
	}
}

// TestRXERingLayout checks that the sizes and offsets of ring elements agree with the structs. TestStructs compares the
// structs with C.
func TestRXERingLayout(t *testing.T) {
	table := newestFacts(readTable(t, kernelTable))
	at := func(kind layout.Kind, name string) int64 {
		f := table.Lookup(kind, name)
		if len(f) != 1 {
			t.Fatalf("%s: got %d facts, want 1", name, len(f))
		}
		if kind == layout.Struct {
			return f[0].Size
		}
		return f[0].Off
	}
	const dma = "rxe_dma_info.sge"
	for _, test := range []struct {
		name      string
		got, want int64
	}{
		{"RXESendWQESize", RXESendWQESize, at(layout.Struct, "rxe_send_wqe")},
		{"RXESendWQEDMAOffset", RXESendWQEDMAOffset, at(layout.Field, "rxe_send_wqe.dma")},
		{"RXESendWQESGEOffset", RXESendWQESGEOffset, at(layout.Field, "rxe_send_wqe.dma") + at(layout.Flex, dma)},
		{"RXERecvWQESize", RXERecvWQESize, at(layout.Struct, "rxe_recv_wqe")},
		{"RXERecvWQEDMAOffset", RXERecvWQEDMAOffset, at(layout.Field, "rxe_recv_wqe.dma")},
		{"RXERecvWQESGEOffset", RXERecvWQESGEOffset, at(layout.Field, "rxe_recv_wqe.dma") + at(layout.Flex, dma)},
		{"RXEQueueProducerOffset", RXEQueueProducerOffset, at(layout.Field, "rxe_queue_buf.producer_index")},
		{"RXEQueueConsumerOffset", RXEQueueConsumerOffset, at(layout.Field, "rxe_queue_buf.consumer_index")},
		{"RXEQueueDataOffset", RXEQueueDataOffset, at(layout.Flex, "rxe_queue_buf.data")},
		// The next entries compare the Go types at run time. The other tests use the type checker.
		{"RXESendWQE", int64(SizeOf[RXESendWQE]()), RXESendWQESize},
		{"RXERecvWQE", int64(SizeOf[RXERecvWQE]()), RXERecvWQESize},
		{"RXEQueueBuf", int64(SizeOf[RXEQueueBuf]()), RXEQueueDataOffset},
	} {
		if test.got != test.want {
			t.Errorf("%s = %d, want %d", test.name, test.got, test.want)
		}
	}
	// A slot is the smallest power of two that can contain a WC, and at least a cache line.
	if n := SizeOf[WC](); n > RXECQESize || n <= RXECQESize/2 {
		t.Errorf("slot of %[2]d bytes for a WC of %[1]d bytes: got a wrong size, want the next power of two", n, RXECQESize)
	}
}

// TestKernelOnlyConstants checks constants that no header for user space defines. The test compares the constants with
// the values in the kernel's include/rdma/ib_verbs.h.
func TestKernelOnlyConstants(t *testing.T) {
	for _, test := range []struct {
		name      string
		got, want uint32
	}{
		{"IB_WC_GRH", uint32(WCFlagGRH), 1},
		{"IB_WC_WITH_IMM", uint32(WCFlagWithImm), 2},
		{"IB_WC_WITH_INVALIDATE", uint32(WCFlagWithInvalidate), 4},
		{"IB_WC_IP_CSUM_OK", uint32(WCFlagIPCsumOK), 8},
		{"IB_WC_WITH_SMAC", uint32(WCFlagWithSMAC), 16},
		{"IB_WC_WITH_VLAN", uint32(WCFlagWithVLAN), 32},
		{"IB_WC_WITH_NETWORK_HDR_TYPE", uint32(WCFlagWithNetworkHdrType), 64},
		{"IB_PORT_PHYS_STATE_SLEEP", uint32(PortPhysSleep), 1},
		{"IB_PORT_PHYS_STATE_POLLING", uint32(PortPhysPolling), 2},
		{"IB_PORT_PHYS_STATE_DISABLED", uint32(PortPhysDisabled), 3},
		{"IB_PORT_PHYS_STATE_PORT_CONFIGURATION_TRAINING", uint32(PortPhysTraining), 4},
		{"IB_PORT_PHYS_STATE_LINK_UP", uint32(PortPhysLinkUp), 5},
		{"IB_PORT_PHYS_STATE_LINK_ERROR_RECOVERY", uint32(PortPhysLinkErrorRecovery), 6},
		{"IB_PORT_PHYS_STATE_PHY_TEST", uint32(PortPhysTest), 7},
	} {
		if test.got != test.want {
			t.Errorf("%s = %d, want %d", test.name, test.got, test.want)
		}
	}
}
