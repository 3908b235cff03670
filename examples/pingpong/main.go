// Command pingpong sends a message to and fro between two queue pairs of one software device in its own process: no service, no
// /dev/infiniband, no C.
//
//	go run ./examples/pingpong -size 4096 -n 10000
//	go run ./examples/pingpong -wire          # through UDP sockets, as between two hosts
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"time"

	"verbena/verbs"
	"verbena/verbs/embed"
)

var (
	size = flag.Int("size", 4096, "message size in `bytes`")
	n    = flag.Int("n", 10000, "number of round trips")
	wire = flag.Bool("wire", false, "send packets through UDP sockets instead of taking the shortcut within the process")
	addr = flag.String("addr", "127.0.0.1", "`IP` address of the device, one of this host; port 4791 must be free there")
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("pingpong: ")
	flag.Parse()
	took := exchange()
	path := map[bool]string{false: "shortcut within the process", true: "UDP port 4791 on " + *addr}[*wire]
	each := float64(took.Nanoseconds()) / 1e3 / float64(*n)
	fmt.Printf("%d round trips of %d bytes over %s in %v: %.2f usec per round trip\n", *n, *size, path, took.Round(time.Microsecond), each)
}

// exchange sends n messages to and fro, and returns how long that took.
func exchange() time.Duration {
	stack := must(embed.NewSoftware(embed.Software{Addr: must(netip.ParseAddr(*addr)), Wire: *wire}))
	defer stack.Close()
	dev := must(stack.Open(""))
	defer dev.Close() // and all that is made on it
	a, b := newSide(dev), newSide(dev)
	check(verbs.ConnectPair(a.qp, b.qp))
	message := bytes.Repeat([]byte("ping"), *size/4+1)[:*size]
	copy(a.mr.Bytes(), message)
	start := time.Now()
	for range *n {
		a.sendTo(b)
		b.sendTo(a)
	}
	took := time.Since(start)
	if !bytes.Equal(a.mr.Bytes(), message) {
		log.Fatalf("the message came back as %q", a.mr.Bytes())
	}
	return took
}

// side is one end of the connection.
type side struct {
	cq *verbs.CQ
	mr *verbs.MR
	qp *verbs.QP
	wc [1]verbs.WC
}

func newSide(dev *verbs.Device) *side {
	pd := must(dev.AllocPD())
	cq := must(dev.CreateCQ(16, nil))
	return &side{cq: cq, mr: must(pd.Alloc(*size, verbs.LocalWrite)), qp: must(pd.CreateQP(verbs.QPInit{SendCQ: cq}))}
}

// sendTo sends the memory to the peer's, and waits until both sides have their completion.
func (s *side) sendTo(peer *side) {
	check(peer.qp.PostRecv(&verbs.RecvWR{Local: peer.mr.SGE(0, *size)}))
	check(s.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.Signaled, Local: s.mr.SGE(0, *size)}))
	peer.await()
	s.await()
}

// await polls for one completion. CQ.Wait would sleep after some time, and leave the processor to others.
func (s *side) await() {
	for got := 0; got == 0; {
		got = must(s.cq.Poll(s.wc[:]))
	}
	check(verbs.CompletionError(&s.wc[0]))
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
