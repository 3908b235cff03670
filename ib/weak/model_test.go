package weak_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"verbena/ib"
	"verbena/ib/ibtest"
	"verbena/ib/weak"
)

var modelSeeds = flag.Int("weak.modelseeds", 60, "number of seeds with which each litmus test of the models runs at least")

// mostModelSeeds is the number of seeds within which each allowed outcome must occur.
const mostModelSeeds = 1000

// modelStep is a step of the thread of a litmus test. The thread executes its steps in order.
type modelStep struct {
	do    modelAction
	qp    int    // number of the connection, from 0
	from  string // variable
	to    string // variable
	value uint64
	fence bool
}

// modelAction is the action of a step.
type modelAction uint8

const (
	store   modelAction = iota // the processor stores value in to
	put                        // WRITE from to to
	get                        // READ from to to
	add                        // FETCH_ADD of value to from, with the former value in to
	notify                     // SEND of a message
	await                      // polls until all requests of the connection have completed
	receive                    // polls until the peer of the connection has received the message
	look                       // adds the value of from to the outcome
)

// modelTest is a litmus test. Variables are words with the value 0. The variables x, y and z belong to the peer.
type modelTest struct {
	name   string
	steps  []modelStep
	clause string
	// allowed has all outcomes that the specification allows and a weak device has. Other outcomes are forbidden.
	allowed []string
}

// modelTests has the litmus tests for one-sided operations of the models of RDMA on TSO (arXiv 2601.14642, 2605.10631):
// put and get, with and without a poll or a fence, on one and on two queue pairs.
var modelTests = []modelTest{
	{"source reused after the post", []modelStep{
		{do: store, to: "a", value: 1}, {do: put, from: "a", to: "x"}, {do: store, to: "a", value: 2}, {do: await},
		{do: look, from: "x"},
	}, "ibv_post_send(3): a buffer can be reused when the completion was retrieved", []string{"x=1", "x=2"}},
	{"source reused after the poll", []modelStep{
		{do: store, to: "a", value: 1}, {do: put, from: "a", to: "x"}, {do: await}, {do: store, to: "a", value: 2},
		{do: look, from: "x"},
	}, "ibv_post_send(3): a buffer can be reused when the completion was retrieved", []string{"x=1"}},
	{"two puts on one queue pair", []modelStep{
		{do: store, to: "a", value: 1}, {do: store, to: "b", value: 2},
		{do: put, from: "a", to: "x"}, {do: put, from: "b", to: "x"}, {do: await}, {do: look, from: "x"},
	}, "IBA 10.8.3.3: WRITEs of a queue pair are executed in order", []string{"x=2"}},
	{"two puts on two queue pairs", []modelStep{
		{do: store, to: "a", value: 1}, {do: store, to: "b", value: 2},
		{do: put, from: "a", to: "x"}, {do: put, qp: 1, from: "b", to: "x"}, {do: await}, {do: await, qp: 1},
		{do: look, from: "x"},
	}, "IBA o9-20: requests are ordered only within a queue pair", []string{"x=1", "x=2"}},
	{"a message after a put on one queue pair", []modelStep{
		{do: store, to: "a", value: 1}, {do: put, from: "a", to: "x"}, {do: notify}, {do: receive},
		{do: look, from: "x"}, {do: await},
	}, "IBA 10.8.3.3: a SEND is executed after an earlier WRITE", []string{"x=1"}},
	{"a message on another queue pair after a put", []modelStep{
		{do: store, to: "a", value: 1}, {do: put, from: "a", to: "x"}, {do: notify, qp: 1}, {do: receive, qp: 1},
		{do: look, from: "x"}, {do: await}, {do: await, qp: 1},
	}, "IBA o9-20: requests are ordered only within a queue pair", []string{"x=0", "x=1"}},
	{"a message on another queue pair after a polled put", []modelStep{
		{do: store, to: "a", value: 1}, {do: put, from: "a", to: "x"}, {do: await}, {do: notify, qp: 1},
		{do: receive, qp: 1}, {do: look, from: "x"}, {do: await, qp: 1},
	}, "IBA 9.7.5.1.1: the acknowledgement follows the execution", []string{"x=1"}},
	{"a get before a put", []modelStep{
		{do: store, to: "b", value: 1}, {do: get, from: "x", to: "a"}, {do: put, from: "b", to: "x"}, {do: await},
		{do: look, from: "a"}, {do: look, from: "x"},
	}, "IBA 10.8.3.3: a request is ordered after a READ only with a fence", []string{"a=0 x=1", "a=1 x=1"}},
	{"a get before a fenced put", []modelStep{
		{do: store, to: "b", value: 1}, {do: get, from: "x", to: "a"}, {do: put, from: "b", to: "x", fence: true},
		{do: await}, {do: look, from: "a"}, {do: look, from: "x"},
	}, "IBA 10.8.3.3: a fenced request waits for earlier READs", []string{"a=0 x=1"}},
	{"a get after a put", []modelStep{
		{do: store, to: "b", value: 1}, {do: put, from: "b", to: "x"}, {do: get, from: "x", to: "a"}, {do: await},
		{do: look, from: "a"},
	}, "IBA 10.8.3.3: a READ is executed after an earlier WRITE", []string{"a=1"}},
	{"a get on another queue pair after a put", []modelStep{
		{do: store, to: "b", value: 1}, {do: put, from: "b", to: "x"}, {do: get, qp: 1, from: "x", to: "a"}, {do: await},
		{do: await, qp: 1}, {do: look, from: "a"},
	}, "IBA o9-20: requests are ordered only within a queue pair", []string{"a=0", "a=1"}},
	{"a put of the word that a get returns", []modelStep{
		{do: store, to: "x", value: 1}, {do: get, from: "x", to: "a"}, {do: put, from: "a", to: "y"}, {do: await},
		{do: look, from: "a"}, {do: look, from: "y"},
	}, "IBA 10.8.3.3: the data of a READ are present before a later request only with a fence",
		[]string{"a=1 y=0", "a=1 y=1"}},
	{"a fenced put of the word that a get returns", []modelStep{
		{do: store, to: "x", value: 1}, {do: get, from: "x", to: "a"}, {do: put, from: "a", to: "y", fence: true},
		{do: await}, {do: look, from: "a"}, {do: look, from: "y"},
	}, "IBA 10.8.3.3: a fenced request waits for earlier READs", []string{"a=1 y=1"}},
	{"the target of a get before the poll", []modelStep{
		{do: store, to: "x", value: 1}, {do: get, from: "x", to: "a"}, {do: look, from: "a"}, {do: await},
		{do: look, from: "a"},
	}, "ibv_reg_mr(3): data are present only after a completing event", []string{"a=0 a=1", "a=1 a=1"}},
	{"atomic operations on two queue pairs", []modelStep{
		{do: add, from: "x", to: "a", value: 1}, {do: add, qp: 1, from: "x", to: "b", value: 2}, {do: await},
		{do: await, qp: 1}, {do: look, from: "a"}, {do: look, from: "b"}, {do: look, from: "x"},
	}, "IBA 9.4.5, o9-20: atomic operations of a device are atomic, and not ordered across queue pairs",
		[]string{"a=0 b=1 x=3", "a=2 b=0 x=3"}},
	{"an atomic operation after a put", []modelStep{
		{do: store, to: "b", value: 5}, {do: put, from: "b", to: "x"}, {do: add, from: "x", to: "a", value: 1}, {do: await},
		{do: look, from: "a"}, {do: look, from: "x"},
	}, "IBA 10.8.3.3: an atomic operation is executed after an earlier WRITE", []string{"a=5 x=6"}},
	{"store buffering with gets", []modelStep{
		{do: store, to: "a", value: 1}, {do: put, from: "a", to: "x"}, {do: get, from: "y", to: "c"},
		{do: put, qp: 1, from: "a", to: "y"}, {do: get, qp: 1, from: "x", to: "d"}, {do: await}, {do: await, qp: 1},
		{do: look, from: "c"}, {do: look, from: "d"},
	}, "IBA 10.8.3.3: a READ is executed after an earlier WRITE", []string{"c=0 d=1", "c=1 d=0", "c=1 d=1"}},
	{"load buffering with gets", []modelStep{
		{do: store, to: "a", value: 1}, {do: get, from: "x", to: "c"}, {do: put, from: "a", to: "y"},
		{do: get, qp: 1, from: "y", to: "d"}, {do: put, qp: 1, from: "a", to: "x"}, {do: await}, {do: await, qp: 1},
		{do: look, from: "c"}, {do: look, from: "d"},
	}, "IBA 10.8.3.3: a request is ordered after a READ only with a fence",
		[]string{"c=0 d=0", "c=0 d=1", "c=1 d=0", "c=1 d=1"}},
	{"load buffering with fences", []modelStep{
		{do: store, to: "a", value: 1}, {do: get, from: "x", to: "c"}, {do: put, from: "a", to: "y", fence: true},
		{do: get, qp: 1, from: "y", to: "d"}, {do: put, qp: 1, from: "a", to: "x", fence: true}, {do: await},
		{do: await, qp: 1}, {do: look, from: "c"}, {do: look, from: "d"},
	}, "IBA 10.8.3.3: a fenced request waits for earlier READs", []string{"c=0 d=0", "c=0 d=1", "c=1 d=0"}},
	{"two puts seen by gets on another queue pair", []modelStep{
		{do: store, to: "a", value: 1}, {do: put, from: "a", to: "x"}, {do: put, from: "a", to: "y"},
		{do: get, qp: 1, from: "y", to: "c"}, {do: get, qp: 1, from: "x", to: "d", fence: true}, {do: await},
		{do: await, qp: 1}, {do: look, from: "c"}, {do: look, from: "d"},
	}, "IBA 10.8.3.3: WRITEs of a queue pair are executed in order", []string{"c=0 d=0", "c=0 d=1", "c=1 d=1"}},
}

// run runs the test on a weak device, and returns its outcome.
func (m *modelTest) run(t *testing.T, inner ibtest.NewDevice, c weak.Config) (outcome string) {
	synctest.Test(t, func(t *testing.T) {
		w := newConnectedDevice(t, newWeakFactory(inner, c))
		r := &modelRun{w: w, vars: map[string]*registeredBuffer{}}
		for range 2 {
			a, b := w.newSide(w.newCQ(), w.newCQ()), w.newSide(w.newCQ(), w.newCQ())
			w.connectSides(a, b)
			// Only the side b has rights to the memory of its peer's variables.
			must(t, b.qp.Modify(ib.QPAttr{AccessFlags: remoteRights}, ib.QPAttrAccessFlags))
			r.sides = append(r.sides, [2]*qpSide{a, b})
			r.posted = append(r.posted, 0)
		}
		r.warmUp()
		for i := range m.steps {
			r.execute(&m.steps[i])
		}
		outcome = strings.Join(r.outcome, " ")
	})
	return outcome
}

const remoteRights = ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

// modelRun is a run of a litmus test.
type modelRun struct {
	w       *connectedDevice
	sides   [][2]*qpSide
	posted  []int // outstanding requests of the connections
	vars    map[string]*registeredBuffer
	outcome []string
}

// variable returns the memory of a variable.
func (r *modelRun) variable(name string) *registeredBuffer {
	if r.vars[name] == nil {
		access := ib.AccessFlags(private)
		if name >= "x" {
			access |= remoteRights
		}
		r.vars[name] = r.w.registerBuffer(make([]byte, 8), access)
	}
	return r.vars[name]
}

// warmUp executes each kind of request once. The wrapper delays a kind of request when the driver has accepted one.
func (r *modelRun) warmUp() {
	for _, s := range []modelStep{{do: put, from: "u", to: "z"}, {do: put, from: "u", to: "z", fence: true},
		{do: get, from: "z", to: "v"}, {do: get, from: "z", to: "v", fence: true},
		{do: add, from: "z", to: "v"}, {do: notify}} {
		r.execute(&s)
		r.execute(&modelStep{do: await})
	}
	r.execute(&modelStep{do: receive})
}

func (r *modelRun) execute(s *modelStep) {
	a, b := r.sides[s.qp][0], r.sides[s.qp][1]
	var wr ib.SendWR
	if s.do == store || s.do == look {
		// The tests access memory that the device uses. The race detector must not see both at once.
		synctest.Wait()
	}
	switch s.do {
	case store:
		binary.NativeEndian.PutUint64(r.variable(s.to).b, s.value)
		return
	case look:
		r.outcome = append(r.outcome, fmt.Sprintf("%s=%d", s.from, binary.NativeEndian.Uint64(r.variable(s.from).b)))
		return
	case await:
		for _, wc := range r.w.pollCompletions(a.send, r.posted[s.qp]) {
			if wc.Status != ib.WCSuccess {
				r.w.t.Fatalf("completion: got %v, want success", wc.Status)
			}
		}
		r.posted[s.qp] = 0
		return
	case receive:
		r.w.pollCompletions(b.recv, 1)
		return
	case put:
		wr = r.variable(s.to).transferTo(ib.WRRDMAWrite, r.variable(s.from))
	case get:
		wr = r.variable(s.from).transferTo(ib.WRRDMARead, r.variable(s.to))
	case add:
		wr = r.variable(s.from).transferTo(ib.WRAtomicFetchAdd, r.variable(s.to))
		wr.CompareAdd = s.value
	case notify:
		b.postReceive(0, r.variable("v"))
		wr = ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: r.variable("u").fullSGL()}
	}
	if s.fence {
		wr.Flags |= ib.SendFence
	}
	a.postSend(wr)
	r.posted[s.qp]++
}

// TestModels runs the litmus tests with seeds. A device must have each allowed outcome with one of the seeds, and no
// other.
func TestModels(t *testing.T) {
	for _, d := range []struct {
		name  string
		inner ibtest.NewDevice
	}{{"loopback", newLoopback}, {"rxe", newRXE}} {
		for _, m := range modelTests {
			t.Run(d.name+"/"+m.name, func(t *testing.T) {
				seen := map[string]int{}
				for seed := 0; seed < mostModelSeeds && (seed < *modelSeeds || len(seen) < len(m.allowed)); seed++ {
					c := weak.Config{Seed: uint64(seed), Choices: weak.All &^ weak.Of(weak.SlowMethods)}
					if seed%2 == 1 { // the choice is always made otherwise
						c.Choices &^= weak.Of(weak.LateRead)
					}
					outcome := m.run(t, d.inner, c)
					if seen[outcome]++; !slices.Contains(m.allowed, outcome) {
						t.Fatalf("seed %d: got %s, want one of %q (%s)", seed, outcome, m.allowed, m.clause)
					}
				}
				if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, m.allowed) {
					t.Errorf("outcomes: got %q with %v seeds, want %q (%s)", got, mostModelSeeds, m.allowed, m.clause)
				}
				t.Logf("outcomes: %v", seen)
			})
		}
	}
}
