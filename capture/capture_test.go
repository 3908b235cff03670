package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"verbena/internal/testutil"
	"verbena/link"
	"verbena/roce"
)

// newTappedPacket returns an unsealed packet from a to b.
func newTappedPacket(a, b string, op roce.Opcode, qp uint32, payload int) *link.Tapped {
	data := make([]byte, op.PacketLen(payload))
	k := roce.NewPacket(data, &roce.BTHFields{Opcode: op, PKey: roce.DefaultPKey, DestQPN: qp, PSN: 5}, payload)
	if h := k.DETH(); h != nil {
		h.Encode(1, 99)
	}
	for i := range k.Payload {
		k.Payload[i] = byte(i * 7)
	}
	return &link.Tapped{
		Time: time.Now(), Out: true, Src: netip.AddrPortFrom(netip.MustParseAddr(a), link.Port),
		Dst: netip.AddrPortFrom(netip.MustParseAddr(b), link.Port), TTL: 64, Data: data, Unsealed: true,
	}
}

// TestFrameMatchesWirePacket checks that a frame has the same ICRC and checksums as the packet on the wire.
func TestFrameMatchesWirePacket(t *testing.T) {
	for _, ips := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}, {"fe80::1%eth0", "fe80::2%eth0"}} {
		for _, size := range []int{0, 1, 3, 64, 1023, 4096} {
			p := newTappedPacket(ips[0], ips[1], roce.RCSendOnly, 17, size)
			p.ID, p.TOS, p.TTL = 7, 0xb8, 12
			f := appendFrame([]byte("before"), p)[len("before"):]
			if ok, is := roce.CheckIP(f); !ok || !is {
				t.Errorf("%v, %d bytes: got RoCE %v and valid ICRC %v, want true and true", ips, size, is, ok)
			}
			// appendFrame does not change a sealed packet, even if it is damaged.
			sealed := *p
			sealed.Unsealed = false
			sealed.Data = slices.Clone(f[len(f)-len(p.Data):])
			if g := appendFrame(nil, &sealed); !bytes.Equal(f, g) {
				t.Errorf("%v, %d bytes: frame of a packet sealed before: got another one, want the same", ips, size)
			}
			sealed.Data[12] ^= 1
			if ok, _ := roce.CheckIP(appendFrame(nil, &sealed)); ok {
				t.Errorf("%v, %d bytes: frame of a damaged packet: got a valid ICRC, want the invalid one", ips, size)
			}
			packet := gopacket.NewPacket(f, layers.LinkTypeRaw, gopacket.Default)
			udp, ok := packet.Layer(layers.LayerTypeUDP).(*layers.UDP)
			if !ok || udp.DstPort != link.Port || int(udp.Length) != 8+len(p.Data) {
				t.Fatalf("%v, %d bytes: got the decoded packet %v, want UDP with all data", ips, size, packet)
			}
			if err := udp.SetNetworkLayerForChecksum(packet.NetworkLayer()); err != nil {
				t.Fatal(err)
			}
			if err, bad := packet.VerifyChecksums(); err != nil || len(bad) > 0 {
				t.Errorf("%v, %d bytes: got wrong checksums %v and error %v, want none", ips, size, bad, err)
			}
			switch ip := packet.NetworkLayer().(type) {
			case *layers.IPv4:
				if ip.Id != 7 || ip.TOS != 0xb8 || ip.TTL != 12 || ip.Flags != layers.IPv4DontFragment {
					t.Errorf("IPv4 header: got %+v, want the values of the packet", ip)
				}
			case *layers.IPv6:
				if ip.TrafficClass != 0xb8 || ip.HopLimit != 12 {
					t.Errorf("IPv6 header: got %+v, want the values of the packet", ip)
				}
			}
		}
	}
}

// TestZeroChecksumSentAsFFFF checks that a UDP checksum of 0 is sent as 0xffff.
func TestZeroChecksumSentAsFFFF(t *testing.T) {
	p := newTappedPacket("10.0.0.1", "10.0.0.2", roce.RCSendOnly, 17, 64)
	f := appendFrame(nil, p)
	udp := f[20:]
	p.Data, p.Unsealed = udp[8:], false
	// Adding the checksum to a word makes the sum 0xffff.
	word := p.Data[20:]
	binary.BigEndian.PutUint16(word,
		foldChecksum(uint32(binary.BigEndian.Uint16(word))+uint32(binary.BigEndian.Uint16(udp[6:]))))
	if f := appendFrame(nil, p); binary.BigEndian.Uint16(f[26:]) != 0xffff {
		t.Errorf("checksum: got %#x, want 0xffff", f[26:28])
	}
}

func TestFilterSelectsPackets(t *testing.T) {
	out := newTappedPacket("10.0.0.1", "10.0.0.2", roce.RCSendOnly, 17, 8)
	out.QP = 18
	in := newTappedPacket("10.0.0.2", "10.0.0.1", roce.RCAcknowledge, 18, 0)
	in.Out = false
	ud := newTappedPacket("fe80::1%eth0", "fd00::2", roce.UDSendOnlyWithImmediate, 20, 8)
	read := newTappedPacket("10.0.0.1", "10.0.0.3", roce.RCRDMAReadResponseMiddle, 30, 8)
	all := []*link.Tapped{out, in, ud, read}
	for _, c := range []struct {
		text string
		want []*link.Tapped
	}{
		{"", all},
		{"qp=17", []*link.Tapped{out}},
		{"qp=18", []*link.Tapped{out, in}}, // sent by queue pair 18, and received by it
		{"qp=0x63", []*link.Tapped{ud}},    // a datagram has the number of its sender
		{"qp=17,qp=30", []*link.Tapped{out, read}},
		{"src=10.0.0.1", []*link.Tapped{out, read}},
		{"src=fe80::1", []*link.Tapped{ud}},
		{"dst=10.0.0.1", []*link.Tapped{in}},
		{"dst=::ffff:10.0.0.1", []*link.Tapped{in}},
		{"host=10.0.0.2", []*link.Tapped{out, in}},
		{"src=10.0.0.1,dst=10.0.0.3", []*link.Tapped{read}},
		{"dir=in", []*link.Tapped{in}},
		{"dir=out", []*link.Tapped{out, ud, read}},
		{"dir=out,dir=in", all},
		{"opcode=send", []*link.Tapped{out, ud}},
		{"opcode=UD_SEND", []*link.Tapped{ud}},
		{"opcode=rdma read", []*link.Tapped{read}},
		{"opcode=17", []*link.Tapped{in}},
		{" OpCode = acknowledge , QP=18", []*link.Tapped{in}},
		{"opcode=read,qp=17", nil},
	} {
		f, err := ParseFilter(c.text)
		if err != nil {
			t.Errorf("ParseFilter(%q): got %v, want success", c.text, err)
			continue
		}
		var got []*link.Tapped
		for _, p := range all {
			if f.Match(p) {
				got = append(got, p)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("packets selected by %q: got %d, want %d", c.text, len(got), len(c.want))
		}
	}
	for _, text := range []string{"qp", "qp=", "qp=x", "qp=16777216", "qp=-1", "port=3", "src=host", "dir=up",
		"opcode=jump", "opcode=256", ",", "qp=1,"} {
		if _, err := ParseFilter(text); !errors.Is(err, errFilter) {
			t.Errorf("ParseFilter(%q): got %v, want %v", text, err, errFilter)
		}
	}
}

func FuzzFilter(f *testing.F) {
	f.Add("qp=17,opcode=read", []byte{4, 0, 255, 255, 0, 0, 0, 17, 0, 0, 0, 0})
	f.Add("dir=in,host=::1", []byte{100})
	f.Fuzz(func(t *testing.T, text string, data []byte) {
		filter, err := ParseFilter(text)
		if err != nil {
			if !errors.Is(err, errFilter) {
				t.Errorf("ParseFilter: got %v, want ErrFilter", err)
			}
			return
		}
		p := newTappedPacket("10.0.0.1", "10.0.0.2", roce.RCSendOnly, 17, 0)
		p.Data = data
		filter.Match(p)
	})
}

// parseCapture parses a capture file.
func parseCapture(t *testing.T, b []byte) (frames [][]byte, infos []gopacket.CaptureInfo, ng *pcapgo.NgReader) {
	t.Helper()
	ng, err := pcapgo.NewNgReader(bytes.NewReader(b), pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	for {
		data, ci, err := ng.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return frames, infos, ng
		}
		if err != nil {
			t.Fatal(err)
		}
		frames, infos = append(frames, data), append(infos, ci)
	}
}

// packetDirections returns the directions of the packets in a file, in the encoding of epb_flags: 1 is in, 2 is out.
func packetDirections(b []byte) (d []uint32) {
	for len(b) >= 12 {
		n := binary.LittleEndian.Uint32(b[4:])
		if binary.LittleEndian.Uint32(b) == 6 {
			opt := b[28+binary.LittleEndian.Uint32(b[20:]):]
			if binary.LittleEndian.Uint16(opt) == 2 {
				d = append(d, binary.LittleEndian.Uint32(opt[4:])&3)
			}
		}
		b = b[n:]
	}
	return d
}

func TestRecorderWritesFilteredPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var file bytes.Buffer
		filter, err := ParseFilter("qp=17")
		if err != nil {
			t.Fatal(err)
		}
		r := New(&file, Options{Filter: filter})
		a := r.NewInterfaceTap("rxe0", "eth0")
		start := time.Now()
		p := newTappedPacket("10.0.0.1", "10.0.0.2", roce.RCSendOnly, 17, 100)
		q := newTappedPacket("10.0.0.2", "10.0.0.1", roce.RCAcknowledge, 17, 0)
		q.Out, q.Time = false, start.Add(3*time.Nanosecond)
		a.Packet(q) // the response is recorded first
		a.Packet(p)
		a.Packet(newTappedPacket("10.0.0.1", "10.0.0.2", roce.RCSendOnly, 18, 100))
		clear(p.Data) // the recorder must have copied the data
		testutil.AdvanceTime(time.Second)
		if len(packetDirections(file.Bytes())) != 2 {
			t.Error("packets in the file before Close: got none, want 2")
		}
		b := r.NewInterfaceTap("rxe1", "")
		b.Packet(newTappedPacket("fd00::1", "fd00::2", roce.RCSendOnly, 17, 100))
		sum, err := r.Close()
		if err != nil || sum != (recordingStats{Packets: 3}) {
			t.Errorf("Close: got %+v and error %v, want 3 packets", sum, err)
		}
		a.Packet(newTappedPacket("10.0.0.1", "10.0.0.2", roce.RCSendOnly, 17, 100)) // after the end of the recording
		if again, err := r.Close(); again != sum || err != nil {
			t.Errorf("second Close: got %+v and error %v, want the same", again, err)
		}

		_, infos, ng := parseCapture(t, file.Bytes())
		if len(infos) != 3 || infos[0].InterfaceIndex != 0 || infos[2].InterfaceIndex != 1 ||
			!infos[0].Timestamp.Equal(start) || !infos[1].Timestamp.Equal(start.Add(3)) {
			t.Errorf("packets: got %+v, want 3 of two interfaces", infos)
		}
		if d := packetDirections(file.Bytes()); !slices.Equal(d, []uint32{2, 1, 2}) {
			t.Errorf("directions: got %v, want out, in, out", d)
		}
		for i, want := range []struct {
			name string
			seen uint64
		}{{"rxe0", 2}, {"rxe1", 1}} {
			f, err := ng.Interface(i)
			if err != nil || f.Name != want.name || f.LinkType != layers.LinkTypeRaw ||
				f.Statistics.PacketsReceived != want.seen || f.Statistics.PacketsDropped != 0 {
				t.Errorf("interface %d: got %+v and error %v, want its name and raw IP", i, f, err)
			}
		}
		check, err := Verify(&file)
		if err != nil || check.Good != 3 || check.Bad != 0 {
			t.Errorf("Verify: got %v and error %v, want 3 good packets", check, err)
		}
	})
}

func TestRecorderEndsAfterCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var file bytes.Buffer
		r := New(&file, Options{Count: 5})
		tap := r.NewInterfaceTap("rxe0", "")
		for range 9 {
			tap.Packet(newTappedPacket("10.0.0.1", "10.0.0.2", roce.RCSendOnly, 17, 100))
		}
		select {
		case <-r.Done():
		case <-time.After(time.Minute):
			t.Error("recording after Count packets: got no end, want one")
		}
		if sum, err := r.Close(); err != nil || sum != (recordingStats{Packets: 5}) {
			t.Errorf("Close: got %+v and error %v, want 5 packets", sum, err)
		}
		if frames, _, _ := parseCapture(t, file.Bytes()); len(frames) != 5 {
			t.Errorf("packets in the file: got %d, want 5", len(frames))
		}
	})
}

// TestRecorderSortsByTime checks that a packet with an earlier timestamp is written in order of time, and that pending
// packets keep their bytes when the buffers are reused.
func TestRecorderSortsByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var file bytes.Buffer
		r := New(&file, Options{})
		tap := r.NewInterfaceTap("rxe0", "")
		start := time.Now()
		for i, late := range []time.Duration{500, 150, 400, 350} { // times in milliseconds
			p := newTappedPacket("10.0.0.1", "10.0.0.2", roce.RCSendOnly, uint32(20+i), 100)
			p.Time = start.Add(late * time.Millisecond)
			tap.Packet(p)
			testutil.AdvanceTime(flushPeriod)
		}
		if sum, err := r.Close(); err != nil || sum != (recordingStats{Packets: 4}) {
			t.Errorf("Close: got %+v and error %v, want 4 packets", sum, err)
		}
		frames, infos, _ := parseCapture(t, file.Bytes())
		var qps []uint32
		for i, f := range frames {
			qps = append(qps, roce.BTH(f[ip4Len+udpLen:]).DestQPN())
			if i > 0 && infos[i].Timestamp.Before(infos[i-1].Timestamp) {
				t.Errorf("time of packet %d: got %v after %v, want ascending times", i, infos[i].Timestamp, infos[i-1].Timestamp)
			}
		}
		if !slices.Equal(qps, []uint32{21, 23, 22, 20}) {
			t.Errorf("queue pairs: got %v, want 21, 23, 22, 20", qps)
		}
		if check, err := Verify(&file); err != nil || check.Good != 4 || check.Bad != 0 {
			t.Errorf("Verify: got %v and error %v, want 4 good packets", check, err)
		}
	})
}

// stuckWriter is a writer that blocks until it is released.
type stuckWriter struct {
	bytes.Buffer
	let chan struct{}
}

func (s *stuckWriter) Write(b []byte) (int, error) {
	<-s.let
	return s.Buffer.Write(b)
}

// TestBlockedWriterDropsPackets checks that a blocked writer does not block devices, and that dropped packets are
// counted.
func TestBlockedWriterDropsPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuckWriter{let: make(chan struct{})}
		r := New(w, Options{Buffer: 100 << 10})
		tap := r.NewInterfaceTap("rxe0", "")
		const packets, fit = 1000, (100 << 10) / (1000 + recordCost)
		for range packets {
			tap.Packet(newTappedPacket("10.0.0.1", "10.0.0.2", roce.RCSendOnly, 17, 1000))
			testutil.AdvanceTime(time.Millisecond)
		}
		close(w.let)
		sum, err := r.Close()
		// The blocked writer has one buffer, and a second buffer fills up.
		if err != nil || sum.Packets+sum.Dropped != packets || sum.Packets < fit || sum.Packets > 2*fit {
			t.Errorf("Close: got %+v and error %v, want one to two buffers of packets and the rest dropped", sum, err)
		}
		frames, _, ng := parseCapture(t, w.Bytes())
		if f, _ := ng.Interface(0); uint64(len(frames)) != sum.Packets || f.Statistics.PacketsReceived != packets ||
			f.Statistics.PacketsDropped != sum.Dropped {
			t.Errorf("file: got %d packets and statistics %+v, want those of the summary", len(frames), f.Statistics)
		}
	})
}

type failingWriter struct{}

var errWriteFailed = errors.New("no space left")

func (failingWriter) Write([]byte) (int, error) { return 0, errWriteFailed }

func TestRecorderReportsWriteError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(failingWriter{}, Options{})
		tap := r.NewInterfaceTap("rxe0", "")
		tap.Packet(newTappedPacket("10.0.0.1", "10.0.0.2", roce.RCSendOnly, 17, 1000))
		<-r.Done()
		if _, err := r.Close(); !errors.Is(err, errWriteFailed) || !strings.Contains(err.Error(), "write the capture") {
			t.Errorf("Close: got %v, want the error of the writer", err)
		}
	})
}

// TestConcurrentPacketsAreCounted checks that each packet of many threads is either in the file or counted as dropped.
func TestConcurrentPacketsAreCounted(t *testing.T) {
	var file bytes.Buffer
	r := New(&file, Options{})
	var wg sync.WaitGroup
	const threads, each = 4, 2000
	for range threads {
		tap := r.NewInterfaceTap("rxe0", "")
		wg.Go(func() {
			for range each {
				tap.Packet(newTappedPacket("10.0.0.1", "10.0.0.2", roce.RCSendOnly, 17, 64))
			}
		})
	}
	wg.Wait()
	sum, err := r.Close()
	if err != nil || sum.Packets+sum.Dropped != threads*each {
		t.Errorf("Close: got %+v and error %v, want the sum of all packets", sum, err)
	}
	_, infos, _ := parseCapture(t, file.Bytes())
	if uint64(len(infos)) != sum.Packets || sum.Dropped != 0 {
		t.Errorf("packets in the file: got %d, want those of %+v", len(infos), sum)
	}
}
