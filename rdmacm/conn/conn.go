package conn

import (
	"fmt"

	"verbena/rdmacm/msg"
)

// State is the state of a connection.
//
//	active side:                                  passive side:
//	                 Idle                                        Idle
//	                  | REQ sent                                  | REQ comes
//	                  v                                           v          MRA is sent when what it
//	  MRA comes    ReqSent                          MRA sent   ReqRcvd        answers comes again
//	     +-----------+ |                               +---------+ |
//	     v             |                               v           |
//	  MRAReqRcvd       | REP comes                  MRAReqSent     | REP sent
//	     +---REP---+   |                               +---REP---+ |
//	               v   v                                         v v
//	  MRA sent    RepRcvd                            MRA comes  RepSent
//	     +-----------+ |                               +---------+ |
//	     v             |                               v           |
//	  MRARepSent       | RTU sent                   MRARepRcvd     | RTU comes, or data
//	     +---RTU---+   |                               +---RTU---+ |
//	               v   v                                         v v
//	                              Established
//	             DREQ sent |                       | DREQ comes
//	                       v                       v
//	                   DreqSent                 DreqRcvd
//	    DREP comes, DREQ,  |                       | DREP sent
//	    or no answer       v                       v
//	                              Timewait ------> Idle
//
// A REJ ends a connection before it is established. The sender of a REJ moves to Refused, for as long as the
// rejected message may be repeated. The receiver moves to Idle or Timewait. A missing response also ends the
// connection.
type State uint8

const (
	Idle State = iota
	ReqSent
	MRAReqRcvd
	ReqRcvd
	MRAReqSent
	RepRcvd
	MRARepSent
	RepSent
	MRARepRcvd
	Established
	DreqSent
	DreqRcvd
	Timewait
	// Refused means that a request or a response was rejected. The rejected message may be repeated if the REJ was
	// lost.
	Refused
	numStates
)

func (s State) String() string {
	names := [numStates]string{
		"idle", "REQ sent", "MRA for REQ received", "REQ received", "MRA for REQ sent", "REP received", "MRA for REP sent",
		"REP sent",
		"MRA for REP received", "established", "DREQ sent", "DREQ received", "timewait",
		"refused",
	}
	if s < numStates {
		return names[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Event is an event for the owner of a connection (enum ib_cm_event_type).
type Event uint8

const (
	None Event = iota
	REQError
	REPReceived
	REPError
	RTUReceived
	REJReceived
	DREQReceived
	DREPReceived
	DREQError
	TimewaitExit
)

// Timer is the new setting of the single timer of a connection.
type Timer uint8

const (
	Keep Timer = iota
	Stop
	Response     // the time for the peer's response
	Service      // the time that an MRA requests, plus Response
	TimewaitTime // the time for which packets of the connection may be in flight
	Refusal      // the time for which the rejected message may be repeated
)

// Actions lists the actions that a transition requires.
type Actions struct {
	Send   msg.Attribute       // message to send, or 0 for none
	Reason msg.RejectReason    // reason of a REJ
	Of     msg.AnsweredMessage // message that a REJ refers to
	Repeat bool                // retransmit the last message
	Event  Event
	Timer  Timer
}

// Conn is a connection. The zero Conn is idle.
type Conn struct {
	State State
	Left  uint8 // remaining retransmissions of the last message
}

// Call is an action of the owner of a connection.
type Call uint8

const (
	SendREQ Call = iota
	SendREP
	SendRTU
	SendREJ
	SendDREQ
	SendDREP
	// Establish means that data have arrived before the RTU (ib_cm_notify).
	Establish
	// Drop means that the owner abandons the connection. The connection notifies the peer, and then waits
	// (ib_destroy_cm_id).
	Drop
	numCalls
)

// Call makes the transition for an action of the owner. Call returns false, and changes nothing, if the state does
// not allow it. retries is the number of retransmissions of messages that need a response: REQ, REP and DREQ.
func (c *Conn) Call(call Call, retries uint8) (d Actions, ok bool) {
	type step struct {
		to   State
		send msg.Attribute
		t    Timer
	}
	var s step
	switch {
	case call == SendREQ && c.State == Idle:
		s = step{ReqSent, msg.AttrREQ, Response}
	case call == SendREP && c.inState(ReqRcvd, MRAReqSent):
		s = step{RepSent, msg.AttrREP, Response}
	case call == SendRTU && c.inState(RepRcvd, MRARepSent):
		s = step{Established, msg.AttrRTU, Stop}
	case call == SendREJ && c.inState(ReqSent, MRAReqRcvd, ReqRcvd, MRAReqSent, RepRcvd, MRARepSent, RepSent, MRARepRcvd):
		s = step{Refused, msg.AttrREJ, Refusal}
	case call == SendDREQ && c.State == Established:
		s = step{DreqSent, msg.AttrDREQ, Response}
	case call == SendDREP && c.State == DreqRcvd:
		s = step{Timewait, msg.AttrDREP, TimewaitTime}
	case call == Establish && c.inState(RepSent, MRARepRcvd):
		c.State = Established
		return Actions{Event: RTUReceived, Timer: Stop}, true
	case call == Drop:
		return c.endAbandoned(retries), true
	default:
		return Actions{}, false
	}
	c.State, c.Left = s.to, retries
	d = Actions{Send: s.send, Timer: s.t}
	if call == SendREJ {
		d.Reason = msg.ReasonConsumer
	}
	return d, true
}

func (c *Conn) inState(states ...State) bool {
	for _, s := range states {
		if c.State == s {
			return true
		}
	}
	return false
}

// DeterminesQPAttrs reports whether the state of the connection determines the attributes of the owner's queue pair. If
// first is set, these are the attributes for INIT, otherwise those for the connection to the peer.
// (ib_cm_init_qp_attr)
func (c *Conn) DeterminesQPAttrs(first bool) bool {
	return first && c.inState(ReqSent, MRAReqRcvd) || c.inState(ReqRcvd, MRAReqSent, RepRcvd, MRARepSent, RepSent,
		MRARepRcvd,
		Established)
}

// RejectedMessage returns the message that a REJ of this side refers to. A peer that has not received this side's ID
// yet finds only its own REQ. (cm_format_rej, cm_acquire_rejected_id)
func (c *Conn) RejectedMessage() msg.AnsweredMessage {
	switch c.State {
	case ReqRcvd, MRAReqSent:
		return msg.OfREQ
	case RepRcvd, MRARepSent:
		return msg.OfREP
	}
	return msg.OfOther
}

// endAbandoned ends a connection after its owner has abandoned it, and notifies the peer.
func (c *Conn) endAbandoned(retries uint8) Actions {
	switch c.State {
	case Idle:
		return Actions{Timer: Stop}
	case ReqSent, MRAReqRcvd:
		c.State = Refused
		return Actions{Send: msg.AttrREJ, Reason: msg.ReasonTimeout, Of: msg.OfREQ, Timer: Refusal}
	case ReqRcvd, MRAReqSent, RepRcvd, MRARepSent, RepSent, MRARepRcvd:
		of := c.RejectedMessage()
		c.State = Refused
		return Actions{Send: msg.AttrREJ, Reason: msg.ReasonConsumer, Of: of, Timer: Refusal}
	case Established:
		c.State, c.Left = DreqSent, retries
		return Actions{Send: msg.AttrDREQ, Timer: Response}
	case DreqRcvd:
		c.State = Timewait
		return Actions{Send: msg.AttrDREP, Timer: TimewaitTime}
	}
	return Actions{} // DreqSent, Timewait and Refused do not change
}

// Receive makes the transition for a message of the peer. For an MRA, of is the message that the MRA refers to. For
// a REJ, reason is the reason of the rejection. The caller has found the connection by the communication IDs in the
// message. A REQ may be new or a duplicate.
func (c *Conn) Receive(m msg.Attribute, of msg.AnsweredMessage, reason msg.RejectReason) Actions {
	switch m {
	case msg.AttrREQ:
		return c.receiveREQ()
	case msg.AttrMRA:
		switch {
		case of == msg.OfREQ && c.inState(ReqSent, MRAReqRcvd):
			c.State = MRAReqRcvd
			return Actions{Timer: Service}
		case of == msg.OfREP && c.inState(RepSent, MRARepRcvd):
			c.State = MRARepRcvd
			return Actions{Timer: Service}
		}
	case msg.AttrREP:
		switch c.State {
		case ReqSent, MRAReqRcvd:
			c.State = RepRcvd
			return Actions{Event: REPReceived, Timer: Stop}
		case RepRcvd: // the owner has not responded yet
			c.State = MRARepSent
			return Actions{Send: msg.AttrMRA}
		case MRARepSent, Established: // the MRA or the RTU was lost
			return Actions{Repeat: true}
		case Refused:
			return Actions{Repeat: true, Timer: Refusal}
		}
	case msg.AttrRTU:
		if c.inState(RepSent, MRARepRcvd) {
			c.State = Established
			return Actions{Event: RTUReceived, Timer: Stop}
		}
	case msg.AttrREJ:
		return c.receiveREJ(reason)
	case msg.AttrDREQ:
		switch c.State {
		case RepRcvd, MRARepSent, RepSent, MRARepRcvd, Established, DreqSent:
			c.State = DreqRcvd
			return Actions{Event: DREQReceived, Timer: Stop}
		case Timewait:
			return Actions{Send: msg.AttrDREP}
		case Refused: // after the REP that it has received
			c.State = Timewait
			return Actions{Send: msg.AttrDREP, Timer: TimewaitTime}
		}
	case msg.AttrDREP:
		if c.inState(DreqSent, DreqRcvd) {
			c.State = Timewait
			return Actions{Event: DREPReceived, Timer: TimewaitTime}
		}
	}
	return Actions{}
}

func (c *Conn) receiveREQ() Actions {
	switch c.State {
	case Idle:
		c.State = ReqRcvd
	case ReqRcvd: // the owner has not responded yet
		c.State = MRAReqSent
		return Actions{Send: msg.AttrMRA}
	case MRAReqSent, RepSent: // the response was lost, or is in flight
		return Actions{Repeat: true}
	case Refused:
		return Actions{Repeat: true, Timer: Refusal}
	case Timewait: // the peer has not received the end, or starts again with old numbers
		return Actions{Send: msg.AttrREJ, Reason: msg.ReasonStaleConnection, Of: msg.OfREQ}
	}
	return Actions{}
}

func (c *Conn) receiveREJ(reason msg.RejectReason) Actions {
	switch c.State {
	case ReqSent, MRAReqRcvd, RepSent, MRARepRcvd, ReqRcvd, MRAReqSent:
		if reason != msg.ReasonStaleConnection {
			c.State = Idle
			return Actions{Event: REJReceived, Timer: Stop}
		}
	case RepRcvd, MRARepSent, Established, DreqSent:
	default:
		return Actions{}
	}
	c.State = Timewait
	return Actions{Event: REJReceived, Timer: TimewaitTime}
}

// HandleTimeout makes the transition for an expired timer.
func (c *Conn) HandleTimeout() Actions {
	if c.inState(ReqSent, MRAReqRcvd, RepSent, MRARepRcvd, DreqSent) && c.Left > 0 {
		c.Left--
		return Actions{Repeat: true, Timer: Response}
	}
	switch c.State {
	case ReqSent, MRAReqRcvd:
		c.State = Idle
		return Actions{Event: REQError}
	case RepSent, MRARepRcvd:
		c.State = Idle
		return Actions{Event: REPError}
	case DreqSent:
		c.State = Timewait
		return Actions{Event: DREQError, Timer: TimewaitTime}
	case Timewait:
		c.State = Idle
		return Actions{Event: TimewaitExit}
	case Refused:
		c.State = Idle
	}
	return Actions{}
}
