package nldev

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
)

// Resources holds functions that list the objects of a device, each in any order. The answers are sorted by
// identifier. A nil function lists no objects. Answer calls a function at most once for each message.
type Resources struct {
	PDs      func() []PD
	CQs      func() []CQ
	QPs      func() []QP
	CMIDs    func() []CMID
	MRs      func() []MR
	Contexts func() []Context
	SRQs     func() []SRQ
}

// An Owner is the process, or the part of the service, that created an object.
type Owner struct {
	// PID is the process that created a user's object, in the process ID namespace of the requesting program. PID
	// is 0 if the process is not visible there or has ended.
	PID uint32
	// Kernel names the creator of an object that no user context owns. An object with an empty Kernel belongs to a
	// user.
	Kernel string
}

// isUserContext reports whether a user context owns the object.
func (o Owner) isUserContext() bool { return o.Kernel == "" }

// putOwner mirrors fill_res_name_pid.
func (o Owner) putOwner(d *datagram) {
	switch {
	case !o.isUserContext():
		d.putText(attrResKernName, o.Kernel)
	case o.PID != 0:
		d.putU32(attrResPID, o.PID)
	}
}

// A PD is a protection domain.
type PD struct {
	ID               uint32
	Context          uint32 // identifier of the user context, for a user's PD
	UseCount         uint64 // number of objects that use the PD
	LocalDMALKey     uint32
	GlobalRKey       uint32 // the unsafe global rkey, if UnsafeGlobalRKey is true
	UnsafeGlobalRKey bool
	Owner
}

// A CQ is a completion queue.
type CQ struct {
	ID       uint32
	Context  uint32 // identifier of the user context, for a user's CQ
	CQE      uint32 // number of entries
	UseCount uint64 // number of QPs and SRQs that use the CQ
	PollCtx  uint8  // enum ib_poll_context, for a kernel's CQ
	DIM      bool   // events are moderated
	Owner
}

// A QP is a queue pair.
type QP struct {
	Num          uint32 // number and identifier
	Port         uint32 // 0 before the transition to INIT
	PD           uint32 // identifier of the protection domain, for a user's QP
	Type         uint8  // enum ib_qp_type, 2 for RC
	State        uint8  // enum ib_qp_state, 3 for RTS
	RemoteNum    uint32 // for RC and UC
	RQPSN        uint32 // for RC and UC
	SQPSN        uint32
	PathMigState uint8 // enum ib_mig_state, for RC, UC and XRC
	Owner
}

// A CMID is an identifier of the connection manager that is bound to the device.
type CMID struct {
	ID       uint32
	Port     uint32         // 0 if the ID is bound to no port
	QPNum    uint32         // 0 if the ID has no QP
	QPType   uint8          // enum ib_qp_type, if QPNum is not 0
	PS       uint32         // enum rdma_ucm_port_space, 0x0106 for TCP
	State    uint8          // enum rdma_cm_state
	Src, Dst netip.AddrPort // the zero value means unknown
	Owner
}

// An MR is a memory region.
type MR struct {
	ID         uint32
	PD         uint32 // identifier of the protection domain, for a user's MR
	Length     uint64 // length in bytes
	LKey, RKey uint32
	Owner
}

// A Context is a user context, which is one open file of user verbs.
type Context struct {
	ID uint32
	Owner
}

// An SRQ is a shared receive queue.
type SRQ struct {
	ID   uint32
	PD   uint32   // identifier of the protection domain
	CQ   uint32   // identifier of the completion queue, for an SRQ of type XRC or tag matching
	Type uint8    // enum ib_srq_type: 0 basic, 1 XRC, 2 tag matching
	QPs  []uint32 // numbers of the QPs that receive from the SRQ, in any order
	Owner
}

// The following constants are the values of enum ib_qp_type that determine the attributes of a QP.
const (
	qptRC     = 2
	qptUC     = 3
	qptXRCIni = 9
	qptXRCTgt = 10
)

// The following constants are the values of enum ib_srq_type with a completion queue.
const (
	srqXRC = 1
	srqTM  = 2
)

// A requestView holds the properties of a request that affect the reported attributes.
type requestView struct {
	admin bool   // the program has CAP_NET_ADMIN
	port  uint32 // selects objects of this port; 0 selects all objects
}

// A resource is one object of a device.
type resource interface {
	// id returns the identifier, which is unique among the objects of one kind.
	id() uint32
	// putAttrs appends the attributes of the object. If v requests another port than the object's port, putAttrs
	// returns EAGAIN and appends nothing.
	putAttrs(d *datagram, v requestView) syscall.Errno
}

// A resourceKind describes a kind of resources with its attributes. Mirrors struct nldev_fill_res_entry.
type resourceKind struct {
	name             string // name in the summary
	table, entry, id uint16 // types of the attributes
	perDevice        bool   // objects are not bound to a port
	list             func(*Resources) []resource
}

// The following variables are the kinds of resources.
var (
	kindPD   = &resourceKind{"pd", attrResPD, attrResPDEntry, attrResPDN, true, newResourceLister((*Resources).pdsFunc)}
	kindCQ   = &resourceKind{"cq", attrResCQ, attrResCQEntry, attrResCQN, true, newResourceLister((*Resources).cqsFunc)}
	kindQP   = &resourceKind{"qp", attrResQP, attrResQPEntry, attrResLQPN, false, newResourceLister((*Resources).qpsFunc)}
	kindCMID = &resourceKind{"cm_id", attrResCMID, attrResCMIDEntry, attrResCMIDN, false,
		newResourceLister((*Resources).cmidsFunc)}
	kindMR  = &resourceKind{"mr", attrResMR, attrResMREntry, attrResMRN, true, newResourceLister((*Resources).mrsFunc)}
	kindCtx = &resourceKind{"ctx", attrResCTX, attrResCTXEntry, attrResCTXN, true,
		newResourceLister((*Resources).contextsFunc)}
	kindSRQ = &resourceKind{"srq", attrResSRQ, attrResSRQEntry, attrResSRQN, true,
		newResourceLister((*Resources).srqsFunc)}
	// kindCounter represents counters bound to QPs, which this package does not have.
	kindCounter = &resourceKind{"counter", attrStatCounter, attrStatCounterEntry, attrStatCounterID, false,
		func(*Resources) []resource { return nil }}
)

// summaryKinds lists the kinds of a summary in the order of enum rdma_restrack_type.
var summaryKinds = []*resourceKind{kindPD, kindCQ, kindQP, kindCMID, kindMR, kindCtx, kindSRQ}

func (r *Resources) pdsFunc() func() []PD           { return r.PDs }
func (r *Resources) cqsFunc() func() []CQ           { return r.CQs }
func (r *Resources) qpsFunc() func() []QP           { return r.QPs }
func (r *Resources) cmidsFunc() func() []CMID       { return r.CMIDs }
func (r *Resources) mrsFunc() func() []MR           { return r.MRs }
func (r *Resources) contextsFunc() func() []Context { return r.Contexts }
func (r *Resources) srqsFunc() func() []SRQ         { return r.SRQs }

// newResourceLister returns a function that lists the resources of one field of Resources, ordered by identifier.
func newResourceLister[T any, P interface {
	*T
	resource
}](field func(*Resources) func() []T) func(*Resources) []resource {
	return func(r *Resources) []resource {
		f := field(r)
		if f == nil {
			return nil
		}
		items := f()
		out := make([]resource, len(items))
		for i := range items {
			out[i] = P(&items[i])
		}
		slices.SortStableFunc(out, func(a, b resource) int { return cmp.Compare(a.id(), b.id()) })
		return out
	}
}

// findResource returns the resource with the identifier, or false if there is none. list must be sorted by identifier.
func findResource(list []resource, id uint32) (resource, bool) {
	i, ok := slices.BinarySearchFunc(list, id, func(r resource, id uint32) int { return cmp.Compare(r.id(), id) })
	if !ok {
		return nil, false
	}
	return list[i], true
}

func (r *PD) id() uint32      { return r.ID }
func (r *CQ) id() uint32      { return r.ID }
func (r *QP) id() uint32      { return r.Num }
func (r *CMID) id() uint32    { return r.ID }
func (r *MR) id() uint32      { return r.ID }
func (r *Context) id() uint32 { return r.ID }
func (r *SRQ) id() uint32     { return r.ID }

// putAttrs mirrors fill_res_pd_entry.
func (r *PD) putAttrs(d *datagram, v requestView) syscall.Errno {
	if v.admin {
		d.putU32(attrResLocalDMALKEY, r.LocalDMALKey)
		if r.UnsafeGlobalRKey {
			d.putU32(attrResUnsafeGlobalRKEY, r.GlobalRKey)
		}
	}
	d.putU64(attrResUsecnt, r.UseCount)
	d.putU32(attrResPDN, r.ID)
	if r.isUserContext() {
		d.putU32(attrResCTXN, r.Context)
	}
	r.Owner.putOwner(d)
	return 0
}

// putAttrs mirrors fill_res_cq_entry.
func (r *CQ) putAttrs(d *datagram, _ requestView) syscall.Errno {
	d.putU32(attrResCQE, r.CQE)
	d.putU64(attrResUsecnt, r.UseCount)
	if !r.isUserContext() {
		d.putU8(attrResPollCTX, r.PollCtx)
	}
	d.putFlag(attrDevDIM, r.DIM)
	d.putU32(attrResCQN, r.ID)
	if r.isUserContext() {
		d.putU32(attrResCTXN, r.Context)
	}
	r.Owner.putOwner(d)
	return 0
}

// putAttrs mirrors fill_res_qp_entry and fill_res_qp_entry_query.
func (r *QP) putAttrs(d *datagram, v requestView) syscall.Errno {
	if v.port != 0 && v.port != r.Port {
		return syscall.EAGAIN
	}
	if r.Port != 0 {
		d.putU32(attrPortIndex, r.Port)
	}
	d.putU32(attrResLQPN, r.Num)
	if r.isUserContext() {
		d.putU32(attrResPDN, r.PD)
	}
	r.Owner.putOwner(d)
	connected := r.Type == qptRC || r.Type == qptUC
	if connected {
		d.putU32(attrResRQPN, r.RemoteNum)
		d.putU32(attrResRQPSN, r.RQPSN)
	}
	d.putU32(attrResSQPSN, r.SQPSN)
	if connected || r.Type == qptXRCIni || r.Type == qptXRCTgt {
		d.putU8(attrResPathMigState, r.PathMigState)
	}
	d.putU8(attrResType, r.Type)
	d.putU8(attrResState, r.State)
	return 0
}

// putAttrs mirrors fill_res_cm_id_entry.
func (r *CMID) putAttrs(d *datagram, v requestView) syscall.Errno {
	if v.port != 0 && v.port != r.Port {
		return syscall.EAGAIN
	}
	if r.Port != 0 {
		d.putU32(attrPortIndex, r.Port)
	}
	if r.QPNum != 0 {
		d.putU32(attrResLQPN, r.QPNum)
		d.putU8(attrResType, r.QPType)
	}
	d.putU32(attrResPS, r.PS)
	d.putU8(attrResState, r.State)
	d.putSockaddr(attrResSrcAddr, r.Src)
	d.putSockaddr(attrResDstAddr, r.Dst)
	d.putU32(attrResCMIDN, r.ID)
	r.Owner.putOwner(d)
	return 0
}

// putAttrs mirrors fill_res_mr_entry.
func (r *MR) putAttrs(d *datagram, v requestView) syscall.Errno {
	if v.admin {
		d.putU32(attrResRKEY, r.RKey)
		d.putU32(attrResLKEY, r.LKey)
	}
	d.putU64(attrResMrlen, r.Length)
	d.putU32(attrResMRN, r.ID)
	if r.isUserContext() {
		d.putU32(attrResPDN, r.PD)
	}
	r.Owner.putOwner(d)
	return 0
}

// putAttrs mirrors fill_res_ctx_entry.
func (r *Context) putAttrs(d *datagram, _ requestView) syscall.Errno {
	if r.isUserContext() {
		d.putU32(attrResCTXN, r.ID)
		r.Owner.putOwner(d)
	}
	return 0
}

// putAttrs mirrors fill_res_srq_entry.
func (r *SRQ) putAttrs(d *datagram, _ requestView) syscall.Errno {
	d.putU32(attrResSRQN, r.ID)
	d.putU8(attrResType, r.Type)
	d.putU32(attrResPDN, r.PD)
	if r.Type == srqXRC || r.Type == srqTM {
		d.putU32(attrResCQN, r.CQ)
	}
	r.fillQPs(d)
	r.Owner.putOwner(d)
	return 0
}

// fillQPs appends the QPs as ranges of consecutive numbers. Mirrors fill_res_srq_qps.
func (r *SRQ) fillQPs(d *datagram) {
	nums := slices.Clone(r.QPs)
	slices.Sort(nums)
	nums = slices.Compact(nums)

	table := d.beginNest(attrResQP | attrFlagNested)
	for len(nums) > 0 && !d.full {
		n := 1
		for n < len(nums) && nums[n] == nums[n-1]+1 {
			n++
		}
		entry := d.beginNest(attrResQPEntry | attrFlagNested)
		if n == 1 {
			d.putU32(attrResLQPN, nums[0])
		} else {
			d.putU32(attrMinRange, nums[0])
			d.putU32(attrMaxRange, nums[n-1])
		}
		d.endNest(entry)
		nums = nums[n:]
	}
	d.endNest(table)
}

// sockaddrSize is the size of struct sockaddr_storage in bytes.
const sockaddrSize = 128

// putSockaddr appends an address as a struct sockaddr_in or sockaddr_in6 in a sockaddr_storage. putSockaddr appends
// nothing for an address that is not valid. A zone that is not a number yields scope 0.
func (d *datagram) putSockaddr(typ uint16, addr netip.AddrPort) {
	ip := addr.Addr()
	if !ip.IsValid() {
		return
	}
	p := d.reserveAttr(typ, sockaddrSize)
	if p == nil {
		return
	}
	binary.BigEndian.PutUint16(p[2:], addr.Port())
	if ip.Is4() {
		binary.NativeEndian.PutUint16(p, syscall.AF_INET)
		copy(p[4:], ip.AsSlice())
		return
	}
	binary.NativeEndian.PutUint16(p, syscall.AF_INET6)
	copy(p[8:], ip.AsSlice())
	scope, _ := strconv.ParseUint(ip.Zone(), 10, 32)
	binary.NativeEndian.PutUint32(p[24:], uint32(scope))
}
