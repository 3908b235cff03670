package rdmanet_test

import (
	"fmt"
	"io"
	"net"
	"testing"

	"verbena/rdmanet"
)

// BenchmarkConn measures the round trip of a 64-byte message, and the bandwidth of Writes of several sizes. TCP over
// the loopback interface is the reference. Both ends are in this process. Both ends use the device that VERBS_DEVICE
// names, if it is set.
func BenchmarkConn(b *testing.B) {
	for _, x := range []struct {
		name string
		pair func(*testing.B) (a, c net.Conn)
	}{
		{"rdma", func(b *testing.B) (net.Conn, net.Conn) {
			d := openTestDevice(b)
			return connectDevices(b, d, d, rdmanet.Config{}, rdmanet.Config{})
		}},
		{"tcp", func(b *testing.B) (net.Conn, net.Conn) {
			l, err := net.Listen("tcp", "127.0.0.80:0")
			must(b, err)
			defer l.Close()
			a, err := net.Dial("tcp", l.Addr().String())
			must(b, err)
			c, err := l.Accept()
			must(b, err)
			b.Cleanup(func() { a.Close(); c.Close() })
			return a, c
		}},
	} {
		b.Run("latency/"+x.name, func(b *testing.B) {
			a, c := x.pair(b)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{c}, make([]byte, 64))
			}()
			msg := make([]byte, 64)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if _, err := a.Write(msg); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(a, msg); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			a.Close()
			<-done
		})
		for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("bandwidth/%d/%s", size, x.name), func(b *testing.B) {
				a, c := x.pair(b)
				done := make(chan struct{})
				go func() {
					defer close(done)
					buf := make([]byte, 64<<10)
					n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, buf)
					if n != int64(size*b.N) {
						b.Errorf("read %d bytes, want %d", n, size*b.N)
					}
				}()
				msg := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					if _, err := a.Write(msg); err != nil {
						b.Fatal(err)
					}
				}
				a.Close()
				<-done
			})
		}
	}
}
