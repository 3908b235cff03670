package efa_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"verbena/driver/efa"
	"verbena/engine"
	"verbena/ib"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/roce"
	abi "verbena/uapi/efa"
)

// TestCounters tests the hw_counters of the kernel's efa at both ends of requests of each kind.
func TestCounters(t *testing.T) {
	for name, c := range map[string]struct {
		post func(a, b *program, ah uint16)
		want abi.CompStatus
		a, b map[string]uint64 // counters of messages that change
	}{
		"send": {post: func(a, b *program, ah uint16) {
			b.recv(1, 0, 100)
			a.send(1, ah, b.qp.Num(), 0, 30, nil)
		}, a: map[string]uint64{"send_wrs": 1, "send_bytes": 30}, b: map[string]uint64{"recv_wrs": 1, "recv_bytes": 30}},
		"send without receive": {post: func(a, b *program, ah uint16) { a.send(1, ah, b.qp.Num(), 0, 30, nil) },
			want: abi.IOCompStatusRemoteErrorRNR, a: map[string]uint64{
				"retrans_pkts": 3, "retrans_bytes": 60, "rcvd_rnr_err": 3, "retry_rnr_exceeded_err": 1,
			}, b: map[string]uint64{"send_rnr_err": 3}},
		"write": {post: func(a, b *program, ah uint16) {
			a.rdma(1, ah, b.qp.Num(), abi.IORDMAWrite, 0, 90<<10, b.mr.RKey(), b.addr, false)
		}, a: map[string]uint64{"rdma_write_wrs": 1, "rdma_write_bytes": 90 << 10},
			b: map[string]uint64{"rdma_write_recv_bytes": 90 << 10}},
		"write with immediate": {post: func(a, b *program, ah uint16) {
			b.recv(1, 0, 0)
			a.rdma(1, ah, b.qp.Num(), abi.IORDMAWrite, 0, 5000, b.mr.RKey(), b.addr, true)
		}, a: map[string]uint64{"rdma_write_wrs": 1, "rdma_write_bytes": 5000},
			b: map[string]uint64{"rdma_write_recv_bytes": 5000}},
		"write with a wrong key": {post: func(a, b *program, ah uint16) {
			a.rdma(1, ah, b.qp.Num(), abi.IORDMAWrite, 0, 8, b.mr.RKey()^0x100, b.addr, false)
		}, want: abi.IOCompStatusRemoteErrorBadAddress, a: map[string]uint64{"rdma_write_wr_err": 1, "retrans_pkts": 1}},
		"read": {post: func(a, b *program, ah uint16) {
			a.rdma(1, ah, b.qp.Num(), abi.IORDMARead, 0, 90<<10, b.mr.RKey(), b.addr, false)
		}, a: map[string]uint64{"rdma_read_wrs": 1, "rdma_read_bytes": 90 << 10},
			b: map[string]uint64{"rdma_read_resp_bytes": 90 << 10}},
		"read behind the end": {post: func(a, b *program, ah uint16) {
			a.rdma(1, ah, b.qp.Num(), abi.IORDMARead, 0, 8, b.mr.RKey(), b.addr+uint64(len(b.buf)), false)
		}, want: abi.IOCompStatusRemoteErrorBadAddress, a: map[string]uint64{"rdma_read_wr_err": 1, "retrans_pkts": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, ah, _ := newSRD(t, simnet.New(simnet.Config{Latency: 10 * time.Microsecond}))
				a.toRTS(2)
				b.recv(100, 0, 100)
				a.send(100, ah, b.qp.Num(), 0, 3, nil)
				a.await(100, abi.IOCompStatusOK)
				time.Sleep(time.Second) // until the last acknowledgement has come
				before := map[*program]map[string]uint64{a: a.dev.Stats(), b: b.dev.Stats()}
				c.post(a, b, ah)
				a.await(1, c.want)
				time.Sleep(time.Second)
				for p, want := range map[*program]map[string]uint64{a: c.a, b: c.b} {
					now := p.dev.Stats()
					for _, name := range []string{
						"send_wrs", "send_bytes", "recv_wrs", "recv_bytes", "rdma_read_wrs", "rdma_read_bytes", "rdma_read_wr_err",
						"rdma_read_resp_bytes", "rdma_write_wrs", "rdma_write_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes",
						"retrans_bytes", "retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events", "rx_drops",
						"rcvd_rnr_err", "send_rnr_err", "retry_rnr_exceeded_err", "retry_exceeded_err",
					} {
						got, known := now[name]
						if got -= before[p][name]; got != want[name] || !known {
							t.Errorf("requester %t: %s: got %d more (known: %t), want %d", p == a, name, got, known, want[name])
						}
					}
				}
				sent, received := a.dev.Stats(), b.dev.Stats()
				for of, other := range map[string]string{"tx_bytes": "rx_bytes", "tx_pkts": "rx_pkts"} {
					if sent[of] != received[other] || sent[other] != received[of] || sent[of] < 2 || sent[other] < 2 {
						t.Errorf("%s and %s: got %d and %d, and %d and %d at the peer", of, other, sent[of], sent[other], received[of],
							received[other])
					}
				}
			})
		})
	}
}

// TestCountersOfLoss tests the counters of lost packets, and of a peer that does not answer.
func TestCountersOfLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
		a, b, ah, _ := newSRD(t, net)
		b.recv(1, 0, 100)
		a.send(1, ah, b.qp.Num(), 0, 3, nil)
		a.await(1, abi.IOCompStatusOK)
		time.Sleep(time.Second)
		before := a.dev.Stats()
		a.check(net.Faults().Add(link.Rule{Drop: 1, Limit: 1}))
		b.recv(2, 0, 100)
		a.send(2, ah, b.qp.Num(), 0, 30, nil)
		a.await(2, abi.IOCompStatusOK)
		s := a.dev.Stats()
		for name, want := range map[string]uint64{"retrans_pkts": 1, "retrans_bytes": 30, "retrans_timeout_events": 1,
			"unresponsive_remote_events": 0} {
			if got := s[name] - before[name]; got != want {
				t.Errorf("%s after a loss: got %d more, want %d", name, got, want)
			}
		}
		net.SetLink(netip.MustParseAddr("10.0.0.2"), false)
		a.send(3, ah, b.qp.Num(), 0, 3, nil)
		a.await(3, abi.IOCompStatusLocalErrorUnrespRemote)
		for _, name := range []string{"unresponsive_remote_events", "retry_exceeded_err"} {
			if got := a.dev.Stats()[name]; got != 1 {
				t.Errorf("%s: got %d, want 1", name, got)
			}
		}
	})
}

// TestCountersOfDatagrams tests the counters of UD.
func TestCountersOfDatagrams(t *testing.T) {
	net := simnet.New(simnet.Config{})
	a, b := newProgram(t, net, "10.0.0.1", ib.QPTypeUD), newProgram(t, net, "10.0.0.2", ib.QPTypeUD)
	_, ah := a.newAH("10.0.0.2")
	b.recv(1, 0, 1000)
	a.send(1, ah, b.qp.Num(), 0, 100, nil)
	a.poll()
	b.poll()
	sent, received := a.dev.Stats(), b.dev.Stats()
	if sent["send_wrs"] != 1 || sent["send_bytes"] != 100 || sent["tx_pkts"] != 1 || sent["tx_bytes"] < 100 {
		t.Errorf("sender: got %d requests, %d bytes, %d packets of %d bytes, want 1, 100, 1, 100 or more", sent["send_wrs"],
			sent["send_bytes"], sent["tx_pkts"], sent["tx_bytes"])
	}
	if received["recv_wrs"] != 1 || received["recv_bytes"] != 100+grhLen || received["rx_bytes"] != sent["tx_bytes"] {
		t.Errorf("receiver: got %d messages, %d bytes, packets of %d bytes, want 1, 140, %d", received["recv_wrs"],
			received["recv_bytes"], received["rx_bytes"], sent["tx_bytes"])
	}
}

// TestCountersOfShortcut tests the counters of packets from a device to itself.
func TestCountersOfShortcut(t *testing.T) {
	var fabric engine.Fabric
	a := newProgram(t, simnet.New(simnet.Config{}), "10.0.0.1", ib.QPTypeUD, func(c *efa.Config) { c.Fabric = &fabric })
	_, ah := a.newAH("10.0.0.1")
	a.recv(1, 1000, 1000)
	a.send(2, ah, a.qp.Num(), 0, 100, nil)
	a.poll()
	a.poll()
	s := a.dev.Stats()
	n := uint64(roce.UDSendOnly.PacketLen(100))
	if s["sent_shortcut_pkts"] != 1 || s["tx_bytes"] != n || s["rx_bytes"] != n {
		t.Errorf("packets by the shortcut: got %d, %d bytes sent, %d received, want 1, %d, %d", s["sent_shortcut_pkts"],
			s["tx_bytes"], s["rx_bytes"], n, n)
	}
}

// TestCountersOfFirstMessage tests the number of packets of a message to a new peer: the first packet opens a flow, and
// its answer is no acknowledgement.
func TestCountersOfFirstMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, ah, _ := newSRD(t, simnet.New(simnet.Config{Latency: 10 * time.Microsecond}))
		b.recv(1, 0, 100)
		a.send(1, ah, b.qp.Num(), 0, 30, nil)
		a.await(1, abi.IOCompStatusOK)
		time.Sleep(time.Second)
		for p, name := range map[*program]string{a: "requester", b: "responder"} {
			if got := p.dev.Stats()["sent_pkts"]; got != 2 {
				t.Errorf("packets of the %s: got %d, want 2", name, got)
			}
		}
	})
}

// TestCountersOfCopies tests that a repeated packet counts as a duplicate.
func TestCountersOfCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
		a, b, ah, _ := newSRD(t, net)
		b.recv(1, 0, 100)
		a.send(1, ah, b.qp.Num(), 0, 30, nil)
		a.await(1, abi.IOCompStatusOK)
		if err := net.Faults().Add(link.Rule{Duplicate: 1}); err != nil {
			t.Fatal(err)
		}
		before := b.dev.Stats()["duplicate_request"]
		b.recv(2, 0, 100)
		a.send(2, ah, b.qp.Num(), 0, 30, nil)
		a.await(2, abi.IOCompStatusOK)
		time.Sleep(time.Second)
		if got := b.dev.Stats()["duplicate_request"] - before; got != 1 {
			t.Errorf("duplicate_request: got %d more, want 1", got)
		}
	})
}

// TestCountersOfRefusal tests that the refusal of a message to an unknown queue pair counts as one sent packet.
func TestCountersOfRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, ah, _ := newSRD(t, simnet.New(simnet.Config{Latency: 10 * time.Microsecond}))
		a.send(1, ah, b.qp.Num()+1, 0, 30, nil)
		a.await(1, abi.IOCompStatusRemoteErrorBadDestQPN)
		time.Sleep(time.Second)
		if sent, received := b.dev.Stats()["sent_pkts"], a.dev.Stats()["rcvd_pkts"]; sent != 1 || received != 1 {
			t.Errorf("refusals: got %d sent and %d received, want 1", sent, received)
		}
	})
}
