package layout

import (
	"encoding/binary"

	"verbena/engine/queue"
	"verbena/uapi"
	"verbena/uapi/efa"
)

// The next constants are the sizes of the entries of completion queues, in bytes.
const (
	entrySize   = 16
	entrySizeEx = 32
)

// completionQueue is an array of struct efa_io_tx_cdesc and efa_io_rx_cdesc, or efa_io_rx_cdesc_ex. The engine is the
// producer.
type completionQueue struct {
	mem      memory
	doorbell memory // empty without a completion channel
	size     int    // bytes of an entry
	slots    uint32
	pushed   uint32
	told     uint32 // number of the next event, as of the latest event, plus one; 0 means none
	buf      [entrySizeEx]byte
	region   *region
}

// Capacity implements queue.CompletionQueue.
func (q *completionQueue) Capacity() int { return int(q.slots) }

// Oldest implements queue.CompletionQueue. The device does not know what the program has read: nothing waits.
func (q *completionQueue) Oldest() (at, waiting uint32, repaired, ok bool) {
	return q.pushed, 0, false, true
}

// Push implements queue.CompletionQueue.
func (q *completionQueue) Push(wc *uapi.WC) (ok bool) {
	b := q.buf[:q.size]
	clear(b)
	flags := efa.IOCDescCommonPhaseMask
	if q.pushed/q.slots&1 != 0 {
		flags = 0
	}
	c := efa.CDescCommon{ReqID: uint16(wc.WRID), Status: efa.StatusOf(wc.Status), QPNum: uint16(wc.QPNum)}
	if wc.Opcode&uapi.WCRecv != 0 {
		if uapi.IBVWCFlags(wc.WCFlags)&uapi.IBVWCWithImm != 0 {
			flags |= efa.IOCDescCommonHasImmMask
		}
		c.Flags = flags | efa.IORecvQueue<<1
		if wc.WCFlags&queue.WCUnsolicited != 0 {
			c.Flags |= efa.IOCDescCommonUnsolicitedMask
		}
		if wc.Opcode == uapi.WCRecvRDMAWithImm {
			c.Flags |= opType(efa.IORDMAWrite)
			if q.size == entrySizeEx {
				binary.NativeEndian.PutUint16(b[uapi.SizeOf[efa.RXCDesc]():], uint16(wc.ByteLen>>16))
			}
		}
		r := efa.RXCDesc{
			Common: c, Length: uint16(wc.ByteLen), AH: wc.SLID, SrcQPNum: uint16(wc.SrcQP), Imm: wc.Ex.Imm().Uint32(),
		}
		if wc.SLID == 0 {
			r.AH = efa.UnknownAH
		}
		uapi.Encode(b, &r)
	} else {
		c.Flags = flags | efa.IOSendQueue<<1
		switch wc.Opcode {
		case uapi.WCRDMAWrite:
			c.Flags |= opType(efa.IORDMAWrite)
		case uapi.WCRDMARead:
			c.Flags |= opType(efa.IORDMARead)
		}
		uapi.Encode(b, &efa.TXCDesc{Common: c})
	}
	at := int(q.pushed&(q.slots-1)) * q.size
	q.pushed++
	return q.mem.publish(at, binary.NativeEndian.Uint32(b), b[4:])
}

// opType returns the flags of a completion for an operation.
func opType(op efa.SendOpType) uint8 { return uint8(op) << 4 & efa.IOCDescCommonOpTypeMask }

// Armed implements queue.Armer. The library increments the number of the event when it has read an event. A queue is
// due for one event of each number. The arm bit of an earlier store may be lost: after it has read entries, the library
// stores their count without the bit.
func (q *completionQueue) Armed() bool {
	if q.doorbell.mem == nil {
		return false
	}
	v, ok := q.doorbell.load(0)
	number := v&efa.RegsCQDBCmdSNMask + 1
	if !ok || number == q.told {
		return false
	}
	q.told = number
	return true
}

// Fetch implements queue.CompletionQueue. Programs read the array themselves.
func (q *completionQueue) Fetch(uint32, uint32, *uapi.WC) (found, ok bool) { return false, true }

// Consume implements queue.CompletionQueue.
func (q *completionQueue) Consume(uint32, uint32) (ok bool) { return true }

// Free implements queue.CompletionQueue.
func (q *completionQueue) Free() { q.region.shared.Free() }
