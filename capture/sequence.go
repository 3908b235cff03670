package capture

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"verbena/roce"
)

// packet is a RoCEv2 packet of a capture. If Verbena captures both ends, each packet occurs twice: when it leaves
// and when it arrives. The two records are merged into one packet.
type packet struct {
	Frame   int       // number of the packet's first frame, from 1, as in Wireshark
	Sent    time.Time // zero if not captured at the sender
	Arrived time.Time // zero if not captured at the receiver
	From    int       // index of the sending end, 0 or 1
	Op      roce.Opcode
	PSN     roce.PSN
	Payload int  // length in bytes
	AckReq  bool // the AckReq bit
	// HasSyndrome marks acknowledgements, which have a Syndrome.
	HasSyndrome bool
	Syndrome    roce.Syndrome
	// Refused marks the refusals of SRD, which have a Status.
	Refused bool
	Status  roce.SRDStatus
	Later   []roce.PSN // PSNs behind PSN that an acknowledgement of SRD acknowledges
	Again   bool       // a request with a PSN that was sent before
	Gap     bool       // earlier requests are missing, because they were dropped before the capture or not captured
	Lost    bool       // the packet was sent but has not arrived, and the capture has arrivals in its direction
	BadICRC bool
}

// FirstSeen returns the time of the packet's first record.
func (p *packet) FirstSeen() time.Time {
	if p.Sent.IsZero() {
		return p.Arrived
	}
	return p.Sent
}

// endpoint is an end of a Connection.
type endpoint struct {
	Addr netip.Addr
	QP   uint32 // 0 if unknown, because no packets to the queue pair were captured
}

func (e endpoint) String() string {
	if e.QP == 0 {
		return e.Addr.String()
	}
	return fmt.Sprintf("%v QP %d", e.Addr, e.QP)
}

// Connection holds the packets between two queue pairs of RC, UC, XRC or SRD. The first end is the sender of the first
// packet. Packets of RC, UC and XRC have only the number of the destination queue pair. Therefore two queue pairs are
// matched by their UDP source port, or because there are no others between two addresses.
type Connection struct {
	Ends    [2]endpoint
	Service roce.Service
	Packets []packet
	More    int // number of packets beyond the limit
}

// flow is the direction of packets to one queue pair.
type flow struct {
	src, dst netip.Addr
	port     uint16
	qp       uint32
	from     uint32 // the sending queue pair of SRD, in place of port
}

type seenPacket struct {
	packet
	flow
	in, out bool // direction, if the capture contains it
}

// maxPackets limits the number of packets kept, for all connections together.
const maxPackets = 1 << 20

// Connections returns the connections in a pcap or pcapng capture, in the order of their first packets. Connections
// ignores datagrams and packets between more than two parties.
func Connections(r io.Reader) ([]*Connection, error) {
	next, err := newFrameReader(r)
	if err != nil {
		return nil, fmt.Errorf("read capture: %w", err)
	}
	var all []seenPacket
	dropped := 0
	for n := 1; ; n++ {
		f, err := next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return groupConnections(all, dropped), nil
		case err != nil:
			return nil, fmt.Errorf("read capture: frame %d: %w", n, err)
		}
		ip, err := ipPacketInFrame(f.link, f.data)
		if err != nil {
			return nil, fmt.Errorf("read capture: frame %d: %w", n, err)
		}
		p, ok := parseConnectedPacket(ip)
		if !ok {
			continue
		}
		if len(all) == maxPackets {
			dropped++
			continue
		}
		p.Frame, p.in, p.out = n, f.in, f.out
		if p.in {
			p.Arrived = f.at
		} else {
			p.Sent = f.at
		}
		if len(f.data) == f.whole {
			good, _ := roce.CheckIP(ip)
			p.BadICRC = !good
		}
		all = append(all, p)
	}
}

// parseConnectedPacket parses a packet of a connected service.
func parseConnectedPacket(ip []byte) (p seenPacket, ok bool) {
	const udpLen = 8
	var udp []byte
	switch {
	case len(ip) >= 20 && ip[0]>>4 == 4 && ip[9] == 17 && ip[6]&0x1f == 0 && ip[7] == 0:
		n := int(ip[0]&0xf) * 4
		if n < 20 || len(ip) < n {
			return p, false
		}
		p.src, p.dst, udp = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:])), ip[n:]
	case len(ip) >= 40 && ip[0]>>4 == 6 && ip[6] == 17:
		p.src, p.dst, udp = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:])), ip[40:]
	default:
		return p, false
	}
	if len(udp) < udpLen || int(udp[2])<<8|int(udp[3]) != roce.UDPPort {
		return p, false
	}
	p.port = uint16(udp[0])<<8 | uint16(udp[1])
	pkt, err := roce.ParsePacket(udp[udpLen:])
	if err != nil {
		return p, false
	}
	switch pkt.Opcode.Service() {
	case roce.RC, roce.UC, roce.XRC:
	case roce.SRD:
		p.port, p.from = 0, pkt.DETH().SrcQPN()
		p.parseSRD(&pkt)
	default: // queue pairs of datagrams have many peers
		return p, false
	}
	b := pkt.BTH()
	p.qp, p.Op, p.PSN, p.AckReq, p.Payload = b.DestQPN(), pkt.Opcode, b.PSN(), b.AckReq(), len(pkt.Payload)
	if h := pkt.AETH(); h != nil {
		p.HasSyndrome, p.Syndrome = true, h.Syndrome()
	}
	return p, true
}

// parseSRD sets the fields of answers of SRD.
func (p *packet) parseSRD(k *roce.Packet) {
	switch k.Opcode {
	case roce.SRDFlowRefuse:
		p.Refused, p.Status = true, roce.SRDForgotten
		if v := k.SRDETH().Value(); v < uint32(roce.SRDForgotten) {
			p.Status = roce.SRDStatus(v)
		}
	case roce.SRDAcknowledge:
		for i := range min(len(k.Payload)*8, maxLater) {
			if k.Payload[i/8]&(1<<(i%8)) != 0 {
				p.Later = append(p.Later, k.BTH().PSN().Add(i+1))
			}
		}
	}
}

// maxLater limits the number of PSNs of an acknowledgement of SRD.
const maxLater = 256

// isRefusal reports whether the packet is the refusal of a request of SRD, and not the answer to a Skip.
func (p *packet) isRefusal() bool {
	return p.Refused && p.Status != roce.SRDSuccess && p.Status != roce.SRDSkipped
}

// groupConnections groups packets into connections.
func groupConnections(all []seenPacket, dropped int) []*Connection {
	// The following map holds the flows between two addresses.
	type pair struct {
		src, dst netip.Addr
	}
	to := map[pair]map[flow]bool{}
	for i := range all {
		k := pair{all[i].src, all[i].dst}
		if to[k] == nil {
			to[k] = map[flow]bool{}
		}
		to[k][all[i].flow] = true
	}
	// opposite returns the flow in the opposite direction.
	opposite := func(f flow) (flow, bool) {
		back := to[pair{f.dst, f.src}]
		var same []flow
		for o := range back {
			if f.from != 0 || o.from != 0 {
				if o.qp == f.from && o.from == f.qp && o != f {
					return o, true
				}
				continue
			}
			if o.port == f.port && (o != f || f.src == f.dst) && !(f.src == f.dst && o.qp == f.qp) {
				same = append(same, o)
			}
		}
		if f.from != 0 {
			return flow{}, false
		}
		if len(same) == 1 {
			return same[0], true
		}
		if len(same) == 0 && len(back) == 1 && len(to[pair{f.src, f.dst}]) == 1 && f.src != f.dst {
			for o := range back {
				return o, true
			}
		}
		return flow{}, false
	}
	var list []*Connection
	of := map[flow]*Connection{}
	end := map[flow]int{} // index of the end that receives the flow
	arrivals := map[flow]bool{}
	for i := range all {
		p := &all[i]
		arrivals[p.flow] = arrivals[p.flow] || p.in
		if of[p.flow] != nil {
			continue
		}
		c := &Connection{Service: p.Op.Service()}
		c.Ends = [2]endpoint{{Addr: p.src, QP: p.from}, {Addr: p.dst, QP: p.qp}}
		of[p.flow], end[p.flow] = c, 1
		if o, ok := opposite(p.flow); ok && of[o] == nil {
			c.Ends[0].QP = o.qp
			of[o], end[o] = c, 0
		}
		list = append(list, c)
	}
	// The following map holds packets that have left and have not yet arrived, by their distinguishing fields.
	type key struct {
		flow
		op       roce.Opcode
		psn      roce.PSN
		payload  int
		syndrome roce.Syndrome
	}
	away := map[key][]int{}
	highest := map[flow]latestRequest{}
	for i := range all {
		p := &all[i]
		c := of[p.flow]
		k := key{p.flow, p.Op, p.PSN, p.Payload, p.Syndrome}
		// An arrival matches the latest copy. Earlier copies would have arrived before it, so they were lost.
		if n := len(away[k]); p.in && n > 0 {
			at := away[k][n-1]
			away[k] = away[k][:n-1]
			c.Packets[at].Arrived = p.Arrived
			c.Packets[at].BadICRC = c.Packets[at].BadICRC || p.BadICRC
			continue
		}
		x := p.packet
		x.From = 1 - end[p.flow]
		if x.isRequest() {
			last, known := highest[p.flow]
			x.Again = known && !last.psn.Less(p.PSN)
			if !x.Again {
				x.Gap = known && !last.read && p.PSN != last.psn.Next()
				highest[p.flow] = latestRequest{p.PSN, p.Op.Has(roce.FlagRead) && p.Op.Service() != roce.SRD}
			}
		} else if p.Op == roce.SRDFlowOpen {
			highest[p.flow] = latestRequest{psn: p.PSN.Add(-1)}
		}
		if p.out {
			away[k] = append(away[k], len(c.Packets))
		}
		c.Packets = append(c.Packets, x)
	}
	for k, left := range away {
		for _, at := range left {
			of[k.flow].Packets[at].Lost = arrivals[k.flow]
		}
	}
	if dropped > 0 && len(list) > 0 {
		list[0].More = dropped
	}
	return list
}

// latestRequest is the latest request of a flow. A READ takes one PSN for each packet of its response.
type latestRequest struct {
	psn  roce.PSN
	read bool
}

// isRequest reports whether a packet has a PSN of the sender's own sequence.
func (p *packet) isRequest() bool {
	return p.Op.Has(roce.FlagRequest) && !p.Op.Has(roce.FlagFlow)
}

// describe returns a description of the packet.
func (p *packet) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s psn %d", strings.TrimPrefix(p.Op.String(), p.Op.Service().String()+" "), p.PSN)
	if p.Payload > 0 && !p.Op.Has(roce.FlagAck) {
		fmt.Fprintf(&b, ", %d bytes", p.Payload)
	}
	if p.HasSyndrome && !p.Syndrome.IsACK() {
		fmt.Fprintf(&b, ", %v", p.Syndrome)
	}
	if len(p.Later) > 0 {
		fmt.Fprintf(&b, ", %d later", len(p.Later))
	}
	if p.Refused {
		fmt.Fprintf(&b, ", %v", p.Status)
	}
	if p.AckReq {
		b.WriteString(", asks")
	}
	return b.String()
}

// describeFaults returns the faults of the packet, or an empty string.
func (p *packet) describeFaults() string {
	var w []string
	for _, x := range []struct {
		on   bool
		what string
	}{{p.Again, "again"}, {p.Gap, "after a gap"}, {p.HasSyndrome && p.Syndrome.IsNAK(), "NAK"},
		{p.HasSyndrome && p.Syndrome.IsRNR() || p.isRefusal() && p.Status == roce.SRDNotReady, "not ready"},
		{p.isRefusal() && p.Status != roce.SRDNotReady, "refused"}, {p.Lost, "lost"},
		{p.BadICRC, "bad ICRC"}} {
		if x.on {
			w = append(w, x.what)
		}
	}
	return strings.Join(w, ", ")
}

// Summary describes the connection in a line.
func (c *Connection) Summary() string {
	var again, naks, lost, bad int
	for i := range c.Packets {
		p := &c.Packets[i]
		for _, x := range []struct {
			on bool
			n  *int
		}{{p.Again, &again},
			{p.HasSyndrome && !p.Syndrome.IsACK() || p.isRefusal(), &naks}, {p.Lost, &lost}, {p.BadICRC, &bad}} {
			if x.on {
				*x.n++
			}
		}
	}
	s := fmt.Sprintf("%v, %v and %v: %d packets", c.Service, c.Ends[0], c.Ends[1], len(c.Packets))
	for _, x := range []struct {
		n    int
		what string
	}{{again, "sent again"}, {naks, "refused (NAK)"}, {lost, "lost"}, {bad, "with a bad ICRC"},
		{c.More, "more that are not shown"}} {
		if x.n > 0 {
			s += fmt.Sprintf(", %d %s", x.n, x.what)
		}
	}
	return s
}

// HasQP reports whether an end has the queue pair number.
func (c *Connection) HasQP(qp uint32) bool { return c.Ends[0].QP == qp || c.Ends[1].QP == qp }

// HasFault reports whether a packet has a fault.
func (c *Connection) HasFault() bool {
	return slices.ContainsFunc(c.Packets, func(p packet) bool { return p.describeFaults() != "" })
}

// packetsToShow returns at most limit packets to show; 0 means all packets. With trouble set, the shown packets start a
// few packets before the first packet with a fault.
func (c *Connection) packetsToShow(limit int, trouble bool) []packet {
	list := c.Packets
	if trouble {
		const before = 5
		at := slices.IndexFunc(list, func(p packet) bool { return p.describeFaults() != "" })
		if at < 0 {
			return nil
		}
		list = list[max(at-before, 0):]
	}
	if limit > 0 && len(list) > limit {
		list = list[:limit]
	}
	return list
}

// WriteText writes the packets, one a line. A line contains the time since the first packet, and the packet with its
// direction.
func (c *Connection) WriteText(w io.Writer, limit int, trouble bool) error {
	const width = 46
	list := c.packetsToShow(limit, trouble)
	if _, err := fmt.Fprintf(w, "%14s  %-*s  %s\n", "seconds", width, c.Ends[0], c.Ends[1]); err != nil {
		return err
	}
	first := c.firstPacketTime()
	for i := range list {
		p := &list[i]
		left, arrow, right := p.describe(), "-->", ""
		if p.Lost {
			arrow = "--x"
		}
		if p.From == 1 {
			left, right, arrow = "", p.describe(), "<--"
			if p.Lost {
				arrow = "x--"
			}
		}
		note := p.describeFaults()
		if note != "" {
			note = "  ! " + note
		}
		if _, err := fmt.Fprintf(w, "%14.6f  %-*s %s %s%s\n", p.FirstSeen().Sub(first).Seconds(), width-4, left, arrow, right,
			note); err != nil {
			return err
		}
	}
	if n := len(c.Packets) - len(list); n > 0 {
		_, err := fmt.Fprintf(w, "%14s  %d other packets\n", "", n)
		return err
	}
	return nil
}

func (c *Connection) firstPacketTime() time.Time {
	if len(c.Packets) == 0 {
		return time.Time{}
	}
	return c.Packets[0].FirstSeen()
}

// WriteSVG writes the packets as a picture. Each end is a vertical line, and each packet is an arrow. Packets with
// faults are red.
func (c *Connection) WriteSVG(w io.Writer, limit int, trouble bool) error {
	const width, left, right, top, row = 900, 300, 720, 96, 20
	list := c.packetsToShow(limit, trouble)
	slices.SortStableFunc(list, func(a, b packet) int {
		return cmp.Compare(a.FirstSeen().UnixNano(),
			b.FirstSeen().UnixNano())
	})
	var b strings.Builder
	height := top + row*(len(list)+2)
	esc := func(s string) string {
		var e strings.Builder
		_ = xml.EscapeText(&e, []byte(s))
		return e.String()
	}
	text := func(x, y int, anchor, class, s string) {
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="%s" class="%s">%s</text>`+"\n", x, y, anchor, class, esc(s))
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d">`+"\n",
		width, height)
	b.WriteString(`<style>text{font-family:'DejaVu Sans',Verdana,sans-serif;font-size:11px;fill:#1d3557}.h{font-size:13px;font-weight:bold}.s{fill:#5c677d}.r{fill:#b02a3a;font-weight:bold}</style>` + "\n")
	b.WriteString(`<defs><marker id="a" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto"><path d="M0 0 L9 4 L0 8 Z" fill="#457b9d"/></marker>` +
		`<marker id="r" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto"><path d="M0 0 L9 4 L0 8 Z" fill="#d1495b"/></marker></defs>` + "\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	text(20, 28, "start", "h", c.Summary())
	text(left, 64, "middle", "h", c.Ends[0].String())
	text(right, 64, "middle", "h", c.Ends[1].String())
	for _, x := range []int{left, right} {
		fmt.Fprintf(&b, `<line x1="%d" y1="72" x2="%[1]d" y2="%d" stroke="#8d99ae"/>`+"\n", x, height-row)
	}
	first, before := c.firstPacketTime(), time.Time{}
	for i := range list {
		p := &list[i]
		y := top + row*i
		x1, x2 := left, right
		if p.From == 1 {
			x1, x2 = right, left
		}
		colour, marker, class := "#457b9d", "a", "s"
		note := p.describeFaults()
		if note != "" {
			colour, marker, class = "#d1495b", "r", "r"
		}
		end := fmt.Sprintf(`marker-end="url(#%s)"`, marker)
		y2 := y + row/2
		if p.Lost { // the arrow ends in transit, with a cross
			x2, y2, end = x1+(x2-x1)*7/10, y+row*35/100, ""
			fmt.Fprintf(&b, `<path d="M%d %d l8 8 m0 -8 l-8 8" stroke="%s" stroke-width="2"/>`+"\n", x2-4, y2-4, colour)
		}
		fmt.Fprintf(&b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" %s/>`+"\n", x1, y, x2, y2, colour, end)
		text((left+right)/2, y-1, "middle", "", p.describe())
		text(left-130, y+4, "end", "s", fmt.Sprintf("%.6f s", p.FirstSeen().Sub(first).Seconds()))
		if d := p.FirstSeen().Sub(before); i > 0 && d >= time.Millisecond {
			text(left-50, y+4, "end", "r", "+"+d.Round(10*time.Microsecond).String())
		}
		if note != "" {
			text(right+16, y+8, "start", class, note)
		}
		before = p.FirstSeen()
	}
	if n := len(c.Packets) - len(list); n > 0 {
		text(20, height-8, "start", "s", fmt.Sprintf("%d other packets", n))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
