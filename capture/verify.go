package capture

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"verbena/roce"
)

// Verification is the result of Verify.
type Verification struct {
	Good, Bad int
	// Unchecked is the number of incomplete RoCEv2 packets, which the capture has truncated or IP has fragmented.
	Unchecked int
	BadFrames []int // numbers of the first bad frames, from 1, as in Wireshark
}

// maxBadFrames limits the bad frames that a Verification lists.
const maxBadFrames = 10

// OK reports whether there was a good packet and no bad packet.
func (r Verification) OK() bool { return r.Good > 0 && r.Bad == 0 }

// String returns a one-line summary.
func (r Verification) String() string { return fmt.Sprintf("icrc good %d bad %d", r.Good, r.Bad) }

// Add adds the counts of another capture.
func (r *Verification) Add(o Verification) {
	r.Good += o.Good
	r.Bad += o.Bad
	r.Unchecked += o.Unchecked
}

// errLinkType is the error of an unsupported link type.
var errLinkType = errors.New("link type not supported")

// Verify checks the ICRC of every RoCEv2 packet in a capture. Wireshark does not check the ICRC. Verify reads pcap
// and pcapng files, optionally compressed with gzip. The supported link types are Ethernet (with or without VLAN
// tags), raw IP and Linux cooked captures.
//
// A capture on the sending host, or on loopback, shows an unsegmented batch as one long packet. Verify splits such
// a batch in the same way as the kernel or the device. A capture that ends within a frame, because a program was
// stopped, is valid up to that frame.
func Verify(r io.Reader) (Verification, error) {
	var res Verification
	next, err := newFrameReader(r)
	if err != nil {
		return res, fmt.Errorf("read capture: %w", err)
	}
	for n := 1; ; n++ {
		f, err := next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return res, nil
		case err != nil:
			return res, fmt.Errorf("read capture: frame %d: %w", n, err)
		}
		ip, err := ipPacketInFrame(f.link, f.data)
		if err != nil {
			return res, fmt.Errorf("read capture: frame %d: %w", n, err)
		}
		res.verifyPacket(n, ip, len(f.data) < f.whole)
	}
}

// capturedFrame is a frame of a capture.
type capturedFrame struct {
	link    layers.LinkType
	at      time.Time
	data    []byte // valid until the next frame is read
	whole   int    // length before the capture truncated the frame
	in, out bool   // direction, if the capture contains it
}

// newFrameReader returns a function that reads the frames one after another.
func newFrameReader(r io.Reader) (func() (capturedFrame, error), error) {
	const ngMagic = 0x0a0d0d0a // a palindrome, which is valid in both byte orders
	b := bufio.NewReader(r)
	magic, err := b.Peek(4)
	if err != nil {
		return nil, errors.New("not a pcap or pcapng file: no header")
	}
	if isGzip(magic) {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, err
		}
		b = bufio.NewReader(z)
		if magic, err = b.Peek(4); err != nil {
			return nil, fmt.Errorf("decompress: %w", err)
		}
		if isGzip(magic) { // pcapgo would decompress repeatedly, without end if a file decompresses to itself
			return nil, errors.New("compressed more than once: decompress it first")
		}
	}
	if binary.BigEndian.Uint32(magic) == ngMagic {
		ng, err := pcapgo.NewNgReader(b, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
		if err != nil {
			return nil, err
		}
		return func() (capturedFrame, error) {
			data, ci, o, err := ng.ZeroCopyReadPacketDataWithOptions()
			f := capturedFrame{link: ngLinkType(ci), at: ci.Timestamp, data: data, whole: ci.Length}
			if o.Flags != nil {
				f.in, f.out = o.Flags.Direction == pcapgo.NgEpbFlagDirectionInbound,
					o.Flags.Direction == pcapgo.NgEpbFlagDirectionOutbound
			}
			return f, err
		}, nil
	}
	p, err := pcapgo.NewReader(b)
	if err != nil {
		return nil, err
	}
	return func() (capturedFrame, error) {
		data, ci, err := p.ZeroCopyReadPacketData()
		return capturedFrame{link: p.LinkType(), at: ci.Timestamp, data: data, whole: ci.Length}, err
	}, nil
}

// isGzip reports whether a file with this beginning is compressed (RFC 1952, 2.3.1).
func isGzip(magic []byte) bool { return magic[0] == 0x1f && magic[1] == 0x8b }

func ngLinkType(ci gopacket.CaptureInfo) layers.LinkType {
	if len(ci.AncillaryData) > 0 {
		if link, ok := ci.AncillaryData[0].(layers.LinkType); ok {
			return link
		}
	}
	return layers.LinkTypeNull
}

// The following constants are the link types of raw IP on systems that do not use LINKTYPE_RAW.
const (
	linkRawBSD     layers.LinkType = 12
	linkRawOpenBSD layers.LinkType = 14
)

// ipPacketInFrame returns the IP packet in a frame, or nil if there is none.
func ipPacketInFrame(link layers.LinkType, frame []byte) ([]byte, error) {
	var typeAt, start int // offsets of the EtherType and of the packet
	switch link {
	case layers.LinkTypeRaw, layers.LinkTypeIPv4, layers.LinkTypeIPv6, linkRawBSD, linkRawOpenBSD:
		return frame, nil
	case layers.LinkTypeEthernet:
		typeAt, start = 12, 14
	case layers.LinkTypeLinuxSLL:
		typeAt, start = 14, 16
	case layers.LinkTypeLinuxSLL2:
		typeAt, start = 0, 20
	default:
		return nil, fmt.Errorf("%w: %v (%d)", errLinkType, link, uint16(link))
	}
	for len(frame) >= start {
		switch layers.EthernetType(binary.BigEndian.Uint16(frame[typeAt:])) {
		case layers.EthernetTypeIPv4, layers.EthernetTypeIPv6:
			return frame[start:], nil
		case layers.EthernetTypeDot1Q, layers.EthernetTypeQinQ:
			typeAt, start = start+2, start+4
		default:
			return nil, nil
		}
	}
	return nil, nil
}

// verifyPacket checks a packet. cut means that the capture has truncated it.
func (r *Verification) verifyPacket(frame int, ip []byte, cut bool) {
	ok, isRoCE := roce.CheckIP(ip)
	switch {
	case ok:
		r.Good++
		return
	case !isRoCE:
		if isFirstFragment(ip) {
			r.Unchecked++
		}
		return
	case cut:
		r.Unchecked++
		return
	}
	good, bad := countValidSegments(ip)
	r.Good += good
	r.Bad += bad
	if bad > 0 && len(r.BadFrames) < maxBadFrames {
		r.BadFrames = append(r.BadFrames, frame)
	}
}

// maxSegmentLen is at least the size of the longest RoCEv2 packet from BTH to ICRC. That packet has a path MTU of 4096
// bytes, and at most 48 bytes of headers and ICRC (XRCETH, AtomicETH). maxSegmentLen limits the number and the size of
// the segments that segments tries. Without maxSegmentLen, the check of a hostile packet of 64 KiB would take the CRC
// of 500 MiB.
const maxSegmentLen = 4096 + 48

// countValidSegments checks the packets in an unsegmented batch. A packet that is not a batch counts as one bad packet.
func countValidSegments(ip []byte) (good, bad int) {
	const ip4, ip6, udp, shortest = 20, 40, 8, roce.BTHLen + roce.ICRCLen
	var src, dst netip.Addr
	var id uint16
	switch {
	case ip[0] == 0x45 && ip[6]&0x40 != 0: // do not fragment, which Flow requires
		id = binary.BigEndian.Uint16(ip[4:])
		src, dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		ip = ip[ip4:]
	case ip[0]>>4 == 6:
		src, dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		ip = ip[ip6:]
	default:
		return 0, 1
	}
	flow := roce.NewFlow(netip.AddrPortFrom(src, binary.BigEndian.Uint16(ip)), netip.AddrPortFrom(dst, roce.UDPPort))
	end := int(binary.BigEndian.Uint16(ip[4:]))
	if end < udp || end > len(ip) {
		return 0, 1
	}
	data := ip[udp:end]
	check := func(id uint16, p []byte) bool {
		return len(p) >= shortest && len(p) <= flow.MaxPacket() &&
			flow.ICRC(id, p) == binary.LittleEndian.Uint32(p[len(p)-roce.ICRCLen:])
	}
	// The capture does not contain the segment size. Only the right size makes the ICRC of the first packet valid.
	for size := shortest; size < min(len(data), maxSegmentLen+1); size += 4 {
		if !check(id, data[:size]) {
			continue
		}
		for ; len(data) > 0; id++ {
			n := min(size, len(data))
			if check(id, data[:n]) {
				good++
			} else {
				bad++
			}
			data = data[n:]
		}
		return good, bad
	}
	return 0, 1
}

// isFirstFragment reports whether p is the first fragment of a RoCEv2 packet over IPv4, which has the UDP header.
func isFirstFragment(p []byte) bool {
	const moreFragments, offset = 0x2000, 0x1fff
	if len(p) < 28 || p[0]>>4 != 4 || p[9] != 17 ||
		binary.BigEndian.Uint16(p[6:])&(moreFragments|offset) != moreFragments {
		return false
	}
	n := int(p[0]&0xf) * 4
	return n >= 20 && len(p) >= n+8 && binary.BigEndian.Uint16(p[n+2:]) == roce.UDPPort
}
