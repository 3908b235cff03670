package remote_test

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/driver"
	"verbena/driver/rxe"
	"verbena/internal/ctl"
	"verbena/internal/ctl/devfile"
	"verbena/internal/testutil"
	"verbena/service"
	"verbena/service/servicetest"
)

// panicCounter counts the panics in the log of a service.
type panicCounter struct{ n atomic.Int64 }

func (p *panicCounter) Write(b []byte) (int, error) {
	if strings.Contains(string(b), "panic") {
		p.n.Add(1)
		os.Stderr.Write(b)
	}
	return len(b), nil
}

// attackTarget is a service under attack by hostile clients.
type attackTarget struct {
	srv    *service.Service
	loc    ctl.Location
	panics panicCounter
}

// startAttackTarget starts a service at the first free address of a range. Fuzzing needs several addresses, because it
// uses several processes.
func startAttackTarget(t testing.TB) *attackTarget {
	t.Helper()
	b := &attackTarget{loc: ctl.Location{Socket: filepath.Join(t.TempDir(), "socket")}}
	limits := service.DefaultLimits(true)
	var err error
	for host := 10; b.srv == nil && host < 20; host++ {
		b.srv, err = service.New(service.Options{Drivers: []driver.Driver{&rxe.Driver{}},
			Links:  []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{fmt.Sprintf("127.91.13.%d", host)}}},
			Limits: &limits, Log: slog.New(slog.NewTextHandler(&b.panics, nil))})
	}
	must(t, err)
	servicetest.Serve(t, b.srv, b.loc)
	return b
}

// commandBufferAddr is the address of a client's command buffer. No mapping of this process is near it.
const commandBufferAddr, windowSize = 0x4000_0000_0000, 64 << 10

// sendRandomRequests sends requests made of random bytes: commands in shared memory that is changed concurrently,
// invalid requests, and changes of the shared files. The service must reply or close the connection.
func sendRandomRequests(t testing.TB, b *attackTarget, device string, seed uint64, steps int) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	a := newAttacker(t, b.loc, device)
	defer a.close()
	ask := func(r devfile.Request, fds ...int) (answer devfile.Answer, ok bool) {
		if a.c.SendRequest(r, fds...) != nil {
			return answer, false
		}
		a.c.SetReadDeadline(time.Now().Add(10 * time.Second))
		answer, got, err := a.c.ReceiveAnswer()
		devfile.CloseAll(got)
		if err != nil && os.IsTimeout(err) {
			t.Errorf("seed %d: answer to %+v: got none, want one", seed, r)
		}
		return answer, err == nil
	}
	w, ok := ask(devfile.Request{Op: devfile.OpAlloc, Addr: commandBufferAddr, N: windowSize})
	if !ok || w.Err() != nil {
		t.Fatal(w.Err())
	}
	mem, err := unix.Mmap(a.fds[devfile.BufferFile], int64(w.N), windowSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	must(t, err)
	defer unix.Munmap(mem)
	page := uint64(os.Getpagesize())
	odd := []uint64{0, 1, page, commandBufferAddr, commandBufferAddr + windowSize - 8, commandBufferAddr + windowSize,
		1 << 47, 1 << 63,
		-page, 1<<64 - 1}
	number := func() uint64 {
		switch rnd.IntN(4) {
		case 0:
			return odd[rnd.IntN(len(odd))]
		case 1:
			return commandBufferAddr + rnd.Uint64N(windowSize)
		case 2:
			return page * rnd.Uint64N(64)
		}
		return rnd.Uint64() >> rnd.IntN(64)
	}
	for range steps {
		r := devfile.Request{Op: devfile.Op(rnd.IntN(8)), Addr: number(), N: number()}
		switch r.Op {
		case devfile.OpWrite: // a possibly valid header, and numbers that may be handles, addresses and sizes
			size := 8 + 4*rnd.IntN(60)
			binary.LittleEndian.PutUint32(mem, rnd.Uint32N(64)|rnd.Uint32N(8)/7<<31)
			binary.LittleEndian.PutUint16(mem[4:], uint16(size/4))
			binary.LittleEndian.PutUint16(mem[6:], uint16(rnd.IntN(64)))
			binary.LittleEndian.PutUint64(mem[8:], commandBufferAddr+4096)
			for i := 16; i < size; i += 4 {
				binary.LittleEndian.PutUint32(mem[i:], uint32(rnd.IntN(1<<rnd.IntN(10))))
			}
			if device == devfile.ConnectionManager {
				binary.LittleEndian.PutUint16(mem[4:], uint16(size-8))
			}
			r.Addr, r.N = commandBufferAddr, uint64(size)
		case devfile.OpIoctl:
			for i := 0; i < 128; i += 2 {
				binary.LittleEndian.PutUint16(mem[i:], uint16(rnd.IntN(1<<rnd.IntN(16))))
			}
			r.Addr = commandBufferAddr
		case devfile.OpMemory:
			if rnd.IntN(8) > 0 {
				continue // usually the connection has ended
			}
		}
		fd := a.fds[1+rnd.IntN(len(a.fds)-1)]
		switch rnd.IntN(12) {
		case 0:
			_ = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20)
		case 1:
			_ = unix.Fallocate(fd, 0, 0, 8<<20)
		case 2:
			_ = unix.Ftruncate(fd, rnd.Int64N(16<<20))
		case 3:
			_, _ = unix.Pwrite(fd, []byte{0xff, 0xff, 0xff, 0xff}, rnd.Int64N(1<<16))
		case 4:
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, 1<<rnd.IntN(6))
		}
		if _, ok := ask(r); !ok {
			return
		}
	}
}

// TestRandomRequests runs several random sieges. FuzzRequests runs more sieges.
func TestRandomRequests(t *testing.T) {
	b := startAttackTarget(t)
	before := listHeldCharges(b.srv)
	for seed := range uint64(60) {
		sendRandomRequests(t, b, []string{"rxe0", "rxe0", devfile.ConnectionManager}[seed%3], seed, 100)
	}
	testutil.Eventually(t, "the charges to be released", func() bool { return listHeldCharges(b.srv) == before })
	if n := b.panics.n.Load(); n > 0 {
		t.Errorf("panics of the service: got %d, want 0", n)
	}
}

func FuzzRequests(f *testing.F) {
	b := startAttackTarget(f)
	f.Add(uint64(1), false)
	f.Fuzz(func(t *testing.T, seed uint64, cm bool) {
		device := "rxe0"
		if cm {
			device = devfile.ConnectionManager
		}
		sendRandomRequests(t, b, device, seed, 300)
		if n := b.panics.n.Load(); n > 0 {
			t.Fatalf("panics of the service: got %d, want 0", n)
		}
	})
}

// FuzzFrames makes both ends of the protocol read random data.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0}, true)
	f.Add(binary.LittleEndian.AppendUint64(make([]byte, 4), 1<<30), false)
	f.Fuzz(func(t *testing.T, data []byte, request bool) {
		c, peer := connPair(t)
		defer c.Close()
		go func() {
			defer peer.Close()
			_, _ = peer.Write(data)
		}()
		for {
			var fds []int
			var err error
			if request {
				_, fds, err = c.ReceiveRequest(time.Second)
			} else {
				var a devfile.Answer
				a, fds, err = c.ReceiveAnswer()
				_ = a.Err()
			}
			if len(fds) > 0 {
				t.Fatal("received descriptors: got some, want none")
			}
			if err != nil {
				return
			}
		}
	})
}
