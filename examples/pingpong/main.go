// Command pingpong sends a message back and forth between two queue pairs of one software device, or with -wire
// through UDP sockets.
package main

import (
	"bytes"
	"flag"
	"fmt"
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
	flag.Parse()
	each := exchangeMessages().Seconds() * 1e6 / float64(*n)
	fmt.Printf("%d round trips of %d bytes: %.2f usec per round trip\n", *n, *size, each)
}

// exchangeMessages sends n messages back and forth, and returns the time taken.
func exchangeMessages() time.Duration {
	stack := must(embed.NewSoftware(embed.Software{Addr: netip.MustParseAddr(*addr), Wire: *wire}))
	defer stack.Close()
	dev := must(stack.Open(""))
	defer dev.Close() // Close also destroys all objects of the device
	a, b := newSide(dev), newSide(dev)
	must(0, verbs.ConnectPair(a.qp, b.qp))
	message := bytes.Repeat([]byte("ping"), *size/4+1)[:*size]
	copy(a.mr.Bytes(), message)
	start := time.Now()
	for range *n {
		a.sendTo(b)
		b.sendTo(a)
	}
	took := time.Since(start)
	if !bytes.Equal(b.mr.Bytes(), message) {
		panic(fmt.Sprintf("message: got %q", b.mr.Bytes()))
	}
	return took
}

// connectionSide is one end of the connection.
type connectionSide struct {
	cq *verbs.CQ
	mr *verbs.MR
	qp *verbs.QP
	wc [1]verbs.WC
}

func newSide(dev *verbs.Device) *connectionSide {
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(16, nil))
	return &connectionSide{cq: cq, mr: must(pd.Alloc(*size, verbs.LocalWrite)),
		qp: must(pd.CreateQP(verbs.QPInit{SendCQ: cq}))}
}

// sendTo sends the memory's contents to the peer's memory, and waits until both sides have their completions.
func (s *connectionSide) sendTo(peer *connectionSide) {
	must(0, peer.qp.PostRecv(&verbs.RecvWR{Local: peer.mr.SGE(0, *size)}))
	must(0, s.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.Signaled, Local: s.mr.SGE(0, *size)}))
	for _, end := range []*connectionSide{peer, s} {
		for must(end.cq.Poll(end.wc[:])) == 0 { // CQ.Wait would sleep instead of polling
		}
		must(0, verbs.CompletionError(&end.wc[0]))
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
