package uapi

// AllocPD allocates a protection domain (struct ib_uverbs_alloc_pd).
type AllocPD struct {
	Response uint64 // user address of AllocPDResp
}

// AllocPDResp is the response to AllocPD (struct ib_uverbs_alloc_pd_resp).
type AllocPDResp struct {
	PDHandle uint32
}

// DeallocPD frees a protection domain (struct ib_uverbs_dealloc_pd).
type DeallocPD struct {
	PDHandle uint32
}

// OpenXRCD opens or creates an XRC domain (struct ib_uverbs_open_xrcd).
type OpenXRCD struct {
	Response uint64 // user address of OpenXRCDResp
	FD       uint32 // descriptor of a file; its inode identifies the domain; ^0 means a private domain
	OFlags   uint32 // O_CREAT and O_EXCL, as in open(2)
}

// OpenXRCDResp is the response to OpenXRCD (struct ib_uverbs_open_xrcd_resp).
type OpenXRCDResp struct {
	XRCDHandle uint32
}

// CloseXRCD closes an XRC domain (struct ib_uverbs_close_xrcd).
type CloseXRCD struct {
	XRCDHandle uint32
}
