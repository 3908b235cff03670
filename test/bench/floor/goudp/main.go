// Command goudp measures the floor of the wire in Go. The command streams messages over a pair of UDP sockets with
// segmentation and receive offload. Two locked and pinned threads compute a CRC-32 over each packet of 4 KB at both
// ends.
//
//	goudp SIZE N
//
// The command prints "mean=US", in microseconds per message, like the floors in C. The receiver's count in shared
// memory is the only flow control.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	data     = 4096
	packet   = data + 4
	segments = 15
	limit    = 5 * time.Second
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("goudp: ")
	if len(os.Args) != 3 {
		log.Fatal("usage: goudp SIZE N")
	}
	size, err1 := strconv.Atoi(os.Args[1])
	n, err2 := strconv.Atoi(os.Args[2])
	if err := errors.Join(err1, err2); err != nil || size < data || n < 1 {
		log.Fatalf("SIZE %s and N %s: want numbers of at least %d and 1", os.Args[1], os.Args[2], data)
	}
	took, err := sendStream((size+data-1)/data, n)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("mean=%.6f\n", float64(took.Nanoseconds())/1e3/float64(n))
}

// sendStream sends n messages of the given number of packets, after a warm-up of n/10, and returns the time of the n
// messages.
func sendStream(packets, n int) (time.Duration, error) {
	out, in, err := openSockets()
	if err != nil {
		return 0, err
	}
	defer unix.Close(out)
	defer unix.Close(in)
	buffer, err := unix.GetsockoptInt(in, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 0, fmt.Errorf("getsockopt SO_RCVBUF: %w", err)
	}
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return 0, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var received atomic.Int64 // number of packets
	warm, total := int64(packets)*int64(n/10), int64(packets)*int64(n+n/10)
	ended := make(chan error, 1)
	go func() {
		ended <- runOnProcessor(&allowed, 1, func() error { return receivePackets(in, total, &received) })
	}()
	var began time.Time
	err = runOnProcessor(&allowed, 0, func() error {
		if err := sendPackets(out, 0, warm, int64(buffer)/4/packet, &received); err != nil {
			return err
		}
		for received.Load() < warm {
			if len(ended) > 0 {
				return errors.New("the receiver ended")
			}
		}
		began = time.Now()
		return sendPackets(out, warm, total, int64(buffer)/4/packet, &received)
	})
	err = errors.Join(err, <-ended)
	return time.Since(began), err
}

// runOnProcessor runs f on a thread bound to the n-th of the allowed processors.
func runOnProcessor(allowed *unix.CPUSet, nth int, f func() error) error {
	runtime.LockOSThread() // permanently locked, because no other goroutine may run on a bound thread
	for cpu := range 1024 {
		if !allowed.IsSet(cpu) {
			continue
		}
		if nth--; nth < 0 {
			var one unix.CPUSet
			one.Set(cpu)
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				return fmt.Errorf("sched_setaffinity: %w", err)
			}
			return f()
		}
	}
	return errors.New("two threads that poll need two processors")
}

func openSockets() (out, in int, err error) {
	var at [2]unix.Sockaddr
	var fd [2]int
	for i := range fd {
		if fd[i], err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return 0, 0, fmt.Errorf("socket: %w", err)
		}
		if err := unix.Bind(fd[i], &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return 0, 0, fmt.Errorf("bind: %w", err)
		}
		if at[i], err = unix.Getsockname(fd[i]); err != nil {
			return 0, 0, fmt.Errorf("getsockname: %w", err)
		}
		if unix.SetsockoptInt(fd[i], unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) != nil { // needs CAP_NET_ADMIN
			unix.SetsockoptInt(fd[i], unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20)
		}
	}
	for i := range fd {
		if err := unix.Connect(fd[i], at[1-i]); err != nil {
			return 0, 0, fmt.Errorf("connect: %w", err)
		}
	}
	if err := unix.SetsockoptInt(fd[0], unix.IPPROTO_UDP, unix.UDP_SEGMENT, packet); err != nil {
		return 0, 0, fmt.Errorf("setsockopt UDP_SEGMENT: %w", err)
	}
	if err := unix.SetsockoptInt(fd[1], unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
		return 0, 0, fmt.Errorf("setsockopt UDP_GRO: %w", err)
	}
	tv := unix.NsecToTimeval(int64(limit))
	return fd[0], fd[1], unix.SetsockoptTimeval(fd[1], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
}

// sendPackets sends the packets from sent up to total, with at most window packets in flight before a batch.
func sendPackets(fd int, sent, total, window int64, received *atomic.Int64) error {
	buf := make([]byte, segments*packet)
	for sent < total {
		n := min(segments, total-sent)
		for p := range n {
			b := buf[p*packet:][:packet]
			binary.LittleEndian.PutUint32(b[data:], crc32.ChecksumIEEE(b[:data]))
		}
		var deadline time.Time
		for tries := 1; sent-received.Load() > window; tries++ {
			if tries%1_000_000 != 0 {
				continue
			}
			if deadline.IsZero() {
				deadline = time.Now().Add(limit)
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("send: %d packets in flight and none received within %v: datagrams were lost",
					sent-received.Load(), limit)
			}
		}
		if _, err := unix.Write(fd, buf[:n*packet]); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		sent += n
	}
	return nil
}

func receivePackets(fd int, total int64, received *atomic.Int64) error {
	buf := make([]byte, 65536)
	for got := int64(0); got < total; received.Store(got) {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if n == 0 || n%packet != 0 {
			return fmt.Errorf("receive: %d bytes are not whole packets of %d", n, packet)
		}
		for b := buf[:n]; len(b) > 0; b = b[packet:] {
			if binary.LittleEndian.Uint32(b[data:]) != crc32.ChecksumIEEE(b[:data]) {
				return errors.New("receive: wrong CRC")
			}
			got++
		}
	}
	return nil
}
