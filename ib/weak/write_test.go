package weak_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"verbena/ib"
	"verbena/ib/weak"
)

// TestHeldWritesKeepOrder executes random requests, one after the other, for the same memory of a peer. The memory may
// lack the data of a WRITE that has completed. But a later message of the connection, the end of a region, and each
// read of the device, prove that the data are there.
func TestHeldWritesKeepOrder(t *testing.T) {
	for _, choice := range []weak.Choice{weak.RelaxedOrder, weak.LateWrite, weak.OutOfOrder} {
		t.Run(weak.Choices[choice].Name, func(t *testing.T) {
			late := 0
			for seed := range uint64(20) {
				synctest.Test(t, func(t *testing.T) {
					d := newWeakFactory(newRXE, weak.Config{Seed: seed, Choices: weak.Of(choice)})
					h := newHeldMemory(newConnectedDevice(t, d), seed)
					for i := range 150 {
						if err := h.step(); err != nil {
							t.Fatalf("seed %d, step %d: %v", seed, i, err)
						}
					}
					late += h.late
				})
			}
			if late == 0 {
				t.Error("no data were late")
			}
		})
	}
}

const memoryRights = shared | ib.AccessRemoteAtomic | ib.AccessRelaxedOrdering

// heldMemory is memory that two connections write.
type heldMemory struct {
	*connectedDevice
	rand    *rand.Rand
	memory  []byte
	regions [2]*registeredBuffer // two regions with the same memory
	sides   [2]*qpSide
	peers   [2]*qpSide // with the memory
	own     *registeredBuffer
	want    []byte // the memory after all requests
	by      []int  // the connection that has written each byte; -1: the data are there
	late    int    // number of WRITEs whose data were not there at the completion
}

func newHeldMemory(w *connectedDevice, seed uint64) *heldMemory {
	const size = 40 << 10
	h := &heldMemory{connectedDevice: w, rand: rand.New(rand.NewPCG(seed, 0)), memory: make([]byte, size),
		want: make([]byte, size), by: make([]int, size)}
	h.own = w.registerBuffer(make([]byte, size), shared)
	for i := range h.regions {
		h.regions[i] = w.registerBuffer(h.memory, memoryRights)
		a, b := w.newSide(w.newCQ(), w.newCQ()), w.newSide(w.newCQ(), w.newCQ())
		w.connectWithRights(a, b, shared|ib.AccessRemoteAtomic)
		h.sides[i], h.peers[i] = a, b
	}
	for i := range h.by {
		h.by[i] = -1
	}
	return h
}

// placed checks that the data of a connection, or of all with -1, are there.
func (h *heldMemory) placed(connection int) error {
	synctest.Wait() // no step of the device may run
	for i := range h.memory {
		if connection != -1 && h.by[i] != connection {
			continue
		}
		if h.memory[i] != h.want[i] {
			return fmt.Errorf("connection %d: byte %d is %d, want %d", connection, i, h.memory[i], h.want[i])
		}
		h.by[i] = -1
	}
	return nil
}

// step executes one random request, and checks the memory.
func (h *heldMemory) step() error {
	c := h.rand.IntN(2)
	a, b, m := h.sides[c], h.peers[c], h.regions[h.rand.IntN(2)]
	n := min(1<<h.rand.IntN(16)+h.rand.IntN(8), len(h.memory))
	at := h.rand.IntN(len(h.memory) - n + 1)
	remote := ib.SendWR{Flags: ib.SendSignaled, SGList: []ib.SGE{{Addr: h.own.mr.Addr(), Length: uint32(n),
		LKey: h.own.mr.LKey()}}, RemoteAddr: m.mr.Addr() + uint64(at), RKey: m.mr.RKey()}
	switch h.rand.IntN(12) {
	default:
		h.fill(at, n, c)
		copy(h.own.b, h.want[at:at+n])
		remote.Opcode = ib.WRRDMAWrite
		if err := a.postAndAwait(remote); err != nil {
			return err
		}
		synctest.Wait()
		if !bytes.Equal(h.memory[at:at+n], h.want[at:at+n]) {
			h.late++
		}
	case 6, 7:
		remote.Opcode = ib.WRRDMARead
		if err := a.postAndAwait(remote); err != nil {
			return err
		}
		if err := h.equal("READ", h.own.b[:n], at); err != nil {
			return err
		}
		return h.placed(c)
	case 8:
		at &^= 7
		remote.Opcode, remote.RemoteAddr = ib.WRAtomicFetchAdd, m.mr.Addr()+uint64(at)
		remote.SGList[0].Length, remote.CompareAdd = 8, 3
		if err := a.postAndAwait(remote); err != nil {
			return err
		}
		if err := h.equal("FETCH_ADD", h.own.b[:8], at); err != nil {
			return err
		}
		binary.NativeEndian.PutUint64(h.want[at:], binary.NativeEndian.Uint64(h.want[at:])+3)
		for i := range 8 {
			h.by[at+i] = c
		}
		return h.placed(c)
	case 9: // a message of the connection, of another kind each
		b.postReceive(0, h.newBuffer(private))
		wr := []ib.SendWR{{Opcode: ib.WRSend}, {Opcode: ib.WRSendWithImm}, {Opcode: ib.WRRDMAWriteWithImm}}[h.rand.IntN(3)]
		wr.Flags, wr.RemoteAddr, wr.RKey = ib.SendSignaled, remote.RemoteAddr, remote.RKey
		a.postSend(wr)
		h.pollCompletions(b.recv, 1)
		h.pollCompletions(a.send, 1)
		return h.placed(c)
	case 10: // a message from the memory
		into := h.registerBuffer(make([]byte, n), private)
		a.postReceive(0, into)
		remote.Opcode, remote.SGList[0].Addr, remote.SGList[0].LKey = ib.WRSend, m.mr.Addr()+uint64(at), m.mr.LKey()
		b.postSend(remote)
		h.pollCompletions(a.recv, 1)
		h.pollCompletions(b.send, 1)
		return h.equal("SEND", into.b, at)
	case 11: // the end of one region of the two
		must(h.t, m.mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: memoryRights}))
		return h.placed(-1)
	}
	return nil
}

// fill notes random data for a range.
func (h *heldMemory) fill(at, n, by int) {
	for i := range n {
		h.want[at+i], h.by[at+i] = byte(h.rand.Uint32()), by
	}
}

// equal checks data that were read at an offset.
func (h *heldMemory) equal(what string, got []byte, at int) error {
	if want := h.want[at : at+len(got)]; !bytes.Equal(got, want) {
		return fmt.Errorf("%s of %d bytes at %d: got other data than the latest", what, len(got), at)
	}
	return nil
}
