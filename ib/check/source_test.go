package check_test

import (
	"testing"

	"verbena/ib"
	"verbena/ib/check"
)

// TestCheckReportsChangedSendMemory tests the report of a send whose memory changes before its completion is polled.
func TestCheckReportsChangedSendMemory(t *testing.T) {
	for _, c := range []struct {
		name   string
		access ib.AccessFlags
		use    func(x *testConsumer, b []byte, mr *ib.MR)
		wrong  bool
	}{
		{"after the post", ib.AccessLocalWrite, func(x *testConsumer, b []byte, mr *ib.MR) {
			x.sendFrom(mr, 0, 64, ib.SendSignaled)
			b[5]++
			x.pollAll()
		}, true},
		{"after the completion", ib.AccessLocalWrite, func(x *testConsumer, b []byte, mr *ib.MR) {
			x.sendFrom(mr, 0, 64, ib.SendSignaled)
			x.pollAll()
			b[5]++
			x.sendFrom(mr, 0, 64, ib.SendSignaled)
			x.pollAll()
		}, false},
		{"of an unsignaled send", ib.AccessLocalWrite, func(x *testConsumer, b []byte, mr *ib.MR) {
			x.sendFrom(mr, 0, 64, 0)
			x.pollAll()
			b[5]++
			x.sendFrom(mr, 64, 64, ib.SendSignaled)
			x.pollAll()
		}, true},
		{"of an unsignaled send after a later completion", ib.AccessLocalWrite, func(x *testConsumer, b []byte, mr *ib.MR) {
			x.sendFrom(mr, 0, 64, 0)
			x.sendFrom(mr, 64, 64, ib.SendSignaled)
			x.pollAll()
			b[5]++
			x.sendFrom(mr, 64, 64, ib.SendSignaled)
			x.pollAll()
		}, false},
		{"beside the memory", ib.AccessLocalWrite, func(x *testConsumer, b []byte, mr *ib.MR) {
			x.sendFrom(mr, 0, 64, ib.SendSignaled)
			b[64]++
			x.pollAll()
		}, false},
		{"of a long message", ib.AccessLocalWrite, func(x *testConsumer, b []byte, mr *ib.MR) {
			x.sendFrom(mr, 0, len(b), ib.SendSignaled)
			b[2*4096+7]++
			x.pollAll()
		}, true},
		{"in memory that a peer may write", ib.AccessLocalWrite | ib.AccessRemoteWrite,
			func(x *testConsumer, b []byte, mr *ib.MR) {
				x.sendFrom(mr, 0, 64, ib.SendSignaled)
				b[5]++
				x.pollAll()
			}, false},
		{"of a region with other rights for a peer", ib.AccessLocalWrite, func(x *testConsumer, b []byte, mr *ib.MR) {
			all, err := x.pd.RegBytes(b, ib.AccessLocalWrite|ib.AccessRemoteWrite)
			x.failOnError(err)
			x.sendFrom(mr, 0, 64, ib.SendSignaled)
			b[5]++
			x.pollAll()
			x.failOnError(all.Dereg())
		}, false},
		{"by a receive of the same memory", ib.AccessLocalWrite, func(x *testConsumer, b []byte, mr *ib.MR) {
			b[0] = 1
			_, err := x.b.PostRecv(ib.RecvWR{SGList: sglOf(mr, 64, 64)})
			x.failOnError(err)
			_, err = x.a.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: sglOf(mr, 0, 64)},
				ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: sglOf(mr, 64, 64)})
			x.failOnError(err)
			x.pollAll()
			_, err = x.b.PostRecv(ib.RecvWR{SGList: sglOf(mr, 128, 64)})
			x.failOnError(err)
			x.pollAll()
		}, false},
		{"inline", ib.AccessLocalWrite, func(x *testConsumer, b []byte, mr *ib.MR) {
			_, err := x.b.PostRecv(ib.RecvWR{SGList: sglOf(mr, 64, 64)})
			x.failOnError(err)
			_, err = x.a.PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled | ib.SendInline, Inline: b[:8]})
			x.failOnError(err)
			b[5]++
			x.pollAll()
		}, false},
		{"before a flush", ib.AccessLocalWrite, func(x *testConsumer, b []byte, mr *ib.MR) {
			_, err := x.a.PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: sglOf(mr, 0, 64)})
			x.failOnError(err) // waits for a receive
			x.failOnError(x.a.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			b[5]++
			x.pollAll()
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newConsumer(t, consumerConfig{})
			x.reregister()
			var err error
			x.mr, err = x.pd.RegBytes(make([]byte, 128<<10), ib.AccessLocalWrite)
			x.failOnError(err)
			b := make([]byte, 128<<10)
			mr, err := x.pd.RegBytes(b, c.access)
			x.failOnError(err)
			c.use(x, b, mr)
			x.failOnError(mr.Dereg())
			if c.wrong {
				x.destroyBothAndExpect(check.RuleSourceChanged)
			} else {
				x.destroyBothAndExpect()
			}
		})
	}
}

func sglOf(mr *ib.MR, at, n int) []ib.SGE {
	return []ib.SGE{{Addr: mr.Addr() + uint64(at), Length: uint32(n), LKey: mr.LKey()}}
}

// sendFrom sends a part of a region to other memory.
func (x *testConsumer) sendFrom(mr *ib.MR, at, n int, flags ib.SendFlags) {
	x.t.Helper()
	_, err := x.b.PostRecv(ib.RecvWR{SGList: sglOf(x.mr, 0, int(x.mr.Region().Len()))})
	x.failOnError(err)
	_, err = x.a.PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: flags, SGList: sglOf(mr, at, n)})
	x.failOnError(err)
}
