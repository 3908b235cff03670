package uverbs

import (
	"verbena/ib"
	"verbena/uapi"
)

// Peeker is a Caller that can read memory faster than through its Space, but less reliably. The data may belong to
// another program. Peek is used only where wrong data do no harm and only affect objects of the file. Such data are the
// queue pair of a doorbell, and the queue of a REQ_NOTIFY_CQ.
type Peeker interface {
	// Peek fills dst from addr. Peek returns false if this is not possible.
	Peek(dst [][]byte, addr uint64) bool
}

// peek reads n bytes into the buffer. peek returns nil if the memory can only be read through the caller's Space.
func (b *commandBuffer) peek(c Caller, addr uint64, n int) []byte {
	p, ok := c.(Peeker)
	if !ok {
		return nil
	}
	b.iov[0] = b.data[:n]
	if !p.Peek(b.iov[:], addr) {
		return nil
	}
	return b.iov[0]
}

// executePeekedDoorbell executes the doorbell command at addr. executePeekedDoorbell returns false in the same cases as
// executeDoorbell, and also if the command can only be read through the caller's Space.
func (f *File) executePeekedDoorbell(c Caller, buf *commandBuffer, addr uint64) (rang bool) {
	b := buf.peek(c, addr, doorbellSize)
	return b != nil && f.executeDoorbell(c, b)
}

// armIoctlSize is the length of a REQ_NOTIFY_CQ by ioctl(2) in the form of libibverbs.
const armIoctlSize = ioctlHdrSize + 2*attrSize

// armPeekedCQ executes the REQ_NOTIFY_CQ at addr. After the doorbell, this command is the most frequent call of
// programs. armPeekedCQ returns false if the memory contains another call or an invalid call, or can only be read
// through the caller's Space.
func (f *File) armPeekedCQ(c Caller, buf *commandBuffer, addr uint64) (armed bool) {
	if commandTraceOf(c) != nil {
		return false
	}
	b := buf.peek(c, addr, armIoctlSize)
	if b == nil {
		return false
	}
	req, ok := parseArmIoctl(b)
	if !ok || f.dev.checkDriver && driverIDOf(b) != f.dev.driverID {
		return false
	}
	return f.armCQ(c, req)
}

// armWriteSize is the length of a REQ_NOTIFY_CQ by write(2).
var armWriteSize = cmdHdrSize + uapi.SizeOf[uapi.ReqNotifyCQ]()

// armCQByWrite executes the REQ_NOTIFY_CQ in b without the overhead of other commands. armCQByWrite returns false in
// the same cases as armPeekedCQ.
func (f *File) armCQByWrite(c Caller, b []byte) (armed bool) {
	hdr, _ := uapi.Decode[uapi.CmdHdr](b)
	if hdr.Command != uint32(uapi.CmdReqNotifyCQ) || int(hdr.InWords)*4 != len(b) || commandTraceOf(c) != nil ||
		!f.byWrite.Load() {
		return false
	}
	req, ok := uapi.Decode[uapi.ReqNotifyCQ](b[cmdHdrSize:])
	return ok && f.armCQ(c, req)
}

// armCQ arms a completion queue. armCQ returns false if arming fails or would have to wait.
func (f *File) armCQ(c Caller, req uapi.ReqNotifyCQ) (armed bool) {
	if !f.life.TryRLock() {
		return false
	}
	h := f.newHold(stallerOf(c))
	defer runCallbacks(h, c)
	defer f.life.RUnlock()
	cq, err := lookup[*cqObject](f, req.CQHandle)
	if err != nil {
		return false
	}
	defer cq.releaseUse()
	_, err = cq.res.ReqNotify(notifyFlags(req))
	return err == nil
}

func driverIDOf(b []byte) uapi.DriverID {
	hdr, _ := uapi.Decode[uapi.IoctlHdr](b)
	return hdr.DriverID
}

// parseArmIoctl parses a REQ_NOTIFY_CQ by ioctl in the form of libibverbs.
func parseArmIoctl(b []byte) (req uapi.ReqNotifyCQ, ok bool) {
	hdr, _ := uapi.Decode[uapi.IoctlHdr](b)
	cmd, _ := uapi.Decode[uapi.Attr](b[ioctlHdrSize:])
	in, _ := uapi.Decode[uapi.Attr](b[ioctlHdrSize+attrSize:])
	if cmd.AttrID != uapi.AttrWriteCmd {
		cmd, in = in, cmd
	}
	ok = hdr.Length == armIoctlSize && hdr.NumAttrs == 2 && hdr.Reserved1 == 0 && hdr.Reserved2 == 0 &&
		hdr.ObjectID == uapi.ObjectDevice && hdr.MethodID == uapi.MethodInvokeWrite &&
		cmd.AttrID == uapi.AttrWriteCmd && cmd.Len == 8 && cmd.Data == uint64(uapi.CmdReqNotifyCQ) &&
		cmd.AttrData == (uapi.AttrEnumData{}) &&
		in.AttrID == uapi.AttrCoreIn && in.Len == 8 && in.AttrData == (uapi.AttrEnumData{})
	var data [8]byte
	putUint64(data[:], in.Data)
	req, _ = uapi.Decode[uapi.ReqNotifyCQ](data[:])
	return req, ok
}

func notifyFlags(req uapi.ReqNotifyCQ) ib.NotifyFlags {
	if req.SolicitedOnly != 0 {
		return ib.NotifySolicited
	}
	return ib.NotifyNextComp
}
