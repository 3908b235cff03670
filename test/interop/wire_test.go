//go:build interop

package interop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"verbena/capture"
	"verbena/roce"
)

// frame is a RoCEv2 packet of the capture.
type frame struct {
	from         string // "kernel" or "Verbena"
	ip, udp      []byte // bytes from the header on
	packet       roce.Packet
	v4           bool
	knownSources []uint32 // QPNs that send to this packet's destination, according to the links of the tests
}

// packetProperty is a row of the comparison, with the values of a field from both sides. why explains a permitted
// difference.
type packetProperty struct {
	name string
	of   func(*frame) (value string, applies bool)
	why  string
}

// everyPacket returns a property of every packet.
func everyPacket(f func(*frame) string) func(*frame) (string, bool) {
	return func(p *frame) (string, bool) { return f(p), true }
}

// onlyIf returns a property of selected packets.
func onlyIf(which func(*frame) bool, f func(*frame) string) func(*frame) (string, bool) {
	return func(p *frame) (string, bool) {
		if !which(p) {
			return "", false
		}
		return f(p), true
	}
}

func isIPv4(f *frame) bool { return f.v4 }
func isIPv6(f *frame) bool { return !f.v4 }

func hasOperationIn(list ...roce.Operation) func(*frame) bool {
	return func(f *frame) bool {
		return f.packet.Opcode.Service() == roce.RC && slices.Contains(list, f.packet.Opcode.Operation())
	}
}

var (
	isACK        = hasOperationIn(roce.Acknowledge)
	isAtomicACK  = hasOperationIn(roce.AtomicAcknowledge)
	isRead       = hasOperationIn(roce.RDMAReadResponseFirst, roce.RDMAReadResponseLast, roce.RDMAReadResponseOnly)
	endOfRequest = hasOperationIn(roce.SendLast, roce.SendLastWithImmediate, roce.SendLastWithInvalidate, roce.SendOnly,
		roce.SendOnlyWithImmediate, roce.SendOnlyWithInvalidate, roce.RDMAWriteLast, roce.RDMAWriteLastWithImmediate,
		roce.RDMAWriteOnly, roce.RDMAWriteOnlyWithImmediate)
)

// isKnownFlow reports whether the tests have created the connection of a packet.
func isKnownFlow(f *frame) bool {
	return f.packet.Opcode.Service() != roce.UD && len(f.knownSources) > 0
}

// acksOfKind returns a property of acknowledgements of a kind.
func acksOfKind(which func(*frame) bool, kind func(roce.Syndrome) bool) func(*frame) (string, bool) {
	return onlyIf(func(f *frame) bool { return which(f) && kind(f.packet.AETH().Syndrome()) },
		func(f *frame) string { return fmt.Sprintf("%#02x", uint8(f.packet.AETH().Syndrome())) })
}

const hopLimitReason = "the kernel puts the route's in place of the address vector's, which was 33 once"

var packetProperties = []packetProperty{
	{"IPv4 time to live", onlyIf(isIPv4, func(f *frame) string { return fmt.Sprint(f.ip[8]) }), hopLimitReason},
	{"IPv4 type of service", onlyIf(isIPv4, func(f *frame) string { return fmt.Sprintf("%#02x", f.ip[1]) }), ""},
	{"IPv4 flags", onlyIf(isIPv4, func(f *frame) string {
		return map[byte]string{0: "none", 2: "DF", 1: "MF"}[f.ip[6]>>5]
	}), ""},
	{"IPv4 identification", onlyIf(isIPv4, func(f *frame) string {
		if binary.BigEndian.Uint16(f.ip[4:]) < 64 {
			return "from 0 in each batch"
		}
		return "counts up"
	}), "free to choose where DF is set; the ICRC covers it"},
	{"IPv6 hop limit", onlyIf(isIPv6, func(f *frame) string { return fmt.Sprint(f.ip[7]) }), hopLimitReason},
	{"IPv6 traffic class", onlyIf(isIPv6, func(f *frame) string { return fmt.Sprintf("%#02x", f.ip[0]<<4|f.ip[1]>>4) }),
		""},
	{"UDP checksum over IPv4", onlyIf(isIPv4, describeChecksum),
		"optional over IPv4 (RFC 768); segmentation offload fills it in"},
	{"UDP checksum over IPv6", onlyIf(isIPv6, describeChecksum), "0 is allowed to tunnels only (RFC 6935)"},
	{"UDP source port, RC and UC", onlyIf(isKnownFlow, func(f *frame) string {
		for _, src := range f.knownSources {
			if binary.BigEndian.Uint16(f.udp) == roce.SourcePortRC(src, f.packet.BTH().DestQPN()) {
				return "by the QPNs, as Linux computes it"
			}
		}
		return "other"
	}), ""},
	{"UDP source port, UD", onlyIf(func(f *frame) bool { return f.packet.DETH() != nil }, func(f *frame) string {
		if binary.BigEndian.Uint16(f.udp) == roce.SourcePortUD(f.packet.DETH().SrcQPN()) {
			return "by the QPN, as Linux computes it"
		}
		return "other"
	}), ""},
	{"BTH transport version", everyPacket(func(f *frame) string { return fmt.Sprint(f.packet.BTH().TVer()) }), ""},
	{"BTH migration request", everyPacket(func(f *frame) string { return fmt.Sprint(boolBit(f.packet.BTH().MigReq())) }),
		"1 says that the queue pair is MIGRATED, as it reports (IBA 9.2, 17.2.8)"},
	{"BTH P_Key", everyPacket(func(f *frame) string { return fmt.Sprintf("%#04x", f.packet.BTH().PKey()) }), ""},
	{"BTH FECN, BECN", everyPacket(func(f *frame) string {
		return fmt.Sprint(boolBit(f.packet.BTH().FECN()), ", ", boolBit(f.packet.BTH().BECN()))
	}), ""},
	{"BTH solicited event",
		everyPacket(func(f *frame) string { return fmt.Sprint(boolBit(f.packet.BTH().SolicitedEvent())) }), ""},
	{"BTH AckReq, last packet of a message", onlyIf(endOfRequest, func(f *frame) string {
		return fmt.Sprint(boolBit(f.packet.BTH().AckReq()))
	}), ""},
	{"ACK syndrome", acksOfKind(isACK, roce.Syndrome.IsACK), ""},
	{"NAK syndrome", acksOfKind(isACK, roce.Syndrome.IsNAK), "a sequence error (0x60) is a matter of chance"},
	{"RNR NAK syndrome", acksOfKind(isACK, roce.Syndrome.IsRNR), ""},
	{"READ response syndrome", acksOfKind(isRead, roce.Syndrome.IsACK), ""},
	{"atomic acknowledge syndrome", acksOfKind(isAtomicACK, roce.Syndrome.IsACK), ""},
}

func describeChecksum(f *frame) string {
	if binary.BigEndian.Uint16(f.udp[6:]) == 0 {
		return "0"
	}
	return "filled in"
}

func boolBit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// knownFlows holds the queue pairs connected by the tests, by the destination's side and QPN.
var knownFlows = map[string]map[uint32][]uint32{"kernel": {}, "Verbena": {}}

func rememberFlow(from, to *linkEnd) {
	m := knownFlows[to.name]
	if !slices.Contains(m[to.qp.QPN], from.qp.QPN) {
		m[to.qp.QPN] = append(m[to.qp.QPN], from.qp.QPN)
	}
}

// testWire compares the packets that the two sides have sent so far, and checks every ICRC.
func testWire(t *testing.T) {
	f, err := os.Open(theLab.pcap)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	icrc, err := capture.Verify(f)
	if err != nil {
		t.Fatal(err)
	}
	if !icrc.OK() || icrc.Unchecked > 0 {
		t.Errorf("ICRCs: got %v, %d unchecked and bad frames %v, want only good frames", icrc, icrc.Unchecked, icrc.BadFrames)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	frames, err := readFrames(f)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	opcodes := map[string]map[string]bool{"kernel": {}, "Verbena": {}}
	seen := make([]map[string]map[string]bool, len(packetProperties))
	for i := range seen {
		seen[i] = map[string]map[string]bool{"kernel": {}, "Verbena": {}}
	}
	for p := range frames {
		count[p.from]++
		opcodes[p.from][p.packet.Opcode.String()] = true
		for i := range packetProperties {
			if v, ok := packetProperties[i].of(p); ok {
				seen[i][p.from][v] = true
			}
		}
	}
	interopReport.facts = append(interopReport.facts, reportFact{"The wire", []string{"field", "kernel", "Verbena",
		"remark"}},
		reportFact{"The wire", []string{"packets", fmt.Sprint(count["kernel"]), fmt.Sprint(count["Verbena"]),
			"of the tables above"}},
		reportFact{"The wire", []string{"ICRC", "", "", fmt.Sprintf("`capture verify`: %v", icrc)}})
	for i, p := range packetProperties {
		k, v := joinKeys(seen[i]["kernel"]), joinKeys(seen[i]["Verbena"])
		remark := "same"
		if k != v {
			remark = p.why
			if p.why == "" {
				remark = "FAIL"
				t.Errorf("%s: got %s from the kernel and %s from Verbena, want equal values", p.name, k, v)
			}
		}
		interopReport.facts = append(interopReport.facts, reportFact{"The wire", []string{p.name, k, v, remark}})
	}
	compareOpcodes(t, opcodes["kernel"], opcodes["Verbena"])
}

// compareOpcodes checks that both sides have sent the same kinds of packets.
func compareOpcodes(t *testing.T, kernel, verbena map[string]bool) {
	var differ []string
	for op := range kernel {
		if !verbena[op] {
			differ = append(differ, op+" only from the kernel")
		}
	}
	for op := range verbena {
		if !kernel[op] {
			differ = append(differ, op+" only from Verbena")
		}
	}
	slices.Sort(differ)
	remark := "same"
	if len(differ) > 0 {
		remark = "FAIL: " + strings.Join(differ, ", ")
		t.Errorf("opcodes: %s", strings.Join(differ, ", "))
	}
	interopReport.facts = append(interopReport.facts, reportFact{"The wire",
		[]string{"opcodes", fmt.Sprint(len(kernel)), fmt.Sprint(len(verbena)), remark}})
}

func joinKeys(m map[string]bool) string { return strings.Join(slices.Sorted(maps.Keys(m)), "; ") }

// readFrames returns an iterator over the RoCEv2 packets of an Ethernet capture.
func readFrames(r io.Reader) (func(yield func(*frame) bool), error) {
	in, err := pcapgo.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("read the capture: %w", err)
	}
	return func(yield func(*frame) bool) {
		for {
			data, _, err := in.ReadPacketData()
			if errors.Is(err, io.EOF) || err != nil { // the guest is still writing, so the last packet may be incomplete
				return
			}
			if f, ok := parseFrame(data); ok && !yield(f) {
				return
			}
		}
	}, nil
}

func parseFrame(data []byte) (*frame, bool) {
	const eth, ip4, ip6, udpLen, protoUDP = 14, 20, 40, 8, 17
	if len(data) < eth+ip4 {
		return nil, false
	}
	f := &frame{ip: data[eth:]}
	var src netip.Addr
	switch {
	case data[eth] == 0x45 && f.ip[9] == protoUDP:
		f.v4, src, f.udp = true, netip.AddrFrom4([4]byte(f.ip[12:16])), f.ip[ip4:]
	case data[eth]>>4 == 6 && len(f.ip) >= ip6 && f.ip[6] == protoUDP:
		src, f.udp = netip.AddrFrom16([16]byte(f.ip[8:24])), f.ip[ip6:]
	default:
		return nil, false
	}
	if len(f.udp) < udpLen || binary.BigEndian.Uint16(f.udp[2:]) != roce.UDPPort {
		return nil, false
	}
	n := int(binary.BigEndian.Uint16(f.udp[4:]))
	if n < udpLen || n > len(f.udp) {
		return nil, false
	}
	var err error
	if f.packet, err = roce.ParsePacket(f.udp[udpLen:n]); err != nil {
		return nil, false
	}
	to := ""
	for ip := range ourIP {
		switch src.String() {
		case ourIP[ip]:
			f.from, to = "Verbena", "kernel"
		case guestIP[ip]:
			f.from, to = "kernel", "Verbena"
		}
	}
	f.knownSources = knownFlows[to][f.packet.BTH().DestQPN()]
	return f, f.from != ""
}
