package roce

const (
	sourcePortBase = 0xc000  // the first dynamic port
	flowLabelMask  = 0xfffff // an IPv6 flow label has 20 bits
	goldenRatio32  = 0x61c88647
)

// SourcePortRC returns the UDP source port of a connected (RC, UC or XRC)
// queue pair without a flow label of its own, as Linux chooses it: the same
// from both ends, and different for most connections so that routers spread
// them (rdma_calc_flow_label, rdma_flow_label_to_udp_sport).
func SourcePortRC(localQPN, remoteQPN uint32) uint16 {
	v := uint64(localQPN) * uint64(remoteQPN)
	v ^= v >> 20
	v ^= v >> 40
	return SourcePortFlowLabel(uint32(v) & flowLabelMask)
}

// SourcePortFlowLabel returns the UDP source port of a connected queue pair
// whose address vector has the flow label fl; Linux takes 0 for none and falls
// back to [SourcePortRC] (rdma_get_udp_sport).
func SourcePortFlowLabel(fl uint32) uint16 {
	fl &= flowLabelMask
	return uint16(sourcePortBase | fl&0x3fff ^ fl>>14)
}

// SourcePortUD returns the UDP source port of a datagram queue pair from its
// number (hash_32 of Linux's rxe).
func SourcePortUD(qpn uint32) uint16 {
	return sourcePortBase + uint16(qpn*goldenRatio32>>18)
}
