package uapi

// RegMR registers memory (struct ib_uverbs_reg_mr).
type RegMR struct {
	Response    uint64 // user address of RegMRResp
	Start       uint64 // user address of the first byte
	Length      uint64 // bytes
	HCAVA       uint64 // address that represents Start in work requests and for peers
	PDHandle    uint32
	AccessFlags AccessFlags
}

// RegMRResp is the response to RegMR (struct ib_uverbs_reg_mr_resp).
type RegMRResp struct {
	MRHandle uint32
	LKey     uint32
	RKey     uint32
}

// ReregMR changes a registration (struct ib_uverbs_rereg_mr). The kernel reads only the fields that Flags selects.
type ReregMR struct {
	Response    uint64 // user address of ReregMRResp
	MRHandle    uint32
	Flags       ReregMRFlags
	Start       uint64
	Length      uint64 // bytes
	HCAVA       uint64
	PDHandle    uint32
	AccessFlags AccessFlags
}

// ReregMRResp is the response to ReregMR (struct ib_uverbs_rereg_mr_resp).
type ReregMRResp struct {
	LKey uint32
	RKey uint32
}

// DeregMR ends a registration (struct ib_uverbs_dereg_mr).
type DeregMR struct {
	MRHandle uint32
}

// AllocMW allocates a memory window (struct ib_uverbs_alloc_mw).
type AllocMW struct {
	Response uint64 // user address of AllocMWResp
	PDHandle uint32
	MWType   MWType
	Reserved [3]uint8
}

// AllocMWResp is the response to AllocMW (struct ib_uverbs_alloc_mw_resp).
type AllocMWResp struct {
	MWHandle uint32
	RKey     uint32
}

// DeallocMW frees a memory window (struct ib_uverbs_dealloc_mw).
type DeallocMW struct {
	MWHandle uint32
}

// AccessFlags are the access rights of a memory registration or of a QP's peer (enum ib_uverbs_access_flags).
type AccessFlags uint32

// The access rights (IB_UVERBS_ACCESS_*). A device may ignore unknown rights in AccessOptionalRange. A device must
// reject all other unknown rights.
const (
	AccessLocalWrite      AccessFlags = 1 << 0
	AccessRemoteWrite     AccessFlags = 1 << 1
	AccessRemoteRead      AccessFlags = 1 << 2
	AccessRemoteAtomic    AccessFlags = 1 << 3
	AccessMWBind          AccessFlags = 1 << 4
	AccessZeroBased       AccessFlags = 1 << 5 // addresses are offsets from the start
	AccessOnDemand        AccessFlags = 1 << 6 // pages are not pinned
	AccessHugeTLB         AccessFlags = 1 << 7
	AccessFlushGlobal     AccessFlags = 1 << 8
	AccessFlushPersistent AccessFlags = 1 << 9
	AccessRelaxedOrdering AccessFlags = AccessOptionalFirst

	AccessOptionalFirst AccessFlags = 1 << 20
	AccessOptionalLast  AccessFlags = 1 << 29
	AccessOptionalRange AccessFlags = (AccessOptionalLast<<1 - 1) &^ (AccessOptionalFirst - 1)
)

// Writable reports whether the device may store into memory that is registered with these rights.
func (a AccessFlags) Writable() bool {
	return a&(AccessLocalWrite|AccessRemoteWrite|AccessRemoteAtomic|AccessMWBind) != 0
}

// ReregMRFlags select the properties that ReregMR changes (enum ibv_rereg_mr_flags).
type ReregMRFlags uint32

// The changes of a registration (IBV_REREG_MR_*).
const (
	ReregMRChangeTranslation ReregMRFlags = 1 << 0 // Start, Length, HCAVA
	ReregMRChangePD          ReregMRFlags = 1 << 1
	ReregMRChangeAccess      ReregMRFlags = 1 << 2
)

// AdviseMRAdvice is the type of the attribute AttrAdviseMRAdvice (enum ib_uverbs_advise_mr_advice).
type AdviseMRAdvice uint32

// The kinds of advice (IB_UVERBS_ADVISE_MR_ADVICE_*).
const (
	AdviseMRAdvicePrefetch AdviseMRAdvice = iota
	AdviseMRAdvicePrefetchWrite
	AdviseMRAdvicePrefetchNoFault
)

// AdviseMRFlags is the type of the attribute AttrAdviseMRFlags (enum ib_uverbs_advise_mr_flag).
type AdviseMRFlags uint32

// The flags of advice (IB_UVERBS_ADVISE_MR_FLAG_*).
const (
	AdviseMRFlagFlush AdviseMRFlags = 1 << 0 // wait for completion
)

// MWType is the type of a memory window (enum ibv_mw_type).
type MWType uint8

// The memory window types (IBV_MW_TYPE_*).
const (
	MWType1 MWType = 1 // bound by ibv_bind_mw
	MWType2 MWType = 2 // bound by a work request of the QP that owns the window
)
