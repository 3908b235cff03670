// Command ibpingpong is examples/pingpong as a consumer of package ib. Two queue pairs of a software device
// exchange a message, without user contexts and package verbs. The benchmark records the figures of this command.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/netip"
	"time"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/link"
	"verbena/netdev"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("ibpingpong: ")
	size := flag.Int("size", 4096, "message size in `bytes`")
	n := flag.Int("n", 10000, "number of round trips")
	overWire := flag.Bool("wire", false,
		"send packets through UDP sockets instead of taking the shortcut within the process")
	addr := flag.String("addr", "127.0.0.1", "`IP` address of the device, one of this host; port 4791 must be free there")
	flag.Parse()
	if *size < 1 || *n < 1 {
		log.Fatal("-size and -n must be positive")
	}
	d, err := exchangeMessages(*addr, *size, *n, *overWire)
	if err != nil {
		log.Fatal(err)
	}
	path := "shortcut within the process"
	if *overWire {
		path = "UDP port 4791 on " + *addr
	}
	fmt.Printf("%d round trips of %d bytes over %s in %v: %.2f usec per round trip\n",
		*n, *size, path, d.Round(time.Microsecond), float64(d.Nanoseconds())/1e3/float64(*n))
}

// exchangeMessages makes a device and exchanges n messages.
func exchangeMessages(addr string, size, n int, overWire bool) (time.Duration, error) {
	ip, err := netip.ParseAddr(addr)
	if err != nil {
		return 0, err
	}
	host, err := netdev.ByAddr(ip)
	if err != nil {
		return 0, err
	}
	dev, err := rxe.New(rxe.Config{
		Name:    "rxe0",
		Netdev:  *host,
		Addrs:   []netip.Addr{ip},
		Network: link.UDP(link.UDPOptions{}),
		Fabric:  &rxe.Fabric{},
	})
	if err != nil {
		return 0, err
	}
	defer dev.Close()
	dev.SetShortcut(!overWire)
	var core ib.Core
	if err := core.Register(dev.Handle()); err != nil {
		return 0, err
	}
	defer core.Unregister(dev.Handle())

	a, err := newEndpoint(dev.IB(), size)
	if err != nil {
		return 0, err
	}
	defer a.close()
	b, err := newEndpoint(dev.IB(), size)
	if err != nil {
		return 0, err
	}
	defer b.close()
	here, err := dev.IB().Local(1)
	if err != nil {
		return 0, err
	}
	if err := ib.ConnectPair(a.qp, b.qp, here, here, ib.Path{}); err != nil {
		return 0, err
	}

	for i := range a.buf {
		a.buf[i] = byte(i)
	}
	start := time.Now()
	for range n {
		for _, hop := range [][2]*endpoint{{a, b}, {b, a}} {
			if err := hop[0].sendTo(hop[1]); err != nil {
				return 0, err
			}
		}
	}
	took := time.Since(start)
	for i := range a.buf {
		if a.buf[i] != byte(i) {
			return 0, fmt.Errorf("byte %d of the returned message: got %#x, want the sent byte", i, a.buf[i])
		}
	}
	return took, nil
}

// endpoint is one end of the connection.
type endpoint struct {
	pd  *ib.PD
	cq  *ib.CQ
	mr  *ib.MR
	qp  *ib.QP
	buf []byte
	wc  [4]ib.WC
}

func newEndpoint(d *ib.Device, size int) (s *endpoint, err error) {
	s = &endpoint{buf: make([]byte, size)}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.pd, err = d.AllocPD(); err != nil {
		return nil, err
	}
	if s.mr, err = s.pd.RegBytes(s.buf, ib.AccessLocalWrite); err != nil {
		return nil, err
	}
	if s.cq, err = d.CreateCQ(ib.CQInit{Entries: 16}); err != nil {
		return nil, err
	}
	s.qp, err = s.pd.CreateQP(ib.QPInitAttr{
		SendCQ: s.cq, RecvCQ: s.cq, Type: ib.QPTypeRC,
		Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	return s, err
}

func (s *endpoint) close() {
	if s.qp != nil {
		s.qp.Destroy()
	}
	if s.cq != nil {
		s.cq.Destroy()
	}
	if s.mr != nil {
		s.mr.Dereg()
	}
	if s.pd != nil {
		s.pd.Dealloc()
	}
}

func (s *endpoint) sge() []ib.SGE {
	return []ib.SGE{{Addr: s.mr.Addr(), Length: uint32(len(s.buf)), LKey: s.mr.LKey()}}
}

// sendTo sends the buffer to the peer, and waits for the completions of both sides.
func (s *endpoint) sendTo(peer *endpoint) error {
	if _, err := peer.qp.PostRecv(ib.RecvWR{ID: 1, SGList: peer.sge()}); err != nil {
		return err
	}
	if _, err := s.qp.PostSend(ib.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: s.sge()}); err != nil {
		return err
	}
	if err := peer.awaitCompletions(); err != nil {
		return err
	}
	return s.awaitCompletions()
}

func (s *endpoint) awaitCompletions() error {
	deadline := time.Now().Add(5 * time.Second)
	for i := 0; ; i++ {
		n, err := s.cq.Poll(s.wc[:1])
		if err != nil {
			return err
		}
		if n == 1 {
			if s.wc[0].Status != ib.WCSuccess {
				return fmt.Errorf("work request %d: %v", s.wc[0].ID, s.wc[0].Status)
			}
			return nil
		}
		if i%1024 == 1023 && time.Now().After(deadline) {
			return fmt.Errorf("no completion within 5 s")
		}
	}
}
