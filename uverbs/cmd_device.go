package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/uapi"
)

func putUint32(b []byte, v uint32) { binary.NativeEndian.PutUint32(b, v) }

func uint64At(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }

// cmdGetContext creates the context and its first asynchronous event file. (ib_uverbs_get_context)
func cmdGetContext(c *call) error {
	if _, err := decodeRequest[uapi.GetContext](c); err != nil {
		return err
	}
	e, reader, err := c.f.events.newAsync()
	if err != nil {
		return err
	}
	if err := c.f.openContext(&c.udata); err != nil {
		unix.Close(reader)
		c.f.events.undoNewFile(e)
		return err
	}
	c.reader = reader
	setResponse(c, uapi.GetContextResp{NumCompVectors: uint32(c.f.dev.srv.opts.CompVectors)})
	c.commit = c.f.commitContext
	c.abort = func() {
		c.f.events.undoNewFile(e)
		c.f.abortContext()
	}
	return nil
}

// cmdQueryDevice returns the attributes of the device. (ib_uverbs_query_device)
func cmdQueryDevice(c *call) error {
	if err := c.f.checkContext(); err != nil {
		return err
	}
	if _, err := decodeRequest[uapi.QueryDevice](c); err != nil {
		return err
	}
	attr, err := c.f.dev.ib.QueryDevice()
	if err != nil {
		return err
	}
	setResponse(c, toDeviceResp(&attr))
	return nil
}

// cmdExQueryDevice also returns the extended attributes. (ib_uverbs_ex_query_device)
func cmdExQueryDevice(c *call) error {
	if err := c.f.checkContext(); err != nil {
		return err
	}
	req, err := decodeRequest[uapi.ExQueryDevice](c)
	if err != nil {
		return err
	}
	if req.CompMask != 0 || req.Reserved != 0 {
		return fmt.Errorf("reserved fields are not zero: %w", syscall.EINVAL)
	}
	attr, err := c.f.dev.ib.QueryDevice()
	if err != nil {
		return err
	}
	setResponse(c, uapi.ExQueryDeviceResp{
		Base:             toDeviceResp(&attr),
		ResponseLength:   responseLength[uapi.ExQueryDeviceResp](c),
		DeviceCapFlagsEx: attr.DeviceCapFlags,
		ODPCaps: uapi.ODPCaps{
			GeneralCaps: attr.ODP.General,
			PerTransportCaps: uapi.ODPPerTransportCaps{
				RCODPCaps: attr.ODP.RC,
				UCODPCaps: attr.ODP.UC,
				UDODPCaps: attr.ODP.UD,
			},
		},
		XRCODPCaps: attr.ODP.XRC,
	})
	if d, ok := ib.As[deviceResponder](userOps.Driver(c.f.dev.ib)); ok {
		d.RespondDevice(&attr, &c.udata)
	}
	return nil
}

// deviceResponder is implemented by an [ib.Driver] with private attributes of the device.
// (ib_device_ops.query_device)
type deviceResponder interface {
	// RespondDevice writes the driver's response. RespondDevice may not sleep.
	RespondDevice(a *ib.DeviceAttr, u *ib.Udata)
}

// toDeviceResp converts the attributes of a device to the user ABI. (copy_query_dev_fields)
func toDeviceResp(a *ib.DeviceAttr) uapi.QueryDeviceResp {
	return uapi.QueryDeviceResp{
		FWVer:                 a.FWVer,
		NodeGUID:              uapi.NewBE64(a.NodeGUID),
		SysImageGUID:          uapi.NewBE64(a.SysImageGUID),
		MaxMRSize:             a.MaxMRSize,
		PageSizeCap:           a.PageSizeCap,
		VendorID:              a.VendorID,
		VendorPartID:          a.VendorPartID,
		HWVer:                 a.HWVer,
		MaxQP:                 uint32(a.MaxQP),
		MaxQPWR:               uint32(a.MaxQPWR),
		DeviceCapFlags:        uint32(a.DeviceCapFlags),
		MaxSGE:                uint32(min(a.MaxSendSGE, a.MaxRecvSGE)),
		MaxSGERD:              uint32(a.MaxSGERd),
		MaxCQ:                 uint32(a.MaxCQ),
		MaxCQE:                uint32(a.MaxCQE),
		MaxMR:                 uint32(a.MaxMR),
		MaxPD:                 uint32(a.MaxPD),
		MaxQPRDAtom:           uint32(a.MaxQPRdAtom),
		MaxEERDAtom:           uint32(a.MaxEERdAtom),
		MaxResRDAtom:          uint32(a.MaxResRdAtom),
		MaxQPInitRDAtom:       uint32(a.MaxQPInitRdAtom),
		MaxEEInitRDAtom:       uint32(a.MaxEEInitRdAtom),
		AtomicCap:             a.AtomicCap,
		MaxEE:                 uint32(a.MaxEE),
		MaxRDD:                uint32(a.MaxRDD),
		MaxMW:                 uint32(a.MaxMW),
		MaxRawIPv6QP:          uint32(a.MaxRawIPv6QP),
		MaxRawEthyQP:          uint32(a.MaxRawEthyQP),
		MaxMcastGrp:           uint32(a.MaxMcastGrp),
		MaxMcastQPAttach:      uint32(a.MaxMcastQPAttach),
		MaxTotalMcastQPAttach: uint32(a.MaxTotalMcastAtch),
		MaxAH:                 uint32(a.MaxAH),
		MaxSRQ:                uint32(a.MaxSRQ),
		MaxSRQWR:              uint32(a.MaxSRQWR),
		MaxSRQSGE:             uint32(a.MaxSRQSGE),
		MaxPKeys:              a.MaxPKeys,
		LocalCAAckDelay:       a.LocalCAAckDelay,
		PhysPortCnt:           uint8(min(a.PhysPorts, 255)),
	}
}

// isValidPort reports whether the device has the port. (rdma_is_port_valid)
func (d *Device) isValidPort(port int) bool { return port >= 1 && port <= d.ports }

// cmdQueryPort returns the state of a port. (ib_uverbs_query_port)
func cmdQueryPort(c *call) error {
	if err := c.f.checkContext(); err != nil {
		return err
	}
	req, err := decodeRequest[uapi.QueryPort](c)
	if err != nil {
		return err
	}
	a, err := c.f.dev.queryPort(int(req.PortNum))
	if err != nil {
		return err
	}
	setResponse(c, portResp(&a))
	return nil
}

// queryPort returns the state of a port, or EINVAL if the device does not have the port.
func (d *Device) queryPort(port int) (ib.PortAttr, error) {
	if !d.isValidPort(port) {
		return ib.PortAttr{}, fmt.Errorf("no port %d: %w", port, syscall.EINVAL)
	}
	return d.ib.QueryPort(port)
}

// portResp returns the state of a port in the user ABI. (copy_port_attr_to_resp)
func portResp(a *ib.PortAttr) uapi.QueryPortResp {
	resp := uapi.QueryPortResp{
		PortCapFlags:  uapi.PortCapFlags(a.CapFlags),
		MaxMsgSz:      a.MaxMsgSize,
		BadPKeyCntr:   a.BadPKeyCounter,
		QKeyViolCntr:  a.QKeyViolations,
		GIDTblLen:     uint32(a.GIDTableLen),
		PKeyTblLen:    uint16(a.PKeyTableLen),
		LID:           a.LID,
		SMLID:         a.SMLID,
		State:         a.State,
		MaxMTU:        uint8(a.MaxMTU),
		ActiveMTU:     uint8(a.ActiveMTU),
		LMC:           a.LMC,
		MaxVLNum:      a.MaxVLNum,
		SMSL:          a.SMSL,
		SubnetTimeout: a.SubnetTimeout,
		InitTypeReply: a.InitTypeReply,
		ActiveWidth:   uapi.PortWidth(a.ActiveWidth),
		ActiveSpeed:   uint8(a.ActiveSpeed), // 0 for XDR, as on Linux
		PhysState:     uapi.PortPhysState(a.PhysState),
		LinkLayer:     a.LinkLayer,
	}
	if a.LinkLayer == ib.LinkEthernet { // RoCE: GIDs are IP addresses, and every address has a GRH
		resp.PortCapFlags |= uapi.PCFIPBasedGIDs
		resp.Flags |= uapi.QPFGRHRequired
	}
	return resp
}

// gidEntry returns an entry of a GID table in the user ABI. gidEntry returns ENODATA if the entry is empty.
func (d *Device) gidEntry(port, index int) (uapi.GIDEntry, error) {
	e, err := d.ib.QueryGID(port, index)
	if err != nil {
		return uapi.GIDEntry{}, err
	}
	if e.GID.IsZero() {
		return uapi.GIDEntry{}, fmt.Errorf("port %d has no GID %d: %w", port, index, syscall.ENODATA)
	}
	return uapi.GIDEntry{
		GID:           e.GID,
		GIDIndex:      uint32(index),
		PortNum:       uint32(port),
		GIDType:       e.Type,
		NetdevIfindex: uint32(e.IfIndex),
	}, nil
}

// gidTable returns the valid entries of all ports. gidTable returns EINVAL if there are more than most entries.
// (rdma_query_gid_table)
func (d *Device) gidTable(most int) ([]uapi.GIDEntry, error) {
	var entries []uapi.GIDEntry
	for port := 1; port <= d.ports; port++ {
		attr, err := d.ib.QueryPort(port)
		if err != nil {
			return nil, err
		}
		for i := range attr.GIDTableLen {
			e, err := d.gidEntry(port, i)
			if errors.Is(err, syscall.ENODATA) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if len(entries) == most {
				return nil, fmt.Errorf("a buffer for %d GIDs is too small: %w", most, syscall.EINVAL)
			}
			entries = append(entries, e)
		}
	}
	return entries, nil
}
