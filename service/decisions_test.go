package service

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"testing"

	"verbena/ib/weak"
	"verbena/internal/ctl"
	"verbena/internal/testutil"
	"verbena/link"
)

// TestDecisionMemory makes the memory for decisions over the control socket, records more decisions than there is room
// for, and reads the log as the client does. The memory is charged to the user until both sides have closed it.
func TestDecisionMemory(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.32"}})
	f, err := c.Decisions()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Decisions(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("second memory of a connection: got %v, want EBUSY", err)
	}
	if err := f.WriteReplay(make([]byte, ctl.DecisionMemory)); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("WriteReplay of too many bytes: got %v, want EFBIG", err)
	}
	f.Close()

	who := userPeer(4242)
	held := func() (n uint64) {
		for _, u := range s.Users(who.OwnsAccount) {
			for _, h := range u.Holds {
				n += h.Held
			}
		}
		return n
	}
	m, theirs, err := s.newDecisionMemory(who)
	if err != nil {
		t.Fatal(err)
	}
	if n := held(); n < ctl.DecisionMemory+replayBytes {
		t.Errorf("charge of the memory: got %d, want at least %d bytes", n, ctl.DecisionMemory+replayBytes)
	}
	const recorded = 100_000
	m.begin(7)
	for i := range uint64(recorded) {
		m.record(&weak.Decision{Device: "a/1", Value: 1,
			Point: weak.Point{Choice: weak.LateSource, Object: weak.ObjectQP, Number: 1, Event: weak.EventSend, Seq: i + 1}})
	}
	text := make([]byte, ctl.DecisionReplay)
	if _, err := theirs.ReadAt(text, 0); err != nil {
		t.Fatal(err)
	}
	text, rest, _ := bytes.Cut(text[ctl.DecisionText:], []byte{0})
	n := bytes.Count(text, []byte{'\n'}) - 2
	if n < 30_000 || n+int(m.missing) != recorded || len(bytes.Trim(rest, "\x00")) > 0 {
		t.Errorf("recorded decisions: got %d and %d missing, want the sum %d", n, m.missing, recorded)
	}
	if !bytes.HasPrefix(text, []byte("verbena decisions 1\nseed 7\nlate-source a/1 qp 1 send 1 = 1\n")) {
		t.Errorf("log: got %.80q, want the title and the first decision", text)
	}
	theirs.Close()
	m.close()
	m.record(&weak.Decision{Device: "a/1", Value: 1}) // a thread of a device may still call it
	if n := held(); n != 0 {
		t.Errorf("charge after the end: got %d, want none", n)
	}
}

// TestReplayOfClientIsChecked tests texts that a client may write into the memory.
func TestReplayOfClientIsChecked(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.33"}})
	if _, err := weakConfig(&ctl.Weak{Record: true}, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("recording without memory: got %v, want EINVAL", err)
	}
	const title = "verbena decisions 1\n"
	for _, c := range []struct {
		name, text string
		want       error
	}{
		{"no log", "", syscall.EINVAL},
		{"all bytes set", strings.Repeat("\xff", ctl.DecisionMemory-ctl.DecisionReplay), syscall.EINVAL},
		{"one line without an end", title + strings.Repeat("a ", weak.MaxLogSize/2-20), syscall.EINVAL},
		{"a value out of range", title + "late-source a/1 qp 1 send 1 = 1000000\n", syscall.EINVAL},
		{"no decisions", title, nil},
		{"a decision", title + "late-source a/1 qp 1 send 1 = 1\n", nil},
	} {
		m, theirs, err := s.newDecisionMemory(userPeer(4242))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := theirs.WriteAt([]byte(c.text), ctl.DecisionReplay); err != nil {
			t.Fatal(err)
		}
		config, err := weakConfig(&ctl.Weak{Record: true, Replay: true}, m)
		if !errors.Is(err, c.want) || err == nil && config.Decisions == nil {
			t.Errorf("replay of %s: got %v, want %v", c.name, err, c.want)
		}
		m.close()
		theirs.Close()
	}
}

// TestFaultDecisions records the decisions of a rule, and replays them, over the control socket. A user who may not add
// rules cannot record them.
func TestFaultDecisions(t *testing.T) {
	s, c := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.34"}})
	if err := c.BeginFaultDecisions(ctl.Weak{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("recording without memory: got %v, want EINVAL", err)
	}
	f, err := c.Decisions()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const log = "verbena decisions 1\npacket-fault rxe0:rule1 qp 1 drop 2 = 1\n"
	if err := f.WriteReplay([]byte(log)); err != nil {
		t.Fatal(err)
	}
	if err := c.BeginFaultDecisions(ctl.Weak{Seed: 7, Replay: true}); err != nil {
		t.Fatal(err)
	}
	if err := c.BeginFaultDecisions(ctl.Weak{}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("second recording of a connection: got %v, want EBUSY", err)
	}
	decider := linkDecider{s.links.deciders[0], "rxe0"}
	for packet := range uint64(4) {
		d := link.Decision{Rule: 1, Kind: link.DecideDrop, Flow: 1, Packet: packet + 1, QP: 17}
		want := uint64(0)
		if packet == 1 {
			want = 1
		}
		if got := decider.Decide(&d, 1-want); got != want {
			t.Errorf("replayed decision on packet %d: got %d, want %d", packet+1, got, want)
		}
	}
	text, _, err := f.Record()
	if err != nil {
		t.Fatal(err)
	}
	l, err := weak.ReadLog(text)
	if err != nil || l.Seed != 7 || len(l.Decisions) != 1 || l.Decisions[0].About != "QP 17" ||
		string(l.Decisions[0].AppendText(nil)) != "packet-fault rxe0:rule1 qp 1 drop 2 = 1 # QP 17\n" {
		t.Errorf("log: got %+v, %v, want the decision", l, err)
	}
	if a := s.beginFaultDecisions(userPeer(4242), &ctl.Weak{}, nil); a.Errno != syscall.EPERM {
		t.Errorf("recording by another user: got %v, want EPERM", a.Errno)
	}
	c.Close()
	testutil.Eventually(t, "the end of the recording, with its connection", func() bool {
		s.links.mu.Lock()
		defer s.links.mu.Unlock()
		return len(s.links.deciders) == 0
	})
}
