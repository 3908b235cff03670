// Command sendfile sends a file by RDMA WRITE. The parts of the file are written directly to the receiver's memory.
// Immediate data with the last part reports the length of the file, and that all parts have arrived.
//
//	go run ./examples/sendfile README.md
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"

	"verbena/verbs"
	"verbena/verbs/embed"
)

const (
	partSize = 64 << 10
	inFlight = 16 // maximum number of parts in flight
)

// sendFile writes a file to the memory of the peer, which must have posted a receive. The file has at least 1 byte, and
// at most 2^32-1 bytes, because immediate data has 32 bits. sendFile sleeps until all parts have completed.
func sendFile(ctx context.Context, qp *verbs.QP, cq *verbs.CQ, file *verbs.MR, to verbs.Remote) error {
	wc := make([]verbs.WC, inFlight)
	left := file.Len()
	for posted, done := 0, 0; done < posted || left > 0; {
		if n := min(left, partSize); n > 0 && posted-done < inFlight {
			at := file.Len() - left
			wr := verbs.SendWR{
				Opcode: verbs.Write, Flags: verbs.Signaled, Local: file.SGE(at, n),
				Remote: verbs.Remote{Addr: to.Addr + uint64(at), RKey: to.RKey},
			}
			if left -= n; left == 0 {
				wr.Opcode, wr.Imm = verbs.WriteWithImm, uint32(file.Len())
			}
			if err := qp.PostSend(&wr); err != nil {
				return err
			}
			posted++
			continue
		}
		n, err := cq.Wait(ctx, wc)
		if err != nil {
			return err
		}
		for i := range n {
			if err := verbs.CompletionError(&wc[i]); err != nil {
				return err
			}
		}
		done += n
	}
	return nil
}

// transferFile sends contents to a receiver in this process, and returns the received data.
func transferFile(ctx context.Context, contents []byte) ([]byte, error) {
	stack, err := embed.NewSoftware()
	if err != nil {
		return nil, err
	}
	defer stack.Close()
	dev, err := stack.Open("")
	if err != nil {
		return nil, err
	}
	defer dev.Close() // Close also destroys all objects of the device
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	file, err := pd.RegSlice(contents, 0)
	if err != nil {
		return nil, err
	}
	memory, err := pd.Alloc(len(contents), verbs.LocalWrite|verbs.RemoteWrite)
	if err != nil {
		return nil, err
	}
	var (
		cqs [2]*verbs.CQ
		qps [2]*verbs.QP
	)
	for i := range qps {
		if cqs[i], err = dev.CreateCQ(inFlight+1, nil); err != nil {
			return nil, err
		}
		if qps[i], err = pd.CreateQP(verbs.QPInit{SendCQ: cqs[i], SendWRs: inFlight}); err != nil {
			return nil, err
		}
	}
	if err := verbs.ConnectPair(qps[0], qps[1]); err != nil {
		return nil, err
	}
	if err := qps[1].PostRecv(&verbs.RecvWR{}); err != nil { // immediate data consumes one receive, which needs no memory
		return nil, err
	}
	if err := sendFile(ctx, qps[0], cqs[0], file, memory.Remote(0)); err != nil {
		return nil, err
	}
	var wc [1]verbs.WC
	if _, err := cqs[1].Wait(ctx, wc[:]); err != nil {
		return nil, err
	}
	if err := verbs.CompletionError(&wc[0]); err != nil {
		return nil, err
	}
	return bytes.Clone(memory.Bytes()[:wc[0].Imm]), nil // closing the device frees the memory
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: sendfile FILE")
	}
	contents, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	got, err := transferFile(context.Background(), contents)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes sent, %d received, equal: %v\n", len(contents), len(got), bytes.Equal(contents, got))
}
