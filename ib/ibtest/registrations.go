package ibtest

import (
	"bytes"
	"time"

	"verbena/ib"
)

// Many regions in succession.

var registrationChecks = []ruleTest{
	{
		name: "Load/ManyRegistrations",
		rule: "however many regions there have been, the keys of the next are those of no other, and give its memory",
		test: testManyRegistrations, plain: true,
	},
}

// maxRegistrationTime limits the time on a slow machine.
const maxRegistrationTime = 2 * time.Second

// testManyRegistrations registers and deregisters regions while other regions stay registered.
func testManyRegistrations(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	p.requireRDMAWrite()
	stay := []*registeredBuffer{e.newBuffer(p.pd, 64, allAccess), e.newBuffer(p.pd, 64, allAccess)}
	b, addr := e.newMemory(64)
	others := []*ib.MR{p.buf[0].mr, p.buf[1].mr, stay[0].mr, stay[1].mr}
	init := ib.MRInit{Space: e.mem, Addr: addr, Length: 64, Access: ib.AccessLocalWrite | ib.AccessRemoteWrite}
	seed := 0
	reaches := func(round int, what string, b []byte, mr *ib.MR) {
		e.Helper()
		seed++
		fillPattern(p.buf[0].b[:8], seed)
		if got := p.writeAndWait(mr.Addr(), mr.RKey()); got != ib.WCSuccess {
			e.Fatalf("after %d registrations: write to %s, key %#x: %q, want %q", round, what, mr.RKey(), got, ib.WCSuccess)
		}
		if !bytes.Equal(b[:8], p.buf[0].b[:8]) {
			e.Fatalf("after %d registrations: the data of a write to %s are not there", round, what)
		}
	}
	for i, end := 0, time.Now().Add(maxRegistrationTime); i < registrationCount; i++ {
		mr, err := p.pd.RegMR(init)
		if err != nil {
			e.Fatalf("registration %d: %v", i, err)
		}
		for _, o := range others {
			if mr.RKey() == o.RKey() || mr.LKey() == o.LKey() {
				e.Fatalf("registration %d: keys %#x and %#x are those of another region, too", i, mr.LKey(), mr.RKey())
			}
		}
		if i%1000 == 0 || i > registrationCount-50 { // most keys are only compared
			reaches(i, "the last region", b, mr)
			for _, s := range stay {
				reaches(i, "the first region", s.b, s.mr)
			}
			if time.Now().After(end) {
				i = registrationCount
			}
		}
		e.must("deregister", mr.Dereg())
	}
	key := stay[0].mr.RKey()
	e.destroy(stay[0].mr)
	p.wantWriteStatus("write to the first region, which is deregistered", stay[0].addr, key, ib.WCRemAccessErr)
}
