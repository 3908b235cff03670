// Package cmd implements the commands of the Linux user ABI as functions, like cmd.c and cmd_*.c of libibverbs. A
// provider passes the driver-private parts of requests and responses.
package cmd

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"verbena/uapi"
	"verbena/verbs/internal/transport"
)

// Device is an open device. T transmits its commands.
type Device struct{ T transport.Transport }

const (
	hdrSize   = 8
	exHdrSize = 24
	// reqRoom is the size in bytes of the part of a Scratch for requests. The part for responses follows.
	reqRoom = 1 << 10
)

// driverData holds the driver-private data of a command: the request, and the buffer for the response.
type driverData struct{ in, out []byte }

// addCommandName adds the name of the command to a plain errno. Errors of package uverbs in this process already
// contain the name.
func addCommandName(c fmt.Stringer, err error) error {
	if _, bare := err.(syscall.Errno); bare {
		return fmt.Errorf("%v: %w", c, err)
	}
	return err
}

// runPlain issues a plain command. The request must start with the address of the response. mem is the memory that the
// command registers, or nil.
func runPlain[Resp, Req any](d *Device, c uapi.Command, req *Req, dr driverData, mem []byte) (resp Resp, err error) {
	s := d.T.Scratch()
	defer s.Free()
	b := uapi.AppendTo(s.Mem[:hdrSize], req)
	binary.NativeEndian.PutUint64(b[hdrSize:], s.Addr+reqRoom)
	b = append(b, dr.in...)
	n := uapi.SizeOf[Resp]()
	out := s.Mem[reqRoom : reqRoom+n+len(dr.out)]
	clear(out)
	hdr := uapi.CmdHdr{Command: uint32(c), InWords: uint16(len(b) / 4), OutWords: uint16((len(out) + 3) / 4)}
	uapi.Encode(b, &hdr)
	if err := d.T.Write(s, len(b), mem); err != nil {
		return resp, addCommandName(c, err)
	}
	resp, _ = uapi.Decode[Resp](out)
	copy(dr.out, out[n:])
	return resp, nil
}

// runWithoutResponse issues a plain command without a response.
func runWithoutResponse[Req any](d *Device, c uapi.Command, req Req, dr driverData) error {
	s := d.T.Scratch()
	defer s.Free()
	n := hdrSize + uapi.Encode(s.Mem[hdrSize:], &req)
	b := append(s.Mem[:n], dr.in...)
	hdr := uapi.CmdHdr{Command: uint32(c), InWords: uint16(len(b) / 4)}
	uapi.Encode(b, &hdr)
	if err := d.T.Write(s, len(b), nil); err != nil {
		return addCommandName(c, err)
	}
	return nil
}

// runExtended issues an extended command without driver-private data.
func runExtended[Resp, Req any](d *Device, c uapi.ExCommand, req *Req) (resp Resp, err error) {
	s := d.T.Scratch()
	defer s.Free()
	b := uapi.AppendTo(s.Mem[:exHdrSize], req)
	core := len(b) - exHdrSize
	for core%8 != 0 {
		b = append(b, 0)
		core++
	}
	n := uapi.SizeOf[Resp]() &^ 7
	out := s.Mem[reqRoom : reqRoom+uapi.SizeOf[Resp]()]
	clear(out)
	hdr := uapi.CmdHdr{Command: uint32(c) | uapi.CmdFlagExtended, InWords: uint16(core / 8), OutWords: uint16(n / 8)}
	ex := uapi.ExCmdHdr{Response: s.Addr + reqRoom}
	uapi.Encode(b, &hdr)
	uapi.Encode(b[hdrSize:], &ex)
	if err := d.T.Write(s, len(b), nil); err != nil {
		return resp, addCommandName(c, err)
	}
	resp, _ = uapi.Decode[Resp](out)
	return resp, nil
}

// GetContext creates the context, and returns the file of its asynchronous events. out receives the driver-private
// response. (ibv_cmd_get_context)
func (d *Device) GetContext(out []byte) (*transport.Events, uapi.GetContextResp, error) {
	r, err := runPlain[uapi.GetContextResp](d, uapi.CmdGetContext, &uapi.GetContext{}, driverData{out: out}, nil)
	if err != nil {
		return nil, r, err
	}
	e, err := d.T.Events(r.AsyncFD)
	return e, r, err
}

// QueryDevice returns the attributes of the device. If a kernel lacks the extended command, the additional fields are
// zero. (ibv_cmd_query_device_any)
func (d *Device) QueryDevice() (uapi.ExQueryDeviceResp, error) {
	r, err := runExtended[uapi.ExQueryDeviceResp](d, uapi.ExCmdQueryDevice, &uapi.ExQueryDevice{})
	if err == nil {
		return r, nil
	}
	base, err := runPlain[uapi.QueryDeviceResp](d, uapi.CmdQueryDevice, &uapi.QueryDevice{}, driverData{}, nil)
	return uapi.ExQueryDeviceResp{Base: base, DeviceCapFlagsEx: uapi.DeviceCapFlags(base.DeviceCapFlags)}, err
}

// QueryPort returns the state of a port. If a kernel lacks the method, the additional fields are zero.
// (ibv_cmd_query_port)
func (d *Device) QueryPort(id uapi.DriverID, port uint8) (uapi.QueryPortRespEx, error) {
	s := d.T.Scratch()
	defer s.Free()
	out := s.Mem[reqRoom:][:uapi.SizeOf[uapi.QueryPortRespEx]()]
	clear(out)
	err := d.runIoctl(s, uapi.ObjectDevice, uapi.MethodQueryPort, id, []uapi.Attr{
		{AttrID: uapi.AttrQueryPortPortNum, Len: 8, Flags: uapi.AttrFMandatory, Data: uint64(port)},
		{AttrID: uapi.AttrQueryPortResp, Len: uint16(len(out)), Flags: uapi.AttrFMandatory, Data: s.Addr + reqRoom},
	})
	if err == nil {
		r, _ := uapi.Decode[uapi.QueryPortRespEx](out)
		return r, nil
	}
	legacy, err := runPlain[uapi.QueryPortResp](d, uapi.CmdQueryPort, &uapi.QueryPort{PortNum: port}, driverData{}, nil)
	return uapi.QueryPortRespEx{LegacyResp: legacy}, err
}

// QueryPortSpeed returns the effective speed of a port in units of 100 Mb/s. (ibv_cmd_query_port_speed)
func (d *Device) QueryPortSpeed(id uapi.DriverID, port uint8) (uint64, error) {
	s := d.T.Scratch()
	defer s.Free()
	clear(s.Mem[reqRoom : reqRoom+8])
	err := d.runIoctl(s, uapi.ObjectDevice, uapi.MethodQueryPortSpeed, id, []uapi.Attr{
		{AttrID: uapi.AttrQueryPortSpeedPortNum, Len: 8, Flags: uapi.AttrFMandatory, Data: uint64(port)},
		{AttrID: uapi.AttrQueryPortSpeedResp, Len: 8, Flags: uapi.AttrFMandatory, Data: s.Addr + reqRoom},
	})
	if err != nil {
		return 0, fmt.Errorf("QUERY_PORT_SPEED: %w", err)
	}
	return binary.NativeEndian.Uint64(s.Mem[reqRoom:]), nil
}

// maxGIDs is the maximum number of entries that GIDTable returns.
const maxGIDs = 256

// GIDTable returns the valid entries of the GID tables of all ports. (ibv_cmd_query_gid_table)
func (d *Device) GIDTable(id uapi.DriverID) ([]uapi.GIDEntry, error) {
	size := uapi.SizeOf[uapi.GIDEntry]()
	s := d.T.Scratch()
	defer s.Free()
	const count = reqRoom // offset of the number of entries, which precedes the entries
	table := s.Mem[count+8:][:maxGIDs*size]
	clear(s.Mem[count : count+8])
	attrs := []uapi.Attr{
		{AttrID: uapi.AttrQueryGIDTableEntrySize, Len: 8, Flags: uapi.AttrFMandatory, Data: uint64(size)},
		{AttrID: uapi.AttrQueryGIDTableFlags, Len: 4, Flags: uapi.AttrFMandatory},
		{AttrID: uapi.AttrQueryGIDTableRespEntries, Len: uint16(len(table)), Flags: uapi.AttrFMandatory, Data: s.Addr +
			count + 8},
		{AttrID: uapi.AttrQueryGIDTableRespNumEntries, Len: 8, Flags: uapi.AttrFMandatory, Data: s.Addr + count},
	}
	if err := d.runIoctl(s, uapi.ObjectDevice, uapi.MethodQueryGIDTable, id, attrs); err != nil {
		return nil, fmt.Errorf("query the GID table: %w", err)
	}
	n := min(binary.NativeEndian.Uint64(s.Mem[count:]), maxGIDs)
	list := make([]uapi.GIDEntry, n)
	for i := range list {
		list[i], _ = uapi.Decode[uapi.GIDEntry](table[i*size:])
	}
	return list, nil
}

func (d *Device) runIoctl(s *transport.Scratch, o uapi.ObjectID, m uapi.MethodID, id uapi.DriverID,
	attrs []uapi.Attr) error {
	hdr := uapi.IoctlHdr{
		Length: uint16(uapi.SizeOf[uapi.IoctlHdr]() + len(attrs)*uapi.SizeOf[uapi.Attr]()), ObjectID: o, MethodID: m,
		NumAttrs: uint16(len(attrs)), DriverID: id,
	}
	b := uapi.AppendTo(s.Mem[:0], &hdr)
	for i := range attrs {
		b = uapi.AppendTo(b, &attrs[i])
	}
	return d.T.Ioctl(s)
}

// AllocPD allocates a protection domain. (ibv_cmd_alloc_pd)
func (d *Device) AllocPD() (handle uint32, err error) {
	r, err := runPlain[uapi.AllocPDResp](d, uapi.CmdAllocPD, &uapi.AllocPD{}, driverData{}, nil)
	return r.PDHandle, err
}

// DeallocPD frees a protection domain.
func (d *Device) DeallocPD(handle uint32) error {
	return runWithoutResponse(d, uapi.CmdDeallocPD, uapi.DeallocPD{PDHandle: handle}, driverData{})
}

// RegMR registers mem. In work requests the first byte of mem has the address iova. (ibv_cmd_reg_mr)
func (d *Device) RegMR(pd uint32, mem []byte, iova uint64, access uapi.AccessFlags) (uapi.RegMRResp, error) {
	return runPlain[uapi.RegMRResp](d, uapi.CmdRegMR, &uapi.RegMR{
		Start: transport.AddressOf(mem), Length: uint64(len(mem)), HCAVA: iova, PDHandle: pd, AccessFlags: access,
	}, driverData{}, mem)
}

// DeregMR ends a registration.
func (d *Device) DeregMR(handle uint32) error {
	return runWithoutResponse(d, uapi.CmdDeregMR, uapi.DeregMR{MRHandle: handle}, driverData{})
}

// AllocMW allocates a memory window. (ibv_cmd_alloc_mw)
func (d *Device) AllocMW(pd uint32, t uapi.MWType) (uapi.AllocMWResp, error) {
	return runPlain[uapi.AllocMWResp](d, uapi.CmdAllocMW, &uapi.AllocMW{PDHandle: pd, MWType: t}, driverData{}, nil)
}

// DeallocMW frees a memory window.
func (d *Device) DeallocMW(handle uint32) error {
	return runWithoutResponse(d, uapi.CmdDeallocMW, uapi.DeallocMW{MWHandle: handle}, driverData{})
}

// CreateChannel creates a completion channel. (ibv_create_comp_channel)
func (d *Device) CreateChannel() (*transport.Events, error) {
	r, err := runPlain[uapi.CreateCompChannelResp](d, uapi.CmdCreateCompChannel, &uapi.CreateCompChannel{}, driverData{},
		nil)
	if err != nil {
		return nil, err
	}
	return d.T.Events(r.FD)
}

// CreateCQ creates a completion queue. in is the driver-private request, and out receives the driver-private response.
// (ibv_cmd_create_cq)
func (d *Device) CreateCQ(req uapi.CreateCQ, in, out []byte) (uapi.CreateCQResp, error) {
	return runPlain[uapi.CreateCQResp](d, uapi.CmdCreateCQ, &req, driverData{in, out}, nil)
}

// ResizeCQ changes the capacity of a completion queue. (ibv_cmd_resize_cq)
func (d *Device) ResizeCQ(handle, entries uint32, out []byte) (uapi.ResizeCQResp, error) {
	return runPlain[uapi.ResizeCQResp](d, uapi.CmdResizeCQ, &uapi.ResizeCQ{CQHandle: handle, CQE: entries},
		driverData{out: out},
		nil)
}

// ReqNotifyCQ arms a completion queue.
func (d *Device) ReqNotifyCQ(handle uint32, solicitedOnly bool) error {
	req := uapi.ReqNotifyCQ{CQHandle: handle}
	if solicitedOnly {
		req.SolicitedOnly = 1
	}
	return runWithoutResponse(d, uapi.CmdReqNotifyCQ, req, driverData{})
}

// DestroyCQ destroys a completion queue.
func (d *Device) DestroyCQ(handle uint32) error {
	_, err := runPlain[uapi.DestroyCQResp](d, uapi.CmdDestroyCQ, &uapi.DestroyCQ{CQHandle: handle}, driverData{}, nil)
	return err
}

// CreateQP creates a queue pair. in is the driver-private request, and out receives the driver-private response.
// (ibv_cmd_create_qp)
func (d *Device) CreateQP(req uapi.CreateQP, in, out []byte) (uapi.CreateQPResp, error) {
	return runPlain[uapi.CreateQPResp](d, uapi.CmdCreateQP, &req, driverData{in, out}, nil)
}

// ModifyQP changes a queue pair. (ibv_cmd_modify_qp)
func (d *Device) ModifyQP(req uapi.ModifyQP) error {
	return runWithoutResponse(d, uapi.CmdModifyQP, req, driverData{})
}

// QueryQP returns the attributes of a queue pair. (ibv_cmd_query_qp)
func (d *Device) QueryQP(handle uint32, mask uapi.QPAttrMask) (uapi.QueryQPResp, error) {
	return runPlain[uapi.QueryQPResp](d, uapi.CmdQueryQP, &uapi.QueryQP{QPHandle: handle, AttrMask: mask}, driverData{},
		nil)
}

// DestroyQP destroys a queue pair.
func (d *Device) DestroyQP(handle uint32) error {
	_, err := runPlain[uapi.DestroyQPResp](d, uapi.CmdDestroyQP, &uapi.DestroyQP{QPHandle: handle}, driverData{}, nil)
	return err
}

// CreateSRQ creates a shared receive queue. out receives the driver-private response. (ibv_cmd_create_srq)
func (d *Device) CreateSRQ(req uapi.CreateSRQ, out []byte) (uapi.CreateSRQResp, error) {
	return runPlain[uapi.CreateSRQResp](d, uapi.CmdCreateSRQ, &req, driverData{out: out}, nil)
}

// ModifySRQ changes a shared receive queue. in is the driver-private request. (ibv_cmd_modify_srq)
func (d *Device) ModifySRQ(req uapi.ModifySRQ, in []byte) error {
	return runWithoutResponse(d, uapi.CmdModifySRQ, req, driverData{in: in})
}

// QuerySRQ returns the attributes of a shared receive queue. (ibv_cmd_query_srq)
func (d *Device) QuerySRQ(handle uint32) (uapi.QuerySRQResp, error) {
	return runPlain[uapi.QuerySRQResp](d, uapi.CmdQuerySRQ, &uapi.QuerySRQ{SRQHandle: handle}, driverData{}, nil)
}

// DestroySRQ destroys a shared receive queue.
func (d *Device) DestroySRQ(handle uint32) error {
	_, err := runPlain[uapi.DestroySRQResp](d, uapi.CmdDestroySRQ, &uapi.DestroySRQ{SRQHandle: handle}, driverData{}, nil)
	return err
}

// CreateAH creates an address handle. out receives the driver-private response. (ibv_cmd_create_ah)
func (d *Device) CreateAH(pd uint32, attr uapi.AHAttr, out []byte) (handle uint32, err error) {
	r, err := runPlain[uapi.CreateAHResp](d, uapi.CmdCreateAH, &uapi.CreateAH{PDHandle: pd, Attr: attr},
		driverData{out: out},
		nil)
	return r.AHHandle, err
}

// DestroyAH destroys an address handle.
func (d *Device) DestroyAH(handle uint32) error {
	return runWithoutResponse(d, uapi.CmdDestroyAH, uapi.DestroyAH{AHHandle: handle}, driverData{})
}

// Attach adds a queue pair to a multicast group. (ibv_cmd_attach_mcast)
func (d *Device) Attach(qp uint32, gid [16]byte) error {
	return runWithoutResponse(d, uapi.CmdAttachMcast, uapi.AttachMcast{GID: gid, QPHandle: qp}, driverData{})
}

// Detach removes a queue pair from a multicast group.
func (d *Device) Detach(qp uint32, gid [16]byte) error {
	return runWithoutResponse(d, uapi.CmdDetachMcast, uapi.DetachMcast{GID: gid, QPHandle: qp}, driverData{})
}
