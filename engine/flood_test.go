package engine

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/link"
	"verbena/roce"
)

var floods = flag.Bool("flood", false, "run TestFlood, which takes all processors for some seconds")

// floodKinds are the packets of a flood.
var floodKinds = []string{
	"garbage",       // the ICRC is wrong
	"stranger",      // for a queue pair that does not exist
	"forged sender", // for the neighbour's queue pair, from other addresses than the peer address
}

const floodEnv = "VERBENA_TEST_FLOOD"

// TestFlood measures the message rate of a neighbour while another process floods the device's address. The rate must
// be at least half of the rate during the same flood to a closed port. The service's memory must not grow.
func TestFlood(t *testing.T) {
	if plan := os.Getenv(floodEnv); plan != "" {
		flood(t, plan)
		return
	}
	if !*floods {
		t.Skip("without -flood (make flood): it measures")
	}
	b := newBench(t, loopback())
	b.connect(conn{})
	alone := b.rate(nil)
	t.Logf("alone: %.0f messages/s", alone)
	target := b.b.dev.Endpoints()[0].Addr()
	for _, kind := range floodKinds {
		plan := func(port int) []string {
			return []string{kind, target.String(), strconv.Itoa(port), strconv.Itoa(int(b.b.qp.Num()))}
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		closed := b.rate(plan(link.Port + 1))
		dropped := b.b.dev.Stats()
		open := b.rate(plan(link.Port))
		runtime.GC()
		runtime.ReadMemStats(&after)
		now := b.b.dev.Stats()
		var refused uint64
		for _, name := range []string{"drop_icrc", "drop_unknown_qp", "drop_wrong_source", "drop_overflow"} {
			refused += now[name] - dropped[name]
		}
		t.Logf("%-13s to a closed port: %6.0f messages/s; to the device: %6.0f (%.2f of it); %.2f Mpkt/s refused, %.2f Mpkt/s lost in the socket",
			kind, closed, open, open/closed, float64(refused)/floodTime.Seconds()/1e6,
			float64(now["drop_overflow"]-dropped["drop_overflow"])/floodTime.Seconds()/1e6)
		if refused == 0 {
			t.Errorf("%s: nothing was refused: there was no flood", kind)
		}
		if open < closed/2 {
			t.Errorf("%s: got %.0f messages/s, want at least half of %.0f", kind, open, closed)
		}
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
			t.Errorf("%s: the heap has grown by %d bytes", kind, grown)
		}
	}
}

const floodTime = 2 * time.Second

// rate returns the number of messages per second between the neighbours, during a flood if plan is not nil.
func (b *bench) rate(plan []string) float64 {
	b.t.Helper()
	if plan != nil {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestFlood$")
		cmd.Env = append(os.Environ(), floodEnv+"="+strings.Join(plan, " "))
		out, err := cmd.StdoutPipe()
		check(b.t, err)
		check(b.t, cmd.Start())
		defer func() {
			check(b.t, cmd.Process.Kill())
			_ = cmd.Wait()
		}()
		_, err = out.Read(make([]byte, 1)) // the flood has begun
		check(b.t, err)
	}
	n, began := 0, time.Now()
	for ; time.Since(began) < floodTime; n++ {
		b.b.recv(1, 0, 64)
		b.a.send(ib.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 64)})
		b.a.poll(1)
		b.b.poll(1)
	}
	return float64(n) / time.Since(began).Seconds()
}

// flood runs the flooding process.
func flood(t *testing.T, plan string) {
	i := strings.LastIndex(plan, " 127.")
	kind, rest := plan[:i], strings.Fields(plan[i:])
	to, port := netip.MustParseAddr(rest[0]), 0
	num := 0
	fmt.Sscan(rest[1], &port)
	fmt.Sscan(rest[2], &num)
	if kind == "stranger" {
		num = 1<<24 - 2
	}
	const batch = 64
	dst := &unix.SockaddrInet4{Port: port, Addr: to.As4()}
	var fds []int
	var packets [][]byte
	for k := range 16 {
		src := netip.AddrFrom4([4]byte{127, 200, byte(os.Getpid()), byte(k + 1)})
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		check(t, err)
		check(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: src.As4()}))
		name, err := unix.Getsockname(fd)
		check(t, err)
		op := roce.RC.Opcode(roce.SendOnly)
		buf := make([]byte, op.PacketLen(8))
		roce.NewPacket(buf, &roce.BTHFields{Opcode: op, PKey: roce.DefaultPKey, DestQPN: uint32(num)}, 8)
		if kind != "garbage" {
			flow := roce.NewFlow(netip.AddrPortFrom(src, uint16(name.(*unix.SockaddrInet4).Port)), netip.AddrPortFrom(to, link.Port))
			flow.Seal(0, buf)
		} else {
			binary.BigEndian.PutUint32(buf[len(buf)-4:], rand.Uint32())
		}
		fds, packets = append(fds, fd), append(packets, buf)
	}
	for end, batches := time.Now().Add(time.Minute), 0; time.Now().Before(end); batches++ { // killed earlier
		for i := range batch {
			_ = unix.Sendto(fds[i%len(fds)], packets[i%len(fds)], 0, dst)
		}
		if batches == 0 {
			fmt.Println("it floods")
		}
	}
}
