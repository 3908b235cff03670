package efa_test

import (
	"fmt"
	"testing"

	"verbena/driver/efa"
	"verbena/engine"
	"verbena/ib"
	"verbena/link/simnet"
	abi "verbena/uapi/efa"
)

// BenchmarkSRD transfers messages of SRD between two devices of a Fabric. The data path must not allocate.
func BenchmarkSRD(b *testing.B) {
	for _, c := range []struct {
		name string
		op   abi.SendOpType
		n    int
	}{{"send", abi.IOSend, 64}, {"write", abi.IORDMAWrite, 128 << 10}, {"read", abi.IORDMARead, 128 << 10}} {
		b.Run(fmt.Sprintf("%s-%d", c.name, c.n), func(b *testing.B) {
			fabric := &engine.Fabric{}
			net := simnet.New(simnet.Config{})
			join := func(cfg *efa.Config) { cfg.Fabric = fabric }
			x, y := newProgram(b, net, "10.0.0.1", ib.QPTypeSRD, join), newProgram(b, net, "10.0.0.2", ib.QPTypeSRD, join)
			_, ah := x.newAH("10.0.0.2")
			y.newAH("10.0.0.1")
			b.SetBytes(int64(c.n))
			b.ReportAllocs()
			for i := range b.N {
				if c.op == abi.IOSend {
					y.recv(uint16(i), 0, 4096)
					x.send(uint16(i), ah, y.qp.Num(), 0, c.n, nil)
				} else {
					x.rdma(uint16(i), ah, y.qp.Num(), c.op, 0, c.n, y.mr.RKey(), y.addr, false)
				}
				if s := x.poll(); s.Common.Status != 0 {
					b.Fatalf("request %d: got %+v, want success", i, s)
				}
				if c.op == abi.IOSend {
					y.poll()
				}
			}
		})
	}
}
