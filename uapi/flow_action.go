package uapi

// FlowActionESP is AttrFlowActionESPAttrs, the IPsec offload of a flow action
// (struct ib_uverbs_flow_action_esp).
type FlowActionESP struct {
	SPI           uint32
	Seq           uint32
	TFCPad        uint32
	Flags         FlowActionESPFlags
	HardLimitPkts uint64
}

// FlowActionESPKeymatAESGCM is AttrFlowActionESPKeymat for
// FlowActionESPKeymatTypeAESGCM
// (struct ib_uverbs_flow_action_esp_keymat_aes_gcm).
type FlowActionESPKeymatAESGCM struct {
	IV     uint64
	IVAlgo FlowActionIVAlgo
	Salt   uint32
	ICVLen uint32 // bytes
	KeyLen uint32 // bytes
	AESKey [8]uint32
}

// FlowActionESPReplayBMP is AttrFlowActionESPReplay for
// FlowActionESPReplayTypeBMP (struct ib_uverbs_flow_action_esp_replay_bmp).
type FlowActionESPReplayBMP struct {
	Size uint32 // of the window
}

// FlowActionESPEncap is AttrFlowActionESPEncap, a linked list of the headers of
// tunnel mode (struct ib_uverbs_flow_action_esp_encap).
type FlowActionESPEncap struct {
	ValPtr  uint64 // user address of a flow filter
	NextPtr uint64 // user address of the next FlowActionESPEncap
	Len     uint16 // bytes of the filter
	Type    uint16 // a FlowSpecType, two bytes wide here
	Pad     [4]uint8
}

// FlowActionESPKeymatType is the cipher of an IPsec offload
// (enum ib_uverbs_flow_action_esp_keymat).
type FlowActionESPKeymatType uint8

// The ciphers (IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_*).
const (
	FlowActionESPKeymatTypeAESGCM FlowActionESPKeymatType = iota
)

// FlowActionIVAlgo says how an IPsec offload makes initialisation vectors
// (enum ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo).
type FlowActionIVAlgo uint32

// The algorithms (IB_UVERBS_FLOW_ACTION_IV_ALGO_*).
const (
	FlowActionIVAlgoSeq FlowActionIVAlgo = iota
)

// FlowActionESPReplayType is the replay protection of an IPsec offload
// (enum ib_uverbs_flow_action_esp_replay).
type FlowActionESPReplayType uint8

// The replay protections (IB_UVERBS_FLOW_ACTION_ESP_REPLAY_*).
const (
	FlowActionESPReplayTypeNone FlowActionESPReplayType = iota
	FlowActionESPReplayTypeBMP
)

// FlowActionESPFlags are the options of an IPsec offload
// (enum ib_uverbs_flow_action_esp_flags).
type FlowActionESPFlags uint32

// The options (IB_UVERBS_FLOW_ACTION_ESP_FLAGS_*). Those of value zero name
// the default that the bit below them changes.
const (
	FlowActionESPFlagsInlineCrypto FlowActionESPFlags = 0
	FlowActionESPFlagsFullOffload  FlowActionESPFlags = 1 << 0
	FlowActionESPFlagsTunnel       FlowActionESPFlags = 0
	FlowActionESPFlagsTransport    FlowActionESPFlags = 1 << 1
	FlowActionESPFlagsDecrypt      FlowActionESPFlags = 0
	FlowActionESPFlagsEncrypt      FlowActionESPFlags = 1 << 2
	FlowActionESPFlagsESNNewWindow FlowActionESPFlags = 1 << 3
)
