package link

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
)

// BenchmarkUDPStream sends trains in one direction, with a window like that of a transport. It counts the bytes from
// the BTH to the ICRC. One end computes the ICRC and the other end checks it.
func BenchmarkUDPStream(b *testing.B) {
	for _, size := range []int{64, 1052, 4124} {
		for _, packets := range []int{1, 15, 61} {
			if size*packets > MaxTrain {
				continue
			}
			b.Run(fmt.Sprintf("%dx%d", packets, size), func(b *testing.B) {
				var got atomic.Int64
				dst := loopback()
				to := listen(b, UDP(UDPOptions{}), dst, receiverFunc(func(a *Arrival) { got.Add(int64(len(a.Packets))) }))
				from := listen(b, UDP(UDPOptions{}), loopback(), receiverFunc(func(*Arrival) {}))
				tr := makeTrain(dst, packets, size, size, 0)
				window := int64(max(packets, min(1024, 1<<20/size)))
				b.SetBytes(int64(len(tr.Buf)))
				b.ReportAllocs()
				var sent int64
				for b.Loop() {
					for sent-got.Load() > window {
						runtime.Gosched()
					}
					if err := from.Send(tr); err != nil {
						b.Fatal(err)
					}
					sent += int64(packets)
				}
				for got.Load() < sent {
					if stats(b, to).Overflows > 0 {
						b.Fatal("packets were lost")
					}
					runtime.Gosched()
				}
				b.ReportMetric(float64(sent)/b.Elapsed().Seconds()/1e6, "Mpkt/s")
			})
		}
	}
}

// BenchmarkUDPPingPong measures a round trip between two endpoints that answer from their receive threads.
func BenchmarkUDPPingPong(b *testing.B) {
	for _, size := range []int{64, 4124} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			there, here := loopback(), loopback()
			n := UDP(UDPOptions{})
			var echo, caller atomic.Pointer[Endpoint]
			left := b.N
			done := make(chan struct{})
			reply, ping := makeTrain(here, 1, size, size, 0), makeTrain(there, 1, size, size, 0)
			e := listen(b, n, there, receiverFunc(func(*Arrival) { (*echo.Load()).Send(reply) }))
			echo.Store(&e)
			c := listen(b, n, here, receiverFunc(func(*Arrival) {
				if left--; left == 0 {
					close(done)
					return
				}
				(*caller.Load()).Send(ping)
			}))
			caller.Store(&c)
			b.ResetTimer()
			c.Send(ping)
			<-done
		})
	}
}
