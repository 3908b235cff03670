package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/check"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRunEchoesWords(t *testing.T) {
	if err := run([]string{"hello", "", "world"}); err != nil {
		t.Error(err)
	}
}

// TestEchoAnswersManyCallers checks that the service answers many callers, while devices are registered and
// unregistered, and that no rule of the contract is broken.
func TestEchoAnswersManyCallers(t *testing.T) {
	core := &ib.Core{}
	check.On(core, check.Config{Report: func(v check.Violation) { t.Error(v) }})
	var service Echo
	client := service.Client()
	if err := core.RegisterClient(client); err != nil {
		t.Fatal(err)
	}
	for round := range 5 {
		d := loopback.New(fmt.Sprint("loop", round), t.Logf)
		if err := core.Register(d.Handle()); err != nil {
			t.Fatal(err)
		}
		qpn := service.QPN(d.IB().Name())
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				c, err := dial(d.IB(), qpn)
				if err != nil {
					t.Error(err)
					return
				}
				for k := range 50 {
					message := bytes.Repeat([]byte{byte(i), byte(k)}, k*10)
					if answer, err := c.call(message, 10*time.Second); err != nil || !bytes.Equal(answer, message) {
						t.Errorf("caller %d, message %d: %d bytes, %v", i, k, len(answer), err)
					}
				}
				if err := c.close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if round == 4 { // the service unregisters before its callers
			core.UnregisterClient(client)
		}
		if err := core.Unregister(d.Handle()); err != nil {
			t.Error(err)
		}
		if service.QPN(d.IB().Name()) != 0 {
			t.Error("QPN after Unregister: got the service's number, want 0")
		}
	}
}

// TestUnregisterUnderTraffic checks that a device can be unregistered while messages are in flight.
func TestUnregisterUnderTraffic(t *testing.T) {
	core := &ib.Core{}
	check.On(core, check.Config{Report: func(v check.Violation) { t.Error(v) }})
	var service Echo
	flood := &ib.Client{
		Name: "flood",
		Add: func(d *ib.Device) (any, error) {
			c, err := dial(d, service.QPN(d.Name()))
			if err != nil {
				return nil, err
			}
			stop, stopped := make(chan int), make(chan int)
			go func() {
				defer close(stopped)
				for k := 0; ; k++ {
					select {
					case <-stop:
						return
					default:
						c.postSend(1, c.ah, c.qpn, uint32(k%1000), nil)
					}
				}
			}()
			return func() {
				close(stop)
				<-stopped
				if err := c.close(); err != nil {
					t.Error(err)
				}
			}, nil
		},
		Remove: func(d *ib.Device, data any) { data.(func())() },
	}
	for _, cl := range []*ib.Client{service.Client(), flood} {
		if err := core.RegisterClient(cl); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		d := loopback.New("loop0", t.Logf)
		if err := core.Register(d.Handle()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * time.Millisecond)
		if err := core.Unregister(d.Handle()); err != nil {
			t.Error(err)
		}
	}
}

func TestSenderGIDOfIPv4AndIPv6(t *testing.T) {
	v6 := make([]byte, grhLen)
	v6[0] = 0x60
	want := ib.GIDFromAddr(netip.MustParseAddr("fd00::7"))
	copy(v6[8:], want[:])
	if got := senderGID(v6); got != want {
		t.Errorf("IPv6: %v", got)
	}
	v4 := make([]byte, grhLen)
	v4[20] = 0x45
	copy(v4[32:], []byte{10, 1, 2, 3})
	if got := senderGID(v4); got != ib.GIDFromAddr(netip.MustParseAddr("10.1.2.3")) {
		t.Errorf("IPv4: %v", got)
	}
}
