package uapi

// QueryPort requests the attributes of one port (struct ib_uverbs_query_port).
type QueryPort struct {
	Response uint64 // user address of QueryPortResp
	PortNum  uint8  // from 1
	Reserved [7]uint8
}

// QueryPortResp is the response to QueryPort (struct ib_uverbs_query_port_resp).
type QueryPortResp struct {
	PortCapFlags  PortCapFlags
	MaxMsgSz      uint32 // bytes
	BadPKeyCntr   uint32
	QKeyViolCntr  uint32
	GIDTblLen     uint32
	PKeyTblLen    uint16
	LID           uint16
	SMLID         uint16
	State         PortState
	MaxMTU        uint8 // enum ibv_mtu
	ActiveMTU     uint8 // enum ibv_mtu
	LMC           uint8
	MaxVLNum      uint8
	SMSL          uint8
	SubnetTimeout uint8
	InitTypeReply uint8
	ActiveWidth   PortWidth
	ActiveSpeed   uint8 // a PortSpeed below 256; otherwise 0
	PhysState     PortPhysState
	LinkLayer     LinkLayer
	Flags         QueryPortFlags
	Reserved      uint8
}

// QueryPortRespEx is the response to MethodQueryPort (struct ib_uverbs_query_port_resp_ex).
type QueryPortRespEx struct {
	LegacyResp    QueryPortResp
	PortCapFlags2 PortCapFlags2
	Reserved      [2]uint8
	ActiveSpeedEx uint32 // a PortSpeed; 0 from older kernels
}
