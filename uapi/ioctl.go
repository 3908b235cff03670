package uapi

// The ioctl request numbers of RDMA files.
const (
	// IoctlMagic is the type byte of all RDMA requests (RDMA_IOCTL_MAGIC).
	IoctlMagic = 0x1b
	// VerbsIoctl is the request number of the ioctl form of a command (RDMA_VERBS_IOCTL). The argument is an IoctlHdr
	// with its attributes.
	VerbsIoctl = 0xc0181b01

	// The next constants are the requests of /dev/infiniband/umadN, which share the type byte (IB_USER_MAD_*).
	UserMADRegisterAgent   = 0xc01c1b01
	UserMADUnregisterAgent = 0x40041b02
	UserMADEnablePKey      = 0x1b03
	UserMADRegisterAgent2  = 0xc0281b04
)

// IoctlHdr starts the argument of VerbsIoctl (struct ib_uverbs_ioctl_hdr).
// NumAttrs attributes of type Attr follow.
type IoctlHdr struct {
	Length    uint16 // length of header and attributes in bytes
	ObjectID  ObjectID
	MethodID  MethodID
	NumAttrs  uint16
	Reserved1 uint64 // zero
	DriverID  DriverID
	Reserved2 uint32 // zero
}

// Attr is one attribute of a method call (struct ib_uverbs_attr).
type Attr struct {
	AttrID   AttrID
	Len      uint16 // length in bytes, for pointers and arrays of handles
	Flags    AttrFlags
	AttrData AttrEnumData
	// Data is a user address, input of at most 8 bytes, a handle, or a file descriptor (a signed number).
	Data uint64
}

// AttrEnumData is the chosen element of an enumeration attribute (ib_uverbs_attr.attr_data.enum_data). AttrEnumData is
// zero in all other attributes.
type AttrEnumData struct {
	ElemID   uint8
	Reserved uint8
}

// AttrFlags are the flags of an Attr (UVERBS_ATTR_F_*).
type AttrFlags uint16

// The attribute flags.
const (
	// AttrFMandatory is a flag that the caller sets. A call fails if it has an unknown attribute with this flag.
	AttrFMandatory AttrFlags = 1 << 0
	// AttrFValidOutput is a flag that the callee sets if it has written the attribute.
	AttrFValidOutput AttrFlags = 1 << 1
)

// DriverID is the driver that defines the driver-specific methods and attributes of an ioctl (enum rdma_driver_id).
type DriverID uint32

// The drivers (RDMA_DRIVER_*).
const (
	DriverUnknown DriverID = iota
	DriverMLX5
	DriverMLX4
	DriverCXGB3
	DriverCXGB4
	DriverMTHCA
	DriverBNXTRE
	DriverOCRDMA
	DriverNES
	DriverI40IW
	DriverVMWPVRDMA
	DriverQEDR
	DriverHNS
	DriverUSNIC
	DriverRXE
	DriverHFI1
	DriverQIB
	DriverEFA
	DriverSIW
	DriverERDMA
	DriverMANA
	DriverIONIC

	// DriverIRDMA is the successor of DriverI40IW and has the same number.
	DriverIRDMA = DriverI40IW
)

// CoreSupport contains the features of the core (enum ib_uverbs_core_support). AttrGetContextCoreSupport returns these
// features.
type CoreSupport uint32

// The features of the core (IB_UVERBS_CORE_SUPPORT_*).
const (
	CoreSupportOptionalMRAccess CoreSupport = 1 << 0 // the caller may pass rights in AccessOptionalRange
	CoreSupportRobustUData      CoreSupport = 1 << 1
)

// GIDEntry is one entry of the GID table (struct ib_uverbs_gid_entry), as
// MethodQueryGIDTable and MethodQueryGIDEntry return it.
type GIDEntry struct {
	GID           [16]uint8 // __aligned_u64[2] in C, in network byte order
	GIDIndex      uint32
	PortNum       uint32
	GIDType       GIDType
	NetdevIfindex uint32 // 0 means no network interface
}

// GIDType is the wire protocol of a GID (enum ib_uverbs_gid_type).
type GIDType uint32

// The GID types (IB_UVERBS_GID_TYPE_*).
const (
	GIDTypeIB     GIDType = iota // IB
	GIDTypeRoCEV1                // RoCE v1
	GIDTypeRoCEV2                // RoCE v2
)
