// Package rxe is the provider for software RoCE. The provider supports the kernel's rdma_rxe and Verbena, which has the
// same queue layout. The package corresponds to providers/rxe of rdma-core. Package ring defines the layout and the
// order of accesses. Verbena's driver also uses package ring.
package rxe

import (
	"fmt"
	"strings"
	"syscall"

	"verbena/driver/rxe/ring"
	"verbena/uapi"
	"verbena/verbs/internal/cmd"
	"verbena/verbs/internal/transport"
	"verbena/verbs/provider"
)

// Provider implements provider.Provider.
type Provider struct{}

// Name implements provider.Provider.
func (Provider) Name() string { return "rxe" }

// abiVersion is the version of the driver-private part of the user ABI (RXE_UVERBS_ABI_VERSION).
const abiVersion = 2

// Matches implements provider.Provider.
func (Provider) Matches(i provider.Info) bool {
	named := i.Driver == uapi.DriverUnknown && strings.HasPrefix(i.Name, "rxe")
	return (i.Driver == uapi.DriverRXE || named) && i.ABI <= abiVersion
}

// DriverID implements provider.Provider.
func (Provider) DriverID() uapi.DriverID { return uapi.DriverRXE }

// mappedRing is a mapped ring.
type mappedRing struct {
	*ring.Ring
	t   transport.Transport
	mem []byte
}

// mapQueue maps a ring. mapQueue returns nil if mi describes no ring.
func mapQueue(d *cmd.Device, mi uapi.MMInfo) (*mappedRing, error) {
	if mi.Size == 0 {
		return nil, nil
	}
	mem, err := d.T.Map(mi.Offset, int(mi.Size))
	if err != nil {
		return nil, err
	}
	r, err := ring.Attach(mem)
	if err != nil {
		_ = d.T.Unmap(mem)
		return nil, err
	}
	return &mappedRing{r, d.T, mem}, nil
}

func (q *mappedRing) unmap() error {
	if q == nil {
		return nil
	}
	return q.t.Unmap(q.mem)
}

// cq is a completion queue.
type cq struct {
	d      *cmd.Device
	handle uint32
	q      *mappedRing
	slot   [uapi.RXECQESize]byte
}

// CreateCQ implements provider.Provider.
func (Provider) CreateCQ(d *cmd.Device, req uapi.CreateCQ) (provider.CQ, uapi.CreateCQResp, error) {
	out := make([]byte, uapi.SizeOf[uapi.RXECreateCQResp]())
	r, err := d.CreateCQ(req, nil, out)
	if err != nil {
		return nil, r, err
	}
	own, _ := uapi.Decode[uapi.RXECreateCQResp](out)
	q, err := mapQueue(d, own.MI)
	if err == nil && q == nil {
		err = errNoMmapOffset
	}
	if err != nil {
		_ = d.DestroyCQ(r.CQHandle)
		return nil, r, err
	}
	return &cq{d: d, handle: r.CQHandle, q: q}, r, nil
}

var errNoMmapOffset = fmt.Errorf("the response contains no mmap offset of the queue: %w", syscall.EPROTO)

// invalidateFlags is the flag of an invalidated key. The flag accepts the number of libibverbs and the number of the
// kernel, which the kernel's rxe uses. In libibverbs the kernel's number means a verified checksum. rxe devices do not
// report verified checksums.
const invalidateFlags = uapi.WCFlagWithInvalidate | uapi.WCFlags(uapi.IBVWCWithInv)

// Poll implements provider.CQ. (cq_poll)
func (c *cq) Poll(wc []provider.WC) (n int) {
	at, _ := c.q.Consumer()
	for ; n < len(wc); n++ {
		if filled, _ := c.q.Peek(at, c.slot[:]); !filled {
			break
		}
		w, _ := uapi.Decode[uapi.WC](c.slot[:])
		wc[n] = provider.WC{
			ID: w.WRID, Status: provider.Status(w.Status), Opcode: w.Opcode, ByteLen: w.ByteLen, QPN: w.QPNum, SrcQPN: w.SrcQP,
			Flags: w.WCFlags & (uapi.WCFlagGRH | uapi.WCFlagWithImm), VendorErr: w.VendorErr, PKeyIndex: w.PKeyIndex,
		}
		switch {
		case w.WCFlags&uapi.WCFlagWithImm != 0:
			wc[n].Imm = w.Ex.Imm().Uint32()
		case w.WCFlags&invalidateFlags != 0:
			wc[n].Flags |= uapi.WCFlagWithInvalidate
			wc[n].Key = w.Ex.InvalidateRKey()
		}
		at = c.q.Next(at)
	}
	if n > 0 {
		c.q.SetConsumer(at)
	}
	return n
}

// Resize implements provider.CQ. The driver copies the contents of the old queue to the new queue. (rxe_resize_cq)
func (c *cq) Resize(entries int) (int, error) {
	out := make([]byte, uapi.SizeOf[uapi.RXEResizeCQResp]())
	r, err := c.d.ResizeCQ(c.handle, uint32(entries), out)
	if err != nil {
		return 0, err
	}
	own, _ := uapi.Decode[uapi.RXEResizeCQResp](out)
	q, err := mapQueue(c.d, own.MI)
	if err == nil && q == nil {
		err = errNoMmapOffset
	}
	if err != nil {
		return 0, err
	}
	_ = c.q.unmap()
	c.q = q
	return int(r.CQE), nil
}

// Close implements provider.CQ.
func (c *cq) Close() error { return c.q.unmap() }

// CreateAH implements provider.Provider. (rxe_create_ah)
func (Provider) CreateAH(d *cmd.Device, pd uint32, attr uapi.AHAttr) (provider.AH, error) {
	out := make([]byte, uapi.SizeOf[uapi.RXECreateAHResp]())
	h, err := d.CreateAH(pd, attr, out)
	if err != nil {
		return provider.AH{}, err
	}
	own, _ := uapi.Decode[uapi.RXECreateAHResp](out)
	if own.AHNum == 0 {
		_ = d.DestroyAH(h)
		return provider.AH{},
			fmt.Errorf("the kernel's rxe is older than Linux 5.15 and does not support address handle numbers: %w",
				syscall.EOPNOTSUPP)
	}
	return provider.AH{Handle: h, Num: own.AHNum}, nil
}
