package rblk

import "testing"

// TestTagIsReusedAfterResponse uses a tag again before the response is complete. The next request must wait, and a
// third one is a fault of the initiator.
func TestTagIsReusedAfterResponse(t *testing.T) {
	var p requestSlot
	begin := func(what string, offset uint64, want, fails bool) {
		t.Helper()
		if now, err := p.begin(request{tag: 3, offset: offset}); now != want || (err != nil) != fails {
			t.Errorf("%s: got %v, error %v, want %v, error %v", what, now, err, want, fails)
		}
	}
	begin("first request", 1, true, false)
	begin("request with a tag in use", 2, false, true)
	p.respond()
	begin("request after the response", 3, false, false)
	begin("a second one", 4, false, true)
	if again := p.finish(); !again || p.req.offset != 3 {
		t.Errorf("finish: got %v, request at %d, want true, 3", again, p.req.offset)
	}
	p.respond()
	if p.finish() {
		t.Error("finish without another request: got true, want false")
	}
	begin("request for a free slot", 5, true, false)
}

// TestRequestWaitsForMemory sends a request before the completion of the last one with the tag.
func TestRequestWaitsForMemory(t *testing.T) {
	var m sendSlot
	if !m.begin(request{offset: 1}) || m.begin(request{offset: 2}) {
		t.Error("begin: want true for the first request, false for the second one")
	}
	if r := m.finish(); r == nil || r.offset != 2 {
		t.Errorf("finish: got %v, want the second request", r)
	}
	if r := m.finish(); r != nil {
		t.Errorf("finish again: got %v, want none", r)
	}
	if !m.begin(request{offset: 3}) {
		t.Error("begin after finish: got false, want true")
	}
}
