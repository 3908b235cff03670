package roce

const (
	sourcePortBase = 0xc000  // the first dynamic port
	flowLabelMask  = 0xfffff // an IPv6 flow label has 20 bits
	goldenRatio32  = 0x61c88647
)

// SourcePortRC returns the UDP source port of a connected (RC, UC or XRC) queue pair without a flow label. Linux
// chooses the same port. The port is the same at both ends. Most connections have different ports. Routers use the
// ports to distribute connections over paths (rdma_calc_flow_label, rdma_flow_label_to_udp_sport).
func SourcePortRC(localQPN, remoteQPN uint32) uint16 {
	v := uint64(localQPN) * uint64(remoteQPN)
	v ^= v >> 20
	v ^= v >> 40
	return SourcePortFlowLabel(uint32(v) & flowLabelMask)
}

// SourcePortFlowLabel returns the UDP source port of a connected queue pair for the flow label fl of its address
// vector. If fl is 0, there is no flow label: in this case Linux uses [SourcePortRC] (rdma_get_udp_sport).
func SourcePortFlowLabel(fl uint32) uint16 {
	fl &= flowLabelMask
	return uint16(sourcePortBase | fl&0x3fff ^ fl>>14)
}

// SourcePortUD computes the UDP source port of a datagram queue pair from its number (hash_32 of Linux's rxe).
func SourcePortUD(qpn uint32) uint16 {
	return sourcePortBase + uint16(qpn*goldenRatio32>>18)
}
