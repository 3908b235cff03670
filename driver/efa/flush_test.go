package efa_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"verbena/driver/orphan"
	"verbena/ib"
	"verbena/link/simnet"
	abi "verbena/uapi/efa"
)

// flushOrphan completes the outstanding requests of the program as after the death of the service. The device must be
// idle. change, if not nil, changes the file of the program before.
func (p *program) flushOrphan(change func(file []byte)) error {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), "queues")
	file := make([]byte, p.end)
	for off, mem := range p.areas {
		copy(file[off:], mem)
	}
	if change != nil {
		change(file)
	}
	p.check(os.WriteFile(path, file, 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	p.check(err)
	defer f.Close()
	err = orphan.Flush(f)
	file, readErr := os.ReadFile(path)
	p.check(readErr)
	for off, mem := range p.areas {
		copy(mem, file[off:])
	}
	return err
}

// newCompletions takes all completions, and returns the queues of the requests by identifier.
func (p *program) newCompletions(want abi.CompStatus) map[uint16]uint8 {
	p.t.Helper()
	all := map[uint16]uint8{}
	for p.hasCompletion() {
		c := p.poll()
		if c.Common.Status != want || all[c.Common.ReqID] != 0 {
			p.t.Errorf("completion: got %+v, want status %d, once", c, want)
		}
		all[c.Common.ReqID] = c.Common.Flags & abi.IOCDescCommonQTypeMask >> 1
	}
	return all
}

// TestFlushWithoutService tests that each request that is outstanding at the death of the service gets a flush error,
// once: requests in flight, requests that the device has not seen, and receives.
func TestFlushWithoutService(t *testing.T) {
	for _, typ := range []ib.QPType{ib.QPTypeSRD, ib.QPTypeUD} {
		for _, before := range []uint16{0, 1, 15, 16, 17, 40} {
			t.Run(fmt.Sprintf("%v/after %d", typ, before), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
					a, b := newProgram(t, net, "10.0.0.1", typ), newProgram(t, net, "10.0.0.2", typ)
					_, ah := a.newAH("10.0.0.2")
					for i := range before {
						b.recv(i, 0, 100)
						a.send(i%depth, ah, b.qp.Num(), 0, 3, nil)
						a.await(i%depth, abi.IOCompStatusOK)
						b.poll()
					}
					want := map[uint16]uint8{}
					if typ == ib.QPTypeSRD {
						net.SetLink(netip.MustParseAddr("10.0.0.2"), false)
						for id := range uint16(2) {
							a.send(depth+id, ah, b.qp.Num(), 0, 3, nil)
							want[depth+id] = abi.IOSendQueue
						}
					}
					a.holds = true
					for id := uint16(2); id < depth; id++ {
						a.send(depth+id, ah, b.qp.Num(), 0, 3, nil)
						want[depth+id] = abi.IOSendQueue
					}
					a.ring(0, a.sent)
					for id := range uint16(3) {
						a.recv(20+id, 0, 100)
						want[20+id] = abi.IORecvQueue
					}
					synctest.Wait()
					a.check(a.flushOrphan(nil))
					if got := a.newCompletions(abi.IOCompStatusFlushed); !maps.Equal(got, want) {
						t.Errorf("flush: got %v, want %v", got, want)
					}
					a.check(a.flushOrphan(nil))
					if a.hasCompletion() {
						t.Error("second flush: got a completion, want none")
					}
				})
			})
		}
	}
}

// TestFlushAfterReset tests that requests before RESET get no flush error.
func TestFlushAfterReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
		a, b, ah, _ := newSRD(t, net)
		net.SetLink(netip.MustParseAddr("10.0.0.2"), false)
		a.recv(1, 0, 100)
		a.send(2, ah, b.qp.Num(), 0, 3, nil)
		a.toRTS(0)
		a.recv(5, 0, 100)
		synctest.Wait()
		a.check(a.flushOrphan(nil))
		want := map[uint16]uint8{5: abi.IORecvQueue}
		if got := a.newCompletions(abi.IOCompStatusFlushed); !maps.Equal(got, want) {
			t.Errorf("flush: got %v, want %v", got, want)
		}
	})
}

// TestFlushOfDamagedQueues tests that a flush of a file with any content ends.
func TestFlushOfDamagedQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, ah, _ := newSRD(t, simnet.New(simnet.Config{}))
		a.recv(1, 0, 100)
		a.send(2, ah, b.qp.Num(), 0, 3, nil)
		synctest.Wait()
		r := rand.New(rand.NewPCG(7, 1))
		for range 200 {
			_ = a.flushOrphan(func(file []byte) {
				for range 1 + r.IntN(20) {
					at := 16 + r.IntN(100) // the entry of the queue pair
					if r.IntN(3) == 0 {
						at = r.IntN(len(file))
					}
					file[at] = byte(r.Uint32())
				}
			})
		}
	})
}
