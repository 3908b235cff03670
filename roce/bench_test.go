package roce_test

import (
	"fmt"
	"net/netip"
	"testing"

	"verbena/roce"
)

var benchFlow = roce.NewFlow(netip.MustParseAddrPort("10.77.0.2:49458"), netip.MustParseAddrPort("10.77.0.3:4791"))

func benchSizes(b *testing.B, fn func(b *testing.B, pkt []byte)) {
	for _, n := range []int{20, 64, 1024, 4096} {
		b.Run(fmt.Sprintf("%dB", n), func(b *testing.B) {
			pkt := make([]byte, n)
			benchFlow.Seal(0x1234, pkt)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			fn(b, pkt)
		})
	}
}

func BenchmarkICRC(b *testing.B) {
	benchSizes(b, func(b *testing.B, pkt []byte) {
		for b.Loop() {
			benchFlow.ICRC(0x1234, pkt)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	benchSizes(b, func(b *testing.B, pkt []byte) {
		for b.Loop() {
			if _, ok := benchFlow.Verify(0x1234, pkt); !ok {
				b.Fatal("wrong")
			}
		}
	})
}

// The identification differs from the guess, as with a peer that counts.
func BenchmarkVerifyUnknownIdentification(b *testing.B) {
	benchSizes(b, func(b *testing.B, pkt []byte) {
		for b.Loop() {
			if id, ok := benchFlow.Verify(0, pkt); !ok || id != 0x1234 {
				b.Fatal("wrong")
			}
		}
	})
}

func BenchmarkParsePacket(b *testing.B) {
	buf := make([]byte, 2048)
	p := roce.NewPacket(buf, &roce.BTHFields{Opcode: roce.RCRDMAWriteOnlyWithImmediate}, 1021)
	p.RETH().Encode(1, 2, 1021)
	b.ReportAllocs()
	for b.Loop() {
		q, err := roce.ParsePacket(p.Data)
		if err != nil || q.RETH().DMALen() != 1021 {
			b.Fatal("wrong")
		}
	}
}

func BenchmarkNewPacket(b *testing.B) {
	buf := make([]byte, 2048)
	b.ReportAllocs()
	for b.Loop() {
		p := roce.NewPacket(buf, &roce.BTHFields{Opcode: roce.RCRDMAWriteOnly, PKey: 0xffff, DestQPN: 17, PSN: 5}, 1021)
		p.RETH().Encode(1, 2, 1021)
	}
}

func BenchmarkNewFlow(b *testing.B) {
	src, dst := netip.MustParseAddrPort("10.77.0.2:49458"), netip.MustParseAddrPort("10.77.0.3:4791")
	b.ReportAllocs()
	for b.Loop() {
		roce.NewFlow(src, dst)
	}
}
