// Command gotcp measures TCP over the loopback interface between two processes that use package net.
//
//	gotcp pingpong SIZE N   half a round trip
//	gotcp stream SIZE N     a stream of N writes of SIZE bytes
//
// The command prints "mean=US", in microseconds per message, like the floors in C. For a ping-pong it also prints
// "typical=US p99=US".
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("gotcp: ")
	if len(os.Args) < 4 || os.Args[1] != "pingpong" && os.Args[1] != "stream" {
		log.Fatal("usage: gotcp pingpong|stream SIZE N")
	}
	size, err1 := strconv.Atoi(os.Args[2])
	n, err2 := strconv.Atoi(os.Args[3])
	if err := errors.Join(err1, err2); err != nil || size < 1 || n < 1 {
		log.Fatalf("SIZE %s and N %s: want numbers of at least 1", os.Args[2], os.Args[3])
	}
	x := exchange{stream: os.Args[1] == "stream", n: n, warm: n / 10, message: make([]byte, size)}
	var err error
	if len(os.Args) == 5 { // an address means that this process is the server
		err = x.serve(os.Args[4])
	} else {
		err = x.runClient()
	}
	if err != nil {
		log.Fatal(err)
	}
}

type exchange struct {
	stream  bool
	n, warm int
	message []byte
}

// isAnswered reports whether the server answers message i. Messages below 0 are the warm-up.
func (x *exchange) isAnswered(i int) bool { return !x.stream || i == -1 || i == x.n-1 }

func (x *exchange) serve(addr string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	for i := -x.warm; i < x.n; i++ {
		if _, err := io.ReadFull(c, x.message); err != nil {
			return err
		}
		if !x.isAnswered(i) {
			continue
		}
		if _, err := c.Write(x.message); err != nil {
			return err
		}
	}
	return nil
}

// runClient runs the client, which starts the server.
func (x *exchange) runClient() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := exec.Command("/proc/self/exe", append(os.Args[1:4:4], l.Addr().String())...)
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		return err
	}
	c, err := l.Accept()
	if err != nil {
		return err
	}
	times := make([]time.Duration, 0, x.n)
	start := time.Now()
	for i := -x.warm; i < x.n; i++ {
		began := time.Now()
		if i == 0 {
			start = began
		}
		if _, err := c.Write(x.message); err != nil {
			return err
		}
		if x.isAnswered(i) {
			if _, err := io.ReadFull(c, x.message); err != nil {
				return err
			}
		}
		if i >= 0 {
			times = append(times, time.Since(began)/2)
		}
	}
	mean := toMicroseconds(time.Since(start)) / float64(x.n)
	if x.stream {
		fmt.Printf("mean=%.6f\n", mean)
	} else {
		slices.Sort(times)
		fmt.Printf("mean=%.4f typical=%.4f p99=%.4f\n", mean/2, toMicroseconds(times[x.n/2]),
			toMicroseconds(times[x.n*99/100]))
	}
	return server.Wait()
}

func toMicroseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
