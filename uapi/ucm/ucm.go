package ucm

import "verbena/uapi"

// ABIVersion is the version in /sys/class/misc/rdma_cm/abi_version (RDMA_USER_CM_ABI_VERSION).
const ABIVersion = 4

// MaxPrivateData is the size of the field for private data in commands and events, in bytes (RDMA_MAX_PRIVATE_DATA).
const MaxPrivateData = 256

// Command is the number of a command (RDMA_USER_CM_CMD_*).
type Command uint32

const (
	CmdCreateID Command = iota
	CmdDestroyID
	CmdBindIP
	CmdResolveIP
	CmdResolveRoute
	CmdQueryRoute
	CmdConnect
	CmdListen
	CmdAccept
	CmdReject
	CmdDisconnect
	CmdInitQPAttr
	CmdGetEvent
	CmdGetOption // never implemented
	CmdSetOption
	CmdNotify
	CmdJoinIPMcast
	CmdLeaveMcast
	CmdMigrateID
	CmdQuery
	CmdBind
	CmdResolveAddr
	CmdJoinMcast
	CmdResolveIBService
	CmdWriteCMEvent
	NumCommands
)

func (c Command) String() string {
	names := [NumCommands]string{
		"CREATE_ID", "DESTROY_ID", "BIND_IP", "RESOLVE_IP", "RESOLVE_ROUTE", "QUERY_ROUTE", "CONNECT", "LISTEN", "ACCEPT",
		"REJECT",
		"DISCONNECT", "INIT_QP_ATTR", "GET_EVENT", "GET_OPTION", "SET_OPTION", "NOTIFY", "JOIN_IP_MCAST", "LEAVE_MCAST",
		"MIGRATE_ID",
		"QUERY", "BIND", "RESOLVE_ADDR", "JOIN_MCAST", "RESOLVE_IB_SERVICE", "WRITE_CM_EVENT",
	}
	if c < NumCommands {
		return names[c]
	}
	return "unknown command"
}

// The next constants select the data that Query returns (RDMA_USER_CM_QUERY_*).
const (
	QueryAddr = iota
	QueryPath
	QueryGID
)

// The next constants are the levels of options (RDMA_OPTION_*), and the names of the options of the levels ID and IB.
const (
	OptionID = 0
	OptionIB = 1

	OptionIDTOS        = 0
	OptionIDReuseAddr  = 1
	OptionIDAFOnly     = 2
	OptionIDACKTimeout = 3

	OptionIBPath = 1
)

// Hdr starts every command (struct rdma_ucm_cmd_hdr). In is the length of the rest of the command in bytes. Out is the
// size of the buffer for the response in bytes.
type Hdr struct {
	Cmd     Command
	In, Out uint16
}

// SockaddrIn6 is a struct sockaddr_in6, or a struct sockaddr_in followed by padding.
type SockaddrIn6 [28]byte

// Sockaddr is an address of any family (struct __kernel_sockaddr_storage).
type Sockaddr [128]byte

// CreateID creates an ID (struct rdma_ucm_create_id).
type CreateID struct {
	UID      uint64
	Response uint64
	PS       uint16
	QPType   uint8
	Reserved [5]uint8
}

// CreateIDResp is the response to CreateID and the joins (struct rdma_ucm_create_id_resp).
type CreateIDResp struct {
	ID uint32
}

// DestroyID destroys an ID. With LeaveMcast it ends a membership (struct rdma_ucm_destroy_id).
type DestroyID struct {
	Response uint64
	ID       uint32
	Reserved uint32
}

// DestroyIDResp is the response to DestroyID and LeaveMcast (struct rdma_ucm_destroy_id_resp).
type DestroyIDResp struct {
	EventsReported uint32
}

// BindIP binds an ID (struct rdma_ucm_bind_ip).
type BindIP struct {
	Response uint64
	Addr     SockaddrIn6
	ID       uint32
}

// Bind binds an ID to an address of any family (struct rdma_ucm_bind).
type Bind struct {
	ID       uint32
	AddrSize uint16
	Reserved uint16
	Addr     Sockaddr
}

// ResolveIP resolves an address (struct rdma_ucm_resolve_ip).
type ResolveIP struct {
	SrcAddr, DstAddr SockaddrIn6
	ID               uint32
	TimeoutMs        uint32
}

// ResolveAddr resolves an address of any family (struct rdma_ucm_resolve_addr).
type ResolveAddr struct {
	ID               uint32
	TimeoutMs        uint32
	SrcSize, DstSize uint16
	Reserved         uint32
	SrcAddr, DstAddr Sockaddr
}

// ResolveRoute resolves a route (struct rdma_ucm_resolve_route).
type ResolveRoute struct {
	ID        uint32
	TimeoutMs uint32
}

// Query requests the addresses or paths of an ID. Option selects the data. QueryRoute uses the same struct without
// Option (struct rdma_ucm_query).
type Query struct {
	Response uint64
	ID       uint32
	Option   uint32
}

// PathRec is a path (struct ib_user_path_rec).
type PathRec struct {
	DGID, SGID             [16]uint8
	DLID, SLID             uapi.BE16
	RawTraffic             uint32
	FlowLabel              uapi.BE32
	Reversible             uint32
	MTU                    uint32
	PKey                   uapi.BE16
	HopLimit               uint8
	TrafficClass           uint8
	NumbPath               uint8
	SL                     uint8
	MTUSelector            uint8
	RateSelector           uint8
	Rate                   uint8
	PacketLifeTimeSelector uint8
	PacketLifeTime         uint8
	Preference             uint8
}

// QueryRouteResp is the response to QueryRoute (struct rdma_ucm_query_route_resp).
type QueryRouteResp struct {
	NodeGUID         uapi.BE64
	IBRoute          [2]PathRec
	SrcAddr, DstAddr SockaddrIn6
	NumPaths         uint32
	PortNum          uint8
	Reserved         [3]uint8
	IBDevIndex       uint32
	Reserved1        uint32
}

// QueryAddrResp is the response to Query for QueryAddr and QueryGID (struct rdma_ucm_query_addr_resp).
type QueryAddrResp struct {
	NodeGUID         uapi.BE64
	PortNum          uint8
	Reserved         uint8
	PKey             uint16
	SrcSize, DstSize uint16
	SrcAddr, DstAddr Sockaddr
	IBDevIndex       uint32
	Reserved1        uint32
}

// QueryPathResp is the response to Query for QueryPath. NumPaths elements of type PathRecData follow it (struct
// rdma_ucm_query_path_resp).
type QueryPathResp struct {
	NumPaths uint32
	Reserved uint32
}

// PathRecData is a path in the format of subnet administration (struct ib_path_rec_data).
type PathRecData struct {
	Flags    uint32
	Reserved uint32
	PathRec  [64]uint8
}

// The flags of a PathRecData (IB_PATH_*).
const (
	PathGMP           = 1
	PathPrimary       = 1 << 1
	PathAlternate     = 1 << 2
	PathOutbound      = 1 << 3
	PathInbound       = 1 << 4
	PathInboundRev    = 1 << 5
	PathBidirectional = PathOutbound | PathInboundRev
)

// ConnParam holds the parameters of a connection (struct rdma_ucm_conn_param).
type ConnParam struct {
	QPNum              uint32
	QKey               uint32
	PrivateData        [MaxPrivateData]uint8
	PrivateDataLen     uint8
	SRQ                uint8
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        uint8
	RetryCount         uint8
	RNRRetryCount      uint8
	Valid              uint8
}

// UDParam holds the address data of a datagram service (struct rdma_ucm_ud_param).
type UDParam struct {
	QPNum          uint32
	QKey           uint32
	AHAttr         uapi.AHAttr
	PrivateData    [MaxPrivateData]uint8
	PrivateDataLen uint8
	Reserved       [7]uint8
}

// ECE holds the options of enhanced connection establishment (struct rdma_ucm_ece).
type ECE struct {
	VendorID uint32
	AttrMod  uint32
}

// Connect connects an ID (struct rdma_ucm_connect).
type Connect struct {
	ConnParam ConnParam
	ID        uint32
	Reserved  uint32
	ECE       ECE
}

// Listen makes an ID listen (struct rdma_ucm_listen).
type Listen struct {
	ID      uint32
	Backlog uint32
}

// Accept accepts a connection request. If the parameters are not valid, Accept accepts a response to the ID's own
// request (struct rdma_ucm_accept).
type Accept struct {
	UID       uint64
	ConnParam ConnParam
	ID        uint32
	Reserved  uint32
	ECE       ECE
}

// Reject rejects a connection request (struct rdma_ucm_reject).
type Reject struct {
	ID             uint32
	PrivateDataLen uint8
	Reason         uint8
	Reserved       [2]uint8
	PrivateData    [MaxPrivateData]uint8
}

// Disconnect disconnects an ID (struct rdma_ucm_disconnect).
type Disconnect struct {
	ID uint32
}

// InitQPAttr requests attributes of a queue pair (struct rdma_ucm_init_qp_attr).
type InitQPAttr struct {
	Response uint64
	ID       uint32
	QPState  uint32
}

// Notify passes an event of a queue pair to the connection manager (struct rdma_ucm_notify).
type Notify struct {
	ID    uint32
	Event uint32
}

// JoinIPMcast joins a multicast group (struct rdma_ucm_join_ip_mcast).
type JoinIPMcast struct {
	Response uint64
	UID      uint64
	Addr     SockaddrIn6
	ID       uint32
}

// JoinMcast joins a multicast group with an address of any family (struct rdma_ucm_join_mcast).
type JoinMcast struct {
	Response  uint64
	UID       uint64
	ID        uint32
	AddrSize  uint16
	JoinFlags uint16
	Addr      Sockaddr
}

// ResolveIBService requests the records of a service (struct rdma_ucm_resolve_ib_service).
type ResolveIBService struct {
	ID          uint32
	Reserved    uint32
	ServiceID   uint64
	ServiceName [64]uint8
	Flags       uint32
	Reserved1   uint32
}

// WriteCMEvent writes an event to the ID's own file. The first 8 bytes of Param are the argument of the event (struct
// rdma_ucm_write_cm_event).
type WriteCMEvent struct {
	ID       uint32
	Reserved uint32
	Event    uint32
	Status   uint32
	Param    [304]uint8
}

// GetEvent waits for an event (struct rdma_ucm_get_event).
type GetEvent struct {
	Response uint64
}

// EventResp is an event (struct rdma_ucm_event_resp). Param is a ConnParam or a UDParam.
type EventResp struct {
	UID      uint64
	ID       uint32
	Event    uint32
	Status   uint32
	Param    [304]uint8
	Reserved uint32
	ECE      ECE
}

// MinEventResp is the length of an EventResp for older callers. The length excludes the fields that were added later.
const MinEventResp = 324

// SetOption sets an option (struct rdma_ucm_set_option).
type SetOption struct {
	OptVal  uint64
	ID      uint32
	Level   uint32
	OptName uint32
	OptLen  uint32
}

// MigrateID moves an ID to another file (struct rdma_ucm_migrate_id).
type MigrateID struct {
	Response uint64
	ID       uint32
	FD       uint32
}

// MigrateResp is the response to MigrateID (struct rdma_ucm_migrate_resp).
type MigrateResp struct {
	EventsReported uint32
}

// QPAttr holds the attributes of a queue pair (struct ib_uverbs_qp_attr).
type QPAttr struct {
	QPAttrMask       uint32
	QPState          uint32
	CurQPState       uint32
	PathMTU          uint32
	PathMigState     uint32
	QKey             uint32
	RQPSN, SQPSN     uint32
	DestQPNum        uint32
	QPAccessFlags    uint32
	AHAttr           uapi.AHAttr
	AltAHAttr        uapi.AHAttr
	MaxSendWR        uint32
	MaxRecvWR        uint32
	MaxSendSGE       uint32
	MaxRecvSGE       uint32
	MaxInlineData    uint32
	PKeyIndex        uint16
	AltPKeyIndex     uint16
	EnSQDAsyncNotify uint8
	SQDraining       uint8
	MaxRdAtomic      uint8
	MaxDestRdAtomic  uint8
	MinRNRTimer      uint8
	PortNum          uint8
	Timeout          uint8
	RetryCnt         uint8
	RNRRetry         uint8
	AltPortNum       uint8
	AltTimeout       uint8
	Reserved         [5]uint8
}
