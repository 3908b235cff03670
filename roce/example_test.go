package roce_test

import (
	"fmt"
	"net/netip"

	"verbena/roce"
)

// The sender lays out a packet in its own buffer and seals it with the invariant CRC. The receiver parses it.
func ExampleNewPacket() {
	buf := make([]byte, 128)
	p := roce.NewPacket(
		buf,
		&roce.BTHFields{Opcode: roce.RCSendOnly, DestQPN: 17, PSN: 1000, AckReq: true, PKey: 0xffff},
		5,
	)
	copy(p.Payload, "hello")
	flow := roce.NewFlow(netip.MustParseAddrPort("10.0.0.1:50000"), netip.MustParseAddrPort("10.0.0.2:4791"))
	flow.Seal(0, p.Data)

	got, err := roce.ParsePacket(p.Data)
	if err != nil {
		fmt.Println(err)
		return
	}
	bth := got.BTH()
	fmt.Println(got.Opcode, "to QP", bth.DestQPN(), "PSN", bth.PSN(), "pad", bth.PadCount())
	fmt.Printf("%s, CRC right: %v\n", got.Payload, flow.ICRC(0, p.Data) == got.ICRC())
	// Output:
	// RC SEND Only to QP 17 PSN 1000 pad 3
	// hello, CRC right: true
}

// A parser reports the reason for a malformed packet. Drivers count packets by this reason.
func ExampleParsePacket() {
	for _, b := range [][]byte{nil, make([]byte, 16), append([]byte{0xff}, make([]byte, 30)...)} {
		_, err := roce.ParsePacket(b)
		fmt.Println(err)
	}
	// Output:
	// RoCEv2 packet shorter than BTH and ICRC
	// <nil>
	// RoCEv2 packet with unknown opcode
}

// Packet numbers have 24 bits, and comparisons take the wrap-around into account.
func ExamplePSN_Diff() {
	last := roce.PSN(0xffffff)
	next := last.Add(3)
	fmt.Println(uint32(next), next.Diff(last), last.Diff(next))
	// Output: 2 3 -3
}
