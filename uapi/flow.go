package uapi

// ExCreateFlow steers received packets to a QP (struct ib_uverbs_create_flow).
// FlowAttr.NumOfSpecs flow specifications follow, FlowAttr.Size bytes in all.
type ExCreateFlow struct {
	CompMask uint32
	QPHandle uint32
	FlowAttr FlowAttr
}

// ExCreateFlowResp answers ExCreateFlow (struct ib_uverbs_create_flow_resp).
type ExCreateFlowResp struct {
	CompMask   uint32
	FlowHandle uint32
}

// ExDestroyFlow undoes ExCreateFlow (struct ib_uverbs_destroy_flow).
type ExDestroyFlow struct {
	CompMask   uint32
	FlowHandle uint32
}

// FlowAttr is the head of a flow rule (struct ib_uverbs_flow_attr).
type FlowAttr struct {
	Type       FlowAttrType
	Size       uint16 // bytes of the specifications that follow
	Priority   uint16 // 0 is matched first
	NumOfSpecs uint8
	Reserved   [2]uint8
	Port       uint8
	Flags      FlowAttrFlags
}

// FlowSpecHdr starts each flow specification
// (struct ib_uverbs_flow_spec_hdr).
type FlowSpecHdr struct {
	Type     FlowSpecType
	Size     uint16 // bytes, this header included
	Reserved uint16
}

// FlowEthFilter matches an Ethernet header (struct ib_uverbs_flow_eth_filter).
type FlowEthFilter struct {
	DstMAC    [6]uint8
	SrcMAC    [6]uint8
	EtherType BE16
	VLANTag   BE16
}

// FlowSpecEth is a FlowEthFilter with its mask
// (struct ib_uverbs_flow_spec_eth).
type FlowSpecEth struct {
	Hdr  FlowSpecHdr
	Val  FlowEthFilter
	Mask FlowEthFilter
}

// FlowIPv4Filter matches an IPv4 header (struct ib_uverbs_flow_ipv4_filter).
type FlowIPv4Filter struct {
	SrcIP BE32
	DstIP BE32
	Proto uint8
	TOS   uint8
	TTL   uint8
	Flags uint8
}

// FlowSpecIPv4 is a FlowIPv4Filter with its mask
// (struct ib_uverbs_flow_spec_ipv4).
type FlowSpecIPv4 struct {
	Hdr  FlowSpecHdr
	Val  FlowIPv4Filter
	Mask FlowIPv4Filter
}

// FlowTCPUDPFilter matches a TCP or UDP header
// (struct ib_uverbs_flow_tcp_udp_filter).
type FlowTCPUDPFilter struct {
	DstPort BE16
	SrcPort BE16
}

// FlowSpecTCPUDP is a FlowTCPUDPFilter with its mask
// (struct ib_uverbs_flow_spec_tcp_udp).
type FlowSpecTCPUDP struct {
	Hdr  FlowSpecHdr
	Val  FlowTCPUDPFilter
	Mask FlowTCPUDPFilter
}

// FlowIPv6Filter matches an IPv6 header (struct ib_uverbs_flow_ipv6_filter).
type FlowIPv6Filter struct {
	SrcIP        [16]uint8
	DstIP        [16]uint8
	FlowLabel    BE32
	NextHdr      uint8
	TrafficClass uint8
	HopLimit     uint8
	Reserved     uint8
}

// FlowSpecIPv6 is a FlowIPv6Filter with its mask
// (struct ib_uverbs_flow_spec_ipv6).
type FlowSpecIPv6 struct {
	Hdr  FlowSpecHdr
	Val  FlowIPv6Filter
	Mask FlowIPv6Filter
}

// FlowSpecActionTag tags the completions of matching packets
// (struct ib_uverbs_flow_spec_action_tag).
type FlowSpecActionTag struct {
	Hdr       FlowSpecHdr
	TagID     uint32
	Reserved1 uint32
}

// FlowSpecActionDrop drops matching packets
// (struct ib_uverbs_flow_spec_action_drop).
type FlowSpecActionDrop struct {
	Hdr FlowSpecHdr
}

// FlowSpecActionHandle applies a flow action object to matching packets
// (struct ib_uverbs_flow_spec_action_handle).
type FlowSpecActionHandle struct {
	Hdr       FlowSpecHdr
	Handle    uint32
	Reserved1 uint32
}

// FlowSpecActionCount counts matching packets in a counters object
// (struct ib_uverbs_flow_spec_action_count).
type FlowSpecActionCount struct {
	Hdr       FlowSpecHdr
	Handle    uint32
	Reserved1 uint32
}

// FlowTunnelFilter matches a VXLAN header (struct ib_uverbs_flow_tunnel_filter).
type FlowTunnelFilter struct {
	TunnelID BE32
}

// FlowSpecTunnel is a FlowTunnelFilter with its mask
// (struct ib_uverbs_flow_spec_tunnel).
type FlowSpecTunnel struct {
	Hdr  FlowSpecHdr
	Val  FlowTunnelFilter
	Mask FlowTunnelFilter
}

// FlowSpecESPFilter matches an IPsec ESP header
// (struct ib_uverbs_flow_spec_esp_filter).
type FlowSpecESPFilter struct {
	SPI uint32
	Seq uint32
}

// FlowSpecESP is a FlowSpecESPFilter with its mask
// (struct ib_uverbs_flow_spec_esp).
type FlowSpecESP struct {
	Hdr  FlowSpecHdr
	Val  FlowSpecESPFilter
	Mask FlowSpecESPFilter
}

// FlowGREFilter matches a GRE header (struct ib_uverbs_flow_gre_filter).
type FlowGREFilter struct {
	CKSRes0Ver BE16 // the first 16 bits of the header
	Protocol   BE16
	Key        BE32
}

// FlowSpecGRE is a FlowGREFilter with its mask
// (struct ib_uverbs_flow_spec_gre).
type FlowSpecGRE struct {
	Hdr  FlowSpecHdr
	Val  FlowGREFilter
	Mask FlowGREFilter
}

// FlowMPLSFilter matches an MPLS label stack entry
// (struct ib_uverbs_flow_mpls_filter).
type FlowMPLSFilter struct {
	Label BE32 // label, traffic class, bottom of stack, TTL: the whole entry
}

// FlowSpecMPLS is a FlowMPLSFilter with its mask
// (struct ib_uverbs_flow_spec_mpls).
type FlowSpecMPLS struct {
	Hdr  FlowSpecHdr
	Val  FlowMPLSFilter
	Mask FlowMPLSFilter
}

// FlowAttrType is the kind of a flow rule (enum ibv_flow_attr_type).
type FlowAttrType uint32

// The kinds of flow rules (IBV_FLOW_ATTR_*).
const (
	FlowAttrNormal     FlowAttrType = iota
	FlowAttrAllDefault              // everything that no other rule takes
	FlowAttrMCDefault               // all multicast that no other rule takes
	FlowAttrSniffer                 // a copy of everything
)

// FlowAttrFlags are the options of a flow rule (enum ibv_flow_flags).
type FlowAttrFlags uint32

// The options of a flow rule (IBV_FLOW_ATTR_FLAGS_*).
const (
	FlowAttrFlagsDontTrap FlowAttrFlags = 1 << 1 // go on matching
	FlowAttrFlagsEgress   FlowAttrFlags = 1 << 2
)

// FlowSpecType is the kind of a flow specification (enum ibv_flow_spec_type).
type FlowSpecType uint32

// The kinds of flow specifications (IBV_FLOW_SPEC_*).
const (
	FlowSpecTypeEth          FlowSpecType = 0x20
	FlowSpecTypeIPv4         FlowSpecType = 0x30
	FlowSpecTypeIPv6         FlowSpecType = 0x31
	FlowSpecTypeIPv4Ext      FlowSpecType = 0x32
	FlowSpecTypeESP          FlowSpecType = 0x34
	FlowSpecTypeTCP          FlowSpecType = 0x40
	FlowSpecTypeUDP          FlowSpecType = 0x41
	FlowSpecTypeVXLANTunnel  FlowSpecType = 0x50
	FlowSpecTypeGRE          FlowSpecType = 0x51
	FlowSpecTypeMPLS         FlowSpecType = 0x60
	FlowSpecTypeInner        FlowSpecType = 0x100 // set in the others: of the inner header
	FlowSpecTypeActionTag    FlowSpecType = 0x1000
	FlowSpecTypeActionDrop   FlowSpecType = 0x1001
	FlowSpecTypeActionHandle FlowSpecType = 0x1002
	FlowSpecTypeActionCount  FlowSpecType = 0x1003
)
