package transport_test

import (
	"testing"

	"verbena/engine/transport"
	"verbena/roce"
)

// TestResponsesAtOnce: consecutive middle responses are accepted at once only if each would be accepted alone, with the
// same resulting state.
func TestResponsesAtOnce(t *testing.T) {
	const chunk = transport.ReadChunk / mtu // number of packets
	const first = roce.PSN(0xfffff0)
	for _, c := range []struct {
		name       string
		request    string
		psn        int // first PSN, relative to the PSN of the request
		n, size    int
		before     int // number of earlier responses
		ok         bool
		wantOffset int
		unsent     bool
	}{
		{name: "after the first", request: "read 100000", before: 1, psn: 1, n: 10, size: mtu, ok: true, wantOffset: mtu},
		{name: "up to the last but one of a request", request: "read 100000", before: 1, psn: 1, n: chunk - 2, size: mtu, ok: true, wantOffset: mtu},
		{name: "in the second request", request: "read 200000", before: chunk + 1, psn: chunk + 1, n: 5, size: mtu, ok: true, wantOffset: (chunk + 1) * mtu},
		{name: "one has been lost", request: "read 100000", before: 1, psn: 2, n: 10, size: mtu},
		{name: "one comes again", request: "read 100000", before: 2, psn: 1, n: 10, size: mtu},
		{name: "with the last of a request", request: "read 100000", before: 1, psn: 1, n: chunk - 1, size: mtu},
		{name: "across two requests", request: "read 200000", before: 1, psn: 1, n: chunk + 5, size: mtu},
		{name: "with the last of all", request: "read 10000", before: 1, psn: 1, n: 9, size: mtu},
		{name: "more than there are", request: "read 10000", before: 1, psn: 1, n: 20, size: mtu},
		{name: "shorter ones", request: "read 100000", before: 1, psn: 1, n: 10, size: mtu - 4},
		{name: "longer ones", request: "read 100000", before: 1, psn: 1, n: 10, size: mtu + 4},
		{name: "to a SEND", request: "send 100000", psn: 0, n: 10, size: mtu},
		{name: "to nothing", psn: 0, n: 1, size: mtu},
		{name: "to a request that has not been sent", request: "read 100000", psn: 0, n: 10, size: mtu, unsent: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r [2]*requester
			for i := range r {
				r[i] = newRequester(t, first)
				if c.request != "" {
					r[i].push(c.request)
				}
				if !c.unsent {
					r[i].transmit()
				}
				for k := range c.before {
					one(r[i], k)
				}
			}
			off, ok := r[0].Responses(first.Add(c.psn), c.n, c.size)
			if ok != c.ok || ok && off != c.wantOffset {
				t.Fatalf("got %d, %t, want %d, %t", off, ok, c.wantOffset, c.ok)
			}
			if !ok {
				return
			}
			r[0].StoredAll(c.n)
			for k := range c.n {
				one(r[1], c.psn+k)
			}
			for _, x := range r {
				x.verify()
			}
			if got, want := r[0].Status(), r[1].Status(); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// one handles and stores the response with a PSN relative to the PSN of the only request.
func one(r *requester, psn int) {
	r.Helper()
	const chunk = transport.ReadChunk / mtu
	x := transport.Response{PSN: r.first.Add(psn), Op: roce.RDMAReadResponseMiddle, Length: mtu, Syndrome: roce.ACKUnlimited}
	switch psn % chunk {
	case 0:
		x.Op = roce.RDMAReadResponseFirst
	case chunk - 1:
		x.Op = roce.RDMAReadResponseLast
	}
	if _, _, ok := r.Response(&x); !ok {
		r.Fatalf("response %d was not taken", psn)
	}
	r.Stored()
}

// TestExecutedAtOnce: the execution of several middle packets at once and one by one results in the same state.
func TestExecutedAtOnce(t *testing.T) {
	for _, asks := range []bool{false, true} {
		var r [2]transport.Receiver
		for i := range r {
			r[i].SetMTU(mtu)
			r[i].Begin(0xfffffe)
			r[i].Executed(&transport.Arrival{Kind: transport.Send, Starts: true, Length: mtu}, false)
		}
		middle := transport.Arrival{Kind: transport.Send, Length: mtu}
		r[0].ExecutedAll(&middle, 5, asks)
		for i := range 5 {
			r[1].Executed(&middle, asks && i == 4)
		}
		a, due := r[0].Ack()
		b, wantDue := r[1].Ack()
		if r[0].PSN() != r[1].PSN() || r[0].MSN() != r[1].MSN() || r[0].Within() != r[1].Within() || due != wantDue || due && a != b {
			t.Errorf("asks %t: got PSN %d, ack %v %t, want %d, %v %t", asks, r[0].PSN(), a, due, r[1].PSN(), b, wantDue)
		}
	}
}
