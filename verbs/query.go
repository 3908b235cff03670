package verbs

import (
	"fmt"
	"net/netip"

	"verbena/uapi"
)

// DeviceAttr holds the capabilities of a device. (struct ibv_device_attr_ex)
type DeviceAttr struct {
	NodeGUID, SysImageGUID uint64
	VendorID, VendorPartID uint32
	HWVersion              uint32
	Firmware               uint64
	MaxMRSize              uint64 // in bytes
	MaxQP                  int
	MaxQPWR                int // maximum number of work requests per queue
	MaxSGE                 int // maximum number of elements per work request
	MaxSGERead             int // for a READ
	MaxCQ, MaxCQE          int
	MaxMR, MaxPD, MaxMW    int
	MaxQPReads             int // maximum number of READs and atomic operations in flight to a queue pair
	MaxQPInitReads         int // maximum number of READs and atomic operations in flight from a queue pair
	MaxAH                  int
	MaxSRQ, MaxSRQWR       int
	MaxSRQSGE              int
	MaxMulticastGroups     int
	MaxPKeys               int
	Ports                  int
	Atomics                uapi.AtomicCap
	Caps                   uapi.DeviceCapFlags
	ODP                    bool // memory can be registered on demand
}

// Query returns the attributes of the device. Query may sleep. (ibv_query_device_ex)
func (d *Device) Query() (DeviceAttr, error) {
	r, err := d.cmd.QueryDevice()
	if err != nil {
		return DeviceAttr{}, wrapOpError("query", d.name, err)
	}
	b := &r.Base
	return DeviceAttr{
		NodeGUID: b.NodeGUID.Uint64(), SysImageGUID: b.SysImageGUID.Uint64(), VendorID: b.VendorID,
		VendorPartID: b.VendorPartID,
		HWVersion:    b.HWVer, Firmware: b.FWVer, MaxMRSize: b.MaxMRSize, MaxQP: int(b.MaxQP), MaxQPWR: int(b.MaxQPWR),
		MaxSGE:     int(b.MaxSGE),
		MaxSGERead: int(b.MaxSGERD), MaxCQ: int(b.MaxCQ), MaxCQE: int(b.MaxCQE), MaxMR: int(b.MaxMR), MaxPD: int(b.MaxPD),
		MaxMW:      int(b.MaxMW),
		MaxQPReads: int(b.MaxQPRDAtom), MaxQPInitReads: int(b.MaxQPInitRDAtom), MaxAH: int(b.MaxAH), MaxSRQ: int(b.MaxSRQ),
		MaxSRQWR: int(b.MaxSRQWR), MaxSRQSGE: int(b.MaxSRQSGE), MaxMulticastGroups: int(b.MaxMcastGrp),
		MaxPKeys: int(b.MaxPKeys),
		Ports:    int(b.PhysPortCnt), Atomics: b.AtomicCap, Caps: r.DeviceCapFlagsEx,
		ODP: r.ODPCaps.GeneralCaps&uapi.ODPSupport != 0,
	}, nil
}

// MTU is a path MTU, as a code (enum ibv_mtu). The codes range from 1 for 256 bytes to 5 for 4096 bytes.
type MTU uint8

// Bytes returns the MTU in bytes.
func (m MTU) Bytes() int { return 128 << m }

// PortAttr is the state of a port. (struct ibv_port_attr)
type PortAttr struct {
	State      uapi.PortState
	Phys       uapi.PortPhysState
	MaxMTU     MTU
	ActiveMTU  MTU
	GIDs       int // number of entries of the GID table
	PKeys      int
	MaxMessage uint32 // in bytes
	LinkLayer  uapi.LinkLayer
	Width      uapi.PortWidth
	Speed      uapi.PortSpeed
}

// QueryPort returns the state of a port; ports are numbered from 1. QueryPort may sleep. (ibv_query_port)
func (d *Device) QueryPort(port int) (PortAttr, error) {
	if port < 1 || port > 255 {
		return PortAttr{}, wrapOpError(fmt.Sprintf("query port %d", port), d.name, errInvalid)
	}
	ex, err := d.cmd.QueryPort(d.p.DriverID(), uint8(port))
	if err != nil {
		return PortAttr{}, wrapOpError(fmt.Sprintf("query port %d", port), d.name, err)
	}
	r := &ex.LegacyResp
	return PortAttr{
		State: r.State, Phys: r.PhysState, MaxMTU: MTU(r.MaxMTU), ActiveMTU: MTU(r.ActiveMTU), GIDs: int(r.GIDTblLen),
		PKeys:      int(r.PKeyTblLen),
		MaxMessage: r.MaxMsgSz, LinkLayer: r.LinkLayer, Width: r.ActiveWidth,
		Speed: uapi.PortSpeed(max(uint32(r.ActiveSpeed), ex.ActiveSpeedEx)),
	}, nil
}

// QueryPortSpeed returns the effective speed of a port in units of 100 Mb/s. Width and speed of PortAttr cannot express
// every speed. QueryPortSpeed returns EOPNOTSUPP if the driver does not report the speed, and EPROTONOSUPPORT on a
// kernel without the method. QueryPortSpeed may sleep. (ibv_query_port_speed)
func (d *Device) QueryPortSpeed(port int) (uint64, error) {
	if port < 1 || port > 255 {
		return 0, wrapOpError(fmt.Sprintf("query the speed of port %d", port), d.name, errInvalid)
	}
	speed, err := d.cmd.QueryPortSpeed(d.p.DriverID(), uint8(port))
	if err != nil {
		return 0, wrapOpError(fmt.Sprintf("query the speed of port %d", port), d.name, err)
	}
	return speed, nil
}

// GID is a global identifier. On Ethernet it is an IPv6 address or a mapped IPv4 address.
type GID [16]byte

// GIDOf returns the GID of an address.
func GIDOf(a netip.Addr) GID { return a.As16() }

// Addr returns the GID as an address. A mapped address is returned as IPv4.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// String returns the GID as an address.
func (g GID) String() string { return g.Addr().String() }

// MarshalText returns the GID as an address. The error is always nil.
func (g GID) MarshalText() ([]byte, error) { return g.Addr().MarshalText() }

// UnmarshalText parses an address.
func (g *GID) UnmarshalText(text []byte) error {
	a, err := netip.ParseAddr(string(text))
	if err != nil {
		return fmt.Errorf("verbs: GID %q: %w", text, err)
	}
	*g = GIDOf(a)
	return nil
}

// GIDEntry is a valid entry of a port's GID table. (struct ibv_gid_entry)
type GIDEntry struct {
	GID       GID
	Index     int
	Port      int
	Type      uapi.GIDType
	Interface int // index of the network interface, or 0
}

// GIDs returns the valid entries of the GID tables, at most 256. GIDs may sleep. (ibv_query_gid_table)
func (d *Device) GIDs() ([]GIDEntry, error) {
	table, err := d.cmd.GIDTable(d.p.DriverID())
	if err != nil {
		return nil, wrapOpError("query", d.name, err)
	}
	list := make([]GIDEntry, len(table))
	for i, e := range table {
		list[i] = GIDEntry{GID: GID(e.GID), Index: int(e.GIDIndex), Port: int(e.PortNum), Type: e.GIDType,
			Interface: int(e.NetdevIfindex)}
	}
	return list, nil
}

// DefaultGID returns the preferred entry of a port for connections: RoCE v2 with an IPv4 address, else RoCE v2 with an
// IPv6 address that is not link-local, else any entry. DefaultGID may sleep.
func (d *Device) DefaultGID(port int) (GIDEntry, error) {
	list, err := d.GIDs()
	if err != nil {
		return GIDEntry{}, err
	}
	rank := func(e GIDEntry) int {
		a := e.GID.Addr()
		switch {
		case e.Port != port:
			return 0
		case e.Type != uapi.GIDTypeRoCEV2:
			return 1
		case a.IsLinkLocalUnicast():
			return 2
		case a.Is6():
			return 3
		}
		return 4
	}
	var best GIDEntry
	found := 0
	for _, e := range list {
		if r := rank(e); r > found {
			best, found = e, r
		}
	}
	if found == 0 {
		return best, wrapOpError(fmt.Sprintf("find a GID of port %d", port), d.name, errNoGID)
	}
	return best, nil
}
