package uapi

// GlobalRoute is the layer-3 part of an address (struct ib_uverbs_global_route).
type GlobalRoute struct {
	DGID         [16]uint8
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	Reserved     uint8
}

// AHAttr is an address vector (struct ib_uverbs_ah_attr).
type AHAttr struct {
	GRH         GlobalRoute
	DLID        uint16
	SL          uint8
	SrcPathBits uint8
	StaticRate  uint8 // enum ibv_rate
	IsGlobal    uint8 // not zero if GRH is valid
	PortNum     uint8
	Reserved    uint8
}

// CreateAH creates an address handle (struct ib_uverbs_create_ah).
type CreateAH struct {
	Response   uint64 // user address of CreateAHResp
	UserHandle uint64
	PDHandle   uint32
	Reserved   uint32
	Attr       AHAttr
}

// CreateAHResp is the response to CreateAH (struct ib_uverbs_create_ah_resp).
type CreateAHResp struct {
	AHHandle uint32
}

// DestroyAH destroys an address handle (struct ib_uverbs_destroy_ah).
type DestroyAH struct {
	AHHandle uint32
}

// AttachMcast attaches a QP to a multicast group. The QP then receives the group's datagrams (struct
// ib_uverbs_attach_mcast).
type AttachMcast struct {
	GID      [16]uint8
	QPHandle uint32
	MLID     uint16
	Reserved uint16
}

// DetachMcast detaches a QP from a multicast group (struct ib_uverbs_detach_mcast).
type DetachMcast struct {
	GID      [16]uint8
	QPHandle uint32
	MLID     uint16
	Reserved uint16
}
