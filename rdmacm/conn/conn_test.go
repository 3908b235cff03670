package conn

import (
	"errors"
	"fmt"
	"testing"

	"verbena/internal/explore"
	"verbena/rdmacm/msg"
)

// inFlightMessage is a message in flight, with its relevant contents.
type inFlightMessage uint8

const (
	req inFlightMessage = iota
	mraReq
	mraRep
	rep
	rtu
	rej
	stale // a REJ with this reason
	dreq
	drep
	kinds
)

func (k inFlightMessage) String() string {
	return [kinds]string{"REQ", "MRA for REQ", "MRA for REP", "REP", "RTU", "REJ", "REJ stale", "DREQ", "DREP"}[k]
}

// modelSide is one side of the connection: its state, the last message, and the events of its owner.
type modelSide struct {
	c     Conn
	last  inFlightMessage
	sent  bool
	timer Timer // Keep means that the timer is not running

	// These fields record the received events: a request or response, establishment, disconnection, rejection,
	// unreachability, and the end of timewait.
	asked, up, down, failed, over bool
	dropped                       bool // the owner has abandoned the connection
}

// modelState holds both sides, and the messages in flight. Each message is in flight at most once, because a further
// copy is equivalent to a duplicate.
type modelState struct {
	s      [2]modelSide
	wire   [2][kinds]bool // messages in flight towards each side
	losses uint8          // remaining losses
	faults uint8          // remaining duplicates
	wrong  uint8          // number of violated rules

	// The following fields are constant.
	leaves [2]bool // the owner of a side may abandon the connection
	stays  [2]bool // the owner of a side does not disconnect by itself
	prompt bool    // owners act before time passes; otherwise within the time that an MRA requests
	dead   bool    // all messages are lost
	silent bool    // no data arrive before an RTU
}

const retries = 3

var ruleViolations = [...]string{
	1: "established twice", 2: "an end was reported twice", 3: "an event was reported after the owner had left",
	4: "established after the end", 5: "a second REP is reported", 6: "timewait ended before the connection",
	7: "a side times out although the other side responds",
}

// applyActions executes the actions of a transition.
func (w *modelState) applyActions(i int, d Actions) {
	s := &w.s[i]
	to := &w.wire[1-i]
	send := func(k inFlightMessage) {
		s.last, s.sent = k, true
		to[k] = true
	}
	switch d.Send {
	case msg.AttrREQ:
		send(req)
	case msg.AttrMRA:
		if s.c.State == MRARepSent {
			send(mraRep)
		} else {
			send(mraReq)
		}
	case msg.AttrREP:
		send(rep)
	case msg.AttrRTU:
		send(rtu)
	case msg.AttrREJ:
		if d.Reason == msg.ReasonStaleConnection {
			to[stale] = true
		} else {
			send(rej)
		}
	case msg.AttrDREQ:
		send(dreq)
	case msg.AttrDREP:
		send(drep)
	}
	if d.Repeat && s.sent {
		to[s.last] = true
	}
	switch d.Timer {
	case Stop:
		s.timer = Keep
	case Response, Service, TimewaitTime, Refusal:
		s.timer = d.Timer
	}
	if (d.Event == REQError || d.Event == REPError || d.Event == DREQError && w.prompt) && !w.dead && !w.s[1-i].dropped {
		w.wrong = 7
	}
	if d.Event == None || s.dropped {
		return
	}
	switch d.Event {
	case REPReceived:
		if s.asked {
			w.wrong = 5
		}
		s.asked = true
	case RTUReceived:
		if s.up {
			w.wrong = 1
		}
		if s.down || s.failed {
			w.wrong = 4
		}
		s.up = true
	case REQError, REPError, REJReceived:
		if s.failed {
			w.wrong = 2
		}
		s.failed = true
	case DREQReceived, DREPReceived, DREQError:
		s.down = true
	case TimewaitExit:
		if !s.down && !s.failed {
			w.wrong = 6
		}
		s.over = true
	}
}

// ownerThread returns the actions of a side's program. The active side requests, completes and ends. The passive side
// accepts or rejects, and ends.
func ownerThread(i int) explore.Thread[modelState] {
	return func(w modelState) (steps []explore.ThreadStep[modelState]) {
		try := func(what string, call Call, after func(*modelSide)) {
			n := w
			d, ok := n.s[i].c.Call(call, retries)
			if !ok {
				return
			}
			n.applyActions(i, d)
			if after != nil {
				after(&n.s[i])
			}
			steps = append(steps, explore.ThreadStep[modelState]{What: what, To: n})
		}
		s := w.s[i]
		if s.dropped {
			return nil
		}
		switch {
		case i == 0 && !s.sent:
			try("asks", SendREQ, nil)
		case i == 0 && s.asked && !s.up:
			try("completes", SendRTU, func(s *modelSide) { s.up = true })
			try("refuses", SendREJ, func(s *modelSide) { s.failed = true })
		case i == 1 && s.asked && (s.c.State == ReqRcvd || s.c.State == MRAReqSent):
			try("accepts", SendREP, nil)
			try("refuses", SendREJ, func(s *modelSide) { s.failed = true })
		case i == 1 && s.c.State == RepSent && !w.stays[1]:
			try("withdraws its acceptance", SendREJ, func(s *modelSide) { s.failed = true })
		}
		if i == 1 && w.s[0].asked && !w.silent { // the active side's queue pair could send
			try("sees data", Establish, nil)
		}
		if s.up && !s.down && !w.stays[i] {
			try("disconnects", SendDREQ, nil)
		}
		try("agrees to disconnect", SendDREP, nil)
		if w.leaves[i] && (s.sent || s.asked) {
			try("goes away", Drop, func(s *modelSide) { s.dropped = true })
		}
		return steps
	}
}

// networkThread delivers messages to a side, drops and duplicates them.
func networkThread(i int) explore.Thread[modelState] {
	return func(w modelState) (steps []explore.ThreadStep[modelState]) {
		for k := range kinds {
			if !w.wire[i][k] {
				continue
			}
			deliver := func(what string, keep bool) {
				n := w
				n.wire[i][k] = keep
				s := &n.s[i]
				if i == 0 && k == req || i == 1 && k == req && s.c.State == Idle && (s.asked || s.dropped) {
					// A new connection with the same numbers is rejected as stale if the old connection is known.
					// Otherwise the message is dropped.
					steps = append(steps, explore.ThreadStep[modelState]{What: what, To: n})
					return
				}
				var d Actions
				switch k {
				case req:
					if s.c.State == Idle {
						s.asked = true
					}
					d = s.c.Receive(msg.AttrREQ, 0, 0)
				case mraReq:
					d = s.c.Receive(msg.AttrMRA, msg.OfREQ, 0)
				case mraRep:
					d = s.c.Receive(msg.AttrMRA, msg.OfREP, 0)
				case rep:
					d = s.c.Receive(msg.AttrREP, 0, 0)
				case rtu:
					d = s.c.Receive(msg.AttrRTU, 0, 0)
				case rej:
					d = s.c.Receive(msg.AttrREJ, 0, msg.ReasonConsumer)
				case stale:
					d = s.c.Receive(msg.AttrREJ, 0, msg.ReasonStaleConnection)
				case dreq:
					if s.c.State == Idle { // an unknown connection is reported as ended
						n.wire[1-i][drep] = true
					}
					d = s.c.Receive(msg.AttrDREQ, 0, 0)
				case drep:
					d = s.c.Receive(msg.AttrDREP, 0, 0)
				}
				n.applyActions(i, d)
				steps = append(steps, explore.ThreadStep[modelState]{What: what, To: n})
			}
			if w.dead {
				n := w
				n.wire[i][k] = false
				return []explore.ThreadStep[modelState]{{What: fmt.Sprintf("loses %v to side %d", k, i), To: n}}
			}
			deliver(fmt.Sprintf("delivers %v to side %d", k, i), false)
			if w.faults > 0 {
				w.faults--
				deliver(fmt.Sprintf("delivers %v to side %d and keeps it", k, i), true)
				w.faults++
			}
			if w.losses > 0 {
				n := w
				n.losses--
				n.wire[i][k] = false
				steps = append(steps, explore.ThreadStep[modelState]{What: fmt.Sprintf("loses %v to side %d", k, i), To: n})
			}
		}
		return steps
	}
}

// timerThread returns the step that expires a timer. Messages do not stay in flight as long as a timer, but may be
// lost.
func timerThread(i int) explore.Thread[modelState] {
	return func(w modelState) []explore.ThreadStep[modelState] {
		if w.s[i].timer == Keep || w.s[i].timer == Service && !w.s[1-i].dropped && len(ownerThread(1-i)(w)) > 0 {
			return nil // the other owner acts first
		}
		if w.prompt && len(ownerThread(0)(w))+len(ownerThread(1)(w)) > 0 && w.s[i].timer != TimewaitTime {
			return nil
		}
		if o := w.s[1-i].timer; w.s[i].timer == Refusal && (o == Response || o == Service) {
			return nil // this timer is longer
		}
		for s := range w.wire {
			for k := range kinds {
				if w.wire[s][k] {
					return nil
				}
			}
		}
		n := w
		n.s[i].timer = Keep
		n.applyActions(i, n.s[i].c.HandleTimeout())
		return []explore.ThreadStep[modelState]{{What: fmt.Sprintf("ends the timer of side %d", i), To: n}}
	}
}

func checkState(w modelState) error {
	if w.wrong != 0 {
		return errors.New(ruleViolations[w.wrong])
	}
	for i, s := range w.s {
		waits := s.c.inState(ReqSent, MRAReqRcvd, RepSent, MRARepRcvd, DreqSent, Timewait, Refused)
		if waits != (s.timer != Keep) {
			return fmt.Errorf("side %d: got state %v with timer %d, want a timer only in states that wait", i, s.c.State,
				s.timer)
		}
		if s.dropped && s.c.inState(ReqRcvd, MRAReqSent, RepRcvd, MRARepSent, Established, ReqSent, MRAReqRcvd, RepSent,
			MRARepRcvd) {
			return fmt.Errorf("side %d: got state %v without an owner, want a final state", i, s.c.State)
		}
	}
	return nil
}

// checkFinalState checks that in a final state each owner that has sent or received a request knows the result.
func checkFinalState(w modelState) error {
	for i, s := range w.s {
		if s.dropped || !s.sent && !s.asked {
			continue
		}
		if !s.up && !s.failed && !s.down {
			return fmt.Errorf("side %d (%v): got no result of its connection, want one", i, s.c.State)
		}
		if s.c.State != Idle && s.c.State != Established {
			return fmt.Errorf("side %d: got the final state %v, want idle or established", i, s.c.State)
		}
		if o := w.s[1-i]; s.c.State == Established && o.c.State != Established && !w.dead {
			return fmt.Errorf("side %d in established: got %v at the other side, want established", i, o.c.State)
		}
	}
	return nil
}

// TestExplore explores every order of the actions of two programs, with a limited number of lost and duplicated
// messages.
func TestExplore(t *testing.T) {
	both := [2]bool{true, true}
	for _, c := range []struct {
		what  string
		start modelState
	}{
		{"prompt programs", modelState{prompt: true}},
		{"prompt programs, losses", modelState{prompt: true, losses: 2}},
		{"prompt programs, loss and repetition", modelState{prompt: true, losses: 1, faults: 1}},
		{"prompt programs, repetition", modelState{prompt: true, faults: 2}},
		{"prompt programs that stay connected, losses, no data", modelState{prompt: true, stays: both, losses: 2,
			silent: true}},
		{"slow programs", modelState{}},
		{"slow programs, repetition", modelState{faults: 1}},
		{"the active side does not disconnect", modelState{stays: [2]bool{true, false}, faults: 1}},
		{"the passive side does not disconnect", modelState{stays: [2]bool{false, true}, faults: 1}},
		{"both stay", modelState{stays: both, faults: 1}},
		{"the active side may leave", modelState{prompt: true, leaves: [2]bool{true, false}, losses: 1}},
		{"the passive side may leave", modelState{prompt: true, leaves: [2]bool{false, true}, losses: 1}},
		{"both may leave", modelState{leaves: both, faults: 1}},
		{"both may leave, prompt, losses", modelState{prompt: true, leaves: both, losses: 2}},
		{"the active side may leave, the passive side does not disconnect", modelState{leaves: [2]bool{true, false},
			stays: both}},
		{"the passive side may leave, the active side does not disconnect", modelState{leaves: [2]bool{false, true},
			stays: both}},
		{"no network", modelState{dead: true}},
		{"no network, both may leave", modelState{dead: true, leaves: both}},
	} {
		sys := explore.System[modelState]{
			Start: c.start,
			Threads: []explore.Thread[modelState]{ownerThread(0), ownerThread(1), networkThread(0), networkThread(1),
				timerThread(0), timerThread(1)},
			Check: checkState, End: checkFinalState,
		}
		r, err := sys.Run(3_000_000)
		if err != nil {
			t.Errorf("%s: got error %v, want none", c.what, err)
		} else if r.Ends == 0 {
			t.Errorf("%s: got 0 ends, want at least 1", c.what)
		}
		t.Logf("%s: %v", c.what, r)
	}
}
