package rdmacm

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"verbena/ib"
	"verbena/rdmacm/msg"
)

// TestRejectionsAreReported checks the report of each cause of a rejected request, for both kinds of service, and that
// other ends of a request are not reported.
func TestRejectionsAreReported(t *testing.T) {
	const backlog = 1
	for _, c := range []struct {
		name string
		act  func(h *testHost, l, request *ID) // at the listening end, with its request
		want RejectionCause
		none bool // no report
	}{
		{name: "by the owner", want: RejectedByOwner, act: func(h *testHost, _, r *ID) {
			h.must(r.Reject(msg.ReasonConsumer, nil))
		}},
		{name: "by an error", want: RejectedByError, act: func(h *testHost, _, r *ID) {
			if r.Accept(Param{QPN: 2}, make([]byte, 4096)) == nil {
				t.Error("accept with 4096 bytes of data: got success, want an error")
			}
		}},
		{name: "by the end of the ID", want: RejectedByDestroy, act: func(_ *testHost, _, r *ID) { r.Destroy() }},
		{name: "by the removal of the device", want: RejectedByRemoval, act: func(h *testHost, _, _ *ID) {
			h.must(h.slot.Unplug())
		}},
		{name: "accepted, and then destroyed", none: true, act: func(h *testHost, _, r *ID) {
			h.must(r.Accept(Param{QPN: 2}, nil))
			time.Sleep(eventTimeout)
			if r.service != nil {
				r.Destroy()
			}
		}},
	} {
		for _, space := range []msg.PortSpace{msg.PortSpaceTCP, msg.PortSpaceUDP} {
			t.Run(c.name+" of "+space.String(), func(t *testing.T) {
				withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
					var la, lb eventLog
					var got []Rejection
					b.m.OnRejection(func(x Rejection) { got = append(got, x) })
					owned := func(addr netip.Addr) *ID {
						id, err := b.m.NewID(Options{Space: space, Type: ib.QPTypeRC, Event: lb.recordEvent, Owner: "server"})
						b.must(err)
						b.must(id.Bind(netip.AddrPortFrom(addr, testPort)))
						b.must(id.Listen(backlog))
						return id
					}
					l := owned(netip.IPv4Unspecified())
					id := a.newResolvedID(space, b, testPort, &la)
					a.must(id.Connect(Param{QPN: 1}, nil))
					request := lb.expectEvents(t, eventTimeout, ConnectRequest)[0].New
					want := []Rejection{{Cause: c.want, Peer: id.src, Owner: "server"}}
					if c.none {
						want = nil
					} else {
						other := a.newResolvedID(space, b, testPort, &la)
						a.must(other.Connect(Param{QPN: 3}, nil))
						la.waitEvents(eventTimeout)
						full := Rejection{Cause: RejectedByBacklog, Peer: other.src, Owner: "server", Backlog: backlog}
						want = slices.Insert(want, 0, full)
						other.Destroy()
					}
					c.act(b, l, request)
					la.waitEvents(eventTimeout)
					if !slices.Equal(got, want) {
						t.Errorf("reports: got %+v, want %+v", got, want)
					}
					for _, x := range []*ID{id, request, l} {
						x.Destroy()
					}
				})
			})
		}
	}
}

// TestRejectionAtAnotherAddressIsReported checks the report of a request to an address at which no listener of the port
// listens, and that a request to a port without a listener is not reported.
func TestRejectionAtAnotherAddressIsReported(t *testing.T) {
	withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
		var la, lb eventLog
		var got []Rejection
		b.m.OnRejection(func(x Rejection) { got = append(got, x) })
		l, err := b.m.NewID(Options{Space: msg.PortSpaceTCP, Type: ib.QPTypeRC, Event: lb.recordEvent, Owner: "server"})
		b.must(err)
		b.must(l.Bind(netip.AddrPortFrom(netip.IPv6Unspecified(), testPort)))
		b.must(l.SetOption(AFOnly, 1))
		b.must(l.Listen(0))
		id := a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la)
		a.must(id.Connect(Param{QPN: 1}, nil))
		la.expectEvents(t, eventTimeout, Rejected)
		other := a.newResolvedID(msg.PortSpaceTCP, b, testPort+1, &la)
		a.must(other.Connect(Param{QPN: 1}, nil))
		la.expectEvents(t, eventTimeout, Rejected)
		if want := []Rejection{{Cause: RejectedByAddress, Peer: id.src, Owner: "server"}}; !slices.Equal(got, want) {
			t.Errorf("reports: got %+v, want %+v", got, want)
		}
		for _, x := range []*ID{id, other, l} {
			x.Destroy()
		}
	})
}

// TestViewOfUnansweredRequest checks that the view of an ID has the time of a request that is not answered.
func TestViewOfUnansweredRequest(t *testing.T) {
	for _, space := range []msg.PortSpace{msg.PortSpaceTCP, msg.PortSpaceUDP} {
		withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
			var la, lb eventLog
			l := b.newListener(space, testPort, &lb)
			id := a.newResolvedID(space, b, testPort, &la)
			if v := id.View(); v.Unanswered || !v.Asked.IsZero() {
				t.Errorf("view before the request: got %+v, want no request", v)
			}
			now := time.Now()
			a.must(id.Connect(Param{QPN: 1}, nil))
			r := lb.expectEvents(t, eventTimeout, ConnectRequest)[0].New
			if v := id.View(); !v.Unanswered || !v.Asked.Equal(now) {
				t.Errorf("view after the request: got %+v, want unanswered since %v", v, now)
			}
			if v := r.View(); v.Unanswered {
				t.Errorf("view of the other end: got %+v, want no request", v)
			}
			b.must(r.Reject(msg.ReasonConsumer, nil))
			la.waitEvents(eventTimeout)
			if v := id.View(); v.Unanswered {
				t.Errorf("view after the answer: got %+v, want answered", v)
			}
			for _, x := range []*ID{id, r, l} {
				x.Destroy()
			}
		})
	}
}
