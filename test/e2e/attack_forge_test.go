//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/testutil"
	"verbena/roce"
	"verbena/verbs"
	"verbena/verbs/service"
)

// TestAttackForgedPackets tests that an ordinary UDP socket bound to the device's own address cannot inject packets
// into a connection of the service, over the shortcut or over the wire. The service must count the packets, and the
// connection must continue.
func TestAttackForgedPackets(t *testing.T) {
	for name, flags := range map[string][]string{"shortcut": nil, "wire": {"--wire"}} {
		t.Run(name, func(t *testing.T) {
			needRoot(t)
			addr := unusedAddr()
			w := startService(t, testUser{"root", 0}, "", append([]string{"--mode", "0666", "--link", "rxe0=" + addr},
				flags...)...)
			svc, err := service.At(w.socket)
			if err != nil {
				t.Fatal(err)
			}
			dev, err := svc.Open("")
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			pd, err := dev.AllocPD()
			if err != nil {
				t.Fatal(err)
			}
			cq, err := dev.CreateCQ(64, nil)
			if err != nil {
				t.Fatal(err)
			}
			var qps [2]*verbs.QP
			for i := range qps {
				if qps[i], err = pd.CreateQP(verbs.QPInit{Type: verbs.UC, SendCQ: cq}); err != nil {
					t.Fatal(err)
				}
			}
			if err := verbs.ConnectPair(qps[0], qps[1]); err != nil {
				t.Fatal(err)
			}
			mr, err := pd.Alloc(4096, verbs.LocalWrite)
			if err != nil {
				t.Fatal(err)
			}
			if err := qps[1].PostRecv(&verbs.RecvWR{ID: 7, Local: mr.SGE(0, 64)}); err != nil {
				t.Fatal(err)
			}
			dropped := func() uint64 {
				var list []struct {
					Counters map[string]uint64
				}
				if err := json.Unmarshal([]byte(w.mustRun("stat", "show", "--all", "--json")), &list); err != nil ||
					len(list) != 1 {
					t.Fatalf("stat show: %v, %+v", err, list)
				}
				return list[0].Counters["drop_forged"]
			}
			const guesses = 256
			// any port, and the source port of the connection
			for _, port := range []uint16{0, uint16(roce.SourcePortRC(qps[0].Num(), qps[1].Num()))} {
				before := dropped()
				f := newPacketForger(t, addr, addr)
				if port != 0 && !f.rebind(port) {
					continue // the service has bound this port
				}
				for i := range uint32(guesses) {
					f.sendUC(qps[1].Num()^i, i)
				}
				testutil.Eventually(t, "forged packets to be counted", func() bool { return dropped()-before == guesses })
			}
			var wc [4]verbs.WC
			if n, err := cq.Poll(wc[:]); n != 0 || err != nil || !bytes.Equal(mr.Bytes()[:64], make([]byte, 64)) {
				t.Fatalf("forged packets: got %+v, %v, want all dropped", wc[:n], err)
			}
			copy(mr.Bytes()[64:], "genuine")
			if err := qps[0].PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.Signaled,
				Local: mr.SGE(64, 7)}); err != nil {
				t.Fatal(err)
			}
			got := 0
			testutil.Eventually(t, "the completions of the genuine message", func() bool {
				n, err := cq.Poll(wc[:])
				if err != nil {
					t.Fatal(err)
				}
				got += n
				return got >= 2
			})
			if got != 2 || string(mr.Bytes()[:7]) != "genuine" {
				t.Errorf("afterwards: %d completions and %q", got, mr.Bytes()[:7])
			}
		})
	}
}

// rebind binds the forger to another port of its address if the port is free.
func (f *packetForger) rebind(port uint16) bool {
	f.t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO); err != nil {
		f.t.Fatal(err)
	}
	if unix.Bind(fd, &unix.SockaddrInet4{Addr: f.from.Addr().As4(), Port: int(port)}) != nil {
		return false
	}
	f.fd, f.from = fd, netip.AddrPortFrom(f.from.Addr(), port)
	f.flow = roce.NewFlow(f.from, f.to)
	return true
}

// sendUC sends a message to a UC queue pair in a forged packet.
func (f *packetForger) sendUC(qpn, psn uint32) {
	f.t.Helper()
	const payload = "forged!!"
	b := make([]byte, roce.BTHLen+len(payload)+roce.ICRCLen)
	roce.BTH(b).Encode(&roce.BTHFields{Opcode: roce.UCSendOnly, PKey: 0xffff, DestQPN: qpn, PSN: roce.PSN(psn)})
	copy(b[roce.BTHLen:], payload)
	f.flow.Seal(0, b)
	if err := unix.Sendto(f.fd, b, 0, &unix.SockaddrInet4{Port: int(f.to.Port()), Addr: f.to.Addr().As4()}); err != nil &&
		err != unix.ECONNREFUSED {
		f.t.Fatal(err)
	}
	if psn%16 == 0 {
		time.Sleep(time.Millisecond)
	}
}
