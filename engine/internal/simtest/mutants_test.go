package simtest_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var mutantsFlag = flag.Bool("mutants", false, "break the engine in every way of TestMutants (a minute or two)")

// mutants are faults for the engine: in file, from is replaced by to. The schedules of a service must find each fault.
// The name can begin with the service; the default is RC. TestTravel must find a fault whose name begins with
// "shortcut".
var mutants = []struct {
	name           string
	file, from, to string
}{
	{"duplicates are executed again", "transport/receiver.go",
		"	case ahead < 0:", "	case ahead < -1<<22:"},
	{"a duplicate atomic is executed again", "resp.go",
		"	q := transport.Repeat{PSN: k.psn, Kind: transport.KindOf(k.Flags)}\n", "	q := transport.Repeat{PSN: k.psn, Kind: transport.KindOf(k.Flags)}\n\tif q.Kind == transport.Atomic {\n\t\tif m := qp.memory(qp.pd, k.AtomicETH().RKey(), 0); m != nil {\n\t\t\tm.atomic(k.Opcode, k.AtomicETH())\n\t\t\tm.put()\n\t\t}\n\t}\n"},
	{"a duplicate atomic is answered with something else", "transport/receiver.go",
		"		again.PSN = q.PSN\n", "		again.PSN, again.Result = q.PSN, 0\n"},
	{"an acknowledgement of a duplicate stands for what was answered since", "transport/receiver.go",
		"r.Acknowledge(roce.ACKUnlimited, r.acknowledgeable(q.PSN))", "r.Acknowledge(roce.ACKUnlimited, r.psn.Add(-1))"},
	{"one request is remembered, whatever was agreed on", "transport/receiver.go",
		"	if len(r.past) < r.depth {", "	if len(r.past) < 1 {"},
	{"a repeated READ starts at the beginning", "transport/receiver.go",
		"again.Addr, again.Left = q.Addr,", "again.Addr, again.Left = x.Addr,"},
	{"an acknowledgement is one ahead", "transport/receiver.go",
		"	if acks {\n		r.Acknowledge(roce.ACKUnlimited, r.psn)", "	if acks {\n		r.Acknowledge(roce.ACKUnlimited, r.psn.Next())"},
	{"a packet without a receive is skipped", "transport/receiver.go",
		"	r.Acknowledge(roce.RNRNAK(t), r.psn)\n", "	r.Acknowledge(roce.RNRNAK(t), r.psn)\n	r.psn = r.psn.Next()\n"},
	{"a gap is not noticed", "transport/receiver.go",
		"	case ahead > 0:", "	case ahead > 1:"},
	{"UC: a gap within a message is not noticed", "transport/receiver.go",
		"	if psn != r.psn || starts {", "	if starts {"},
	{"data are acknowledged, and not stored", "copy.go",
		"	s.add(data)\n", "	if kind != scatterWrite || len(data) < 100 {\n\t\ts.add(data)\n\t}\n"},
	{"UD: the header of a datagram has the wrong source", "resp.go",
		"SGID: roce.GID(k.src.As16())", "SGID: roce.GID(k.dst.As16())"},
	{"an RNR NAK counts as an acknowledgement", "transport/sender.go",
		"	case syndrome.IsACK():\n		upTo", "	case syndrome.IsACK(), syndrome.IsRNR():\n		upTo"},
	{"an acknowledgement completes a READ", "transport/sender.go",
		"		if e.Kind.Answered() {\n			break", "		if false {\n			break"},
	{"old acknowledgements count", "transport/sender.go",
		"s.flight.len() > 0 && !psn.Less(s.una) && ", "s.flight.len() > 0 && "},
	{"a gap among the responses is not noticed", "transport/sender.go",
		"		s.responseLost(r.PSN, &res)\n		return res, to, false\n", ""},
	{"nothing is sent again", "transport/sender.go",
		"	s.recovery.Lost(s.MTU)\n	s.Rewind()\n", "	s.recovery.Lost(s.MTU)\n"},
	{"there is no end of retries", "transport/sender.go",
		"	s.retries--\n", ""},
	{"retries are counted twice", "transport/sender.go",
		"	s.retries--\n", "	s.retries -= min(s.retries, 4)\n"},
	{"unsignalled work requests complete too", "comp.go",
		"if !qp.sigAll && w.Flags&uapi.SendSignaled == 0 {", "if false {"},
	{"a timeout is forgotten", "transport/sender.go",
		"	case due(&s.deadline):", "	case due(&s.deadline) && false:"},
	{"a fence is no obstacle", "req.go",
		"	if w.Flags&uapi.SendFence != 0 && ", "	if false && "},
	{"a PSN is left out", "transport/sender.go",
		"	s.next = s.next.Add(q.Packets)", "	s.next = s.next.Add(q.Packets + q.Packets/8)"},
	{"no acknowledgement is asked for", "transport/sender.go",
		"	p.AckReq = s.Reliable && (p.Last || ", "	p.AckReq = s.Reliable && ("},
	{"the immediate data are those of another", "req.go",
		"		copy(h, w.Imm[:])\n", "		copy(h, w.imm[1:])\n"},
	{"something in flight is not flushed", "comp.go",
		"	for r.snd.Len() > 0 {\n		r.drop(uapi.WCWRFlushErr)", "	for r.snd.Len() > 0 {\n		r.snd.Drop()\n\t\tqp.sqDone = qp.sq.next(qp.sqDone)"},
	{"solicited messages raise nothing", "cq.go",
		"(solicited || wc.Status", "(wc.Status"},
	{"a window that was taken back stays", "mw.go",
		"		return false\n	}\n	w.replace(nil)\n	return true", "		return false\n	}\n	return true"},
	{"XRC: a region that was taken back stays", "fastreg.go",
		"	m.replace(nil)\n	return true", "	return true"},
	{"a message takes nothing back", "resp.go",
		"		ended := qp.invalidate(h.RKey())", "		ended := true"},
	{"an atomic write is acknowledged, and not done", "flush.go",
		"	return g.write(a.vec[:], addr, atomicLen)", "	return nil"},
	{"a duplicate atomic write is done again", "resp.go",
		"	q := transport.Repeat{PSN: k.psn, Kind: transport.KindOf(k.Flags)}\n", "	q := transport.Repeat{PSN: k.psn, Kind: transport.KindOf(k.Flags)}\n\tif q.Kind == transport.AtomicWrite {\n\t\tif m := qp.memory(r.domain(), k.RETH().RKey(), 0); m != nil {\n\t\t\tm.atomicWrite(k.RETH().VA(), k.Payload)\n\t\t\tm.put()\n\t\t}\n\t}\n"},
	{"a FLUSH has no PSN of its own", "transport/receiver.go",
		"	r.psn = r.psn.Add(a.Packets)\n", "	if a.Kind != Flush {\n\t\tr.psn = r.psn.Add(a.Packets)\n\t}\n"},
	{"a shared receive is taken twice", "srq.go",
		"		s.queue.Take()\n\t\tok = s.queue.Complete()\n", "		if w.ID%16 != 1 {\n\t\t\ts.queue.Take()\n\t\t\tok = s.queue.Complete()\n\t\t}\n"},
	{"nobody is told of the last shared receive", "srq.go",
		"		qp.raise(ib.EventQPLastWQEReached)\n", ""},
	{"XRC: duplicates are executed again", "transport/receiver.go",
		"	case ahead < 0:", "	case ahead < -1<<22:"},
	{"shortcut: a span is stored, and half of it counted", "resp.go",
		"	r.wqe.filled += len(k.Payload)\n", "	r.wqe.filled += len(k.Payload) / min(k.packets, 2)\n"},
	{"shortcut: one response less than were stored", "comp.go",
		"	r.snd.StoredAll(k.packets)\n", "	r.snd.StoredAll(k.packets - 1)\n"},
	{"shortcut: a train counts as one packet", "run.go",
		"	peer.counters.add(cntRcvdPkts, t.packets)\n", "	peer.counters.add(cntRcvdPkts, 1)\n"},
	{"shortcut: the PSN after a span is one too far", "transport/receiver.go",
		"	r.psn = r.psn.Add(n - 1)\n", "	r.psn = r.psn.Add(n)\n"},
	{"shortcut: a datagram has come through a router", "run.go",
		"ttl: cmp.Or(t.TTL, defaultTTL)}", "ttl: cmp.Or(t.TTL, defaultTTL) - 1}"},
	{"shortcut: packets that are taken out of a span have one number", "train.go",
		"	h.SetPSN(s.first.Add(i))\n", "	h.SetPSN(s.first)\n"},
	{"PSNs are plain numbers", "../roce/psn.go",
		"{ return int32((p-q)<<8) < 0 }", "{ return p < q }"},
}

// TestMutantsApply: each mutant applies to exactly one place in the engine.
func TestMutantsApply(t *testing.T) {
	for _, m := range mutants {
		source, err := os.ReadFile(filepath.Join("../..", m.file))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(source, []byte(m.from)); n != 1 {
			t.Errorf("%s: %s has %d places of %q, want 1", m.name, m.file, n, m.from)
		}
	}
}

// TestMutants breaks the engine in one place at a time, and checks that the schedules find the fault.
func TestMutants(t *testing.T) {
	if !*mutantsFlag {
		t.Skip("make mutants")
	}
	engine, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			file := filepath.Join(engine, m.file)
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(source, []byte(m.from)); n != 1 {
				t.Fatalf("%s has %d places of %q", m.file, n, m.from)
			}
			dir := t.TempDir()
			broken := filepath.Join(dir, "broken.go")
			if err := os.WriteFile(broken, bytes.Replace(source, []byte(m.from), []byte(m.to), 1), 0o644); err != nil {
				t.Fatal(err)
			}
			overlay, err := json.Marshal(map[string]map[string]string{"Replace": {file: broken}})
			if err != nil {
				t.Fatal(err)
			}
			list := filepath.Join(dir, "overlay.json")
			if err := os.WriteFile(list, overlay, 0o644); err != nil {
				t.Fatal(err)
			}
			bin := filepath.Join(dir, "mutant.test")
			if out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", list, "-o", bin, ".").CombinedOutput(); err != nil {
				t.Fatalf("build: %v\n%s", err, out)
			}
			service := "RC"
			if name, _, ok := strings.Cut(m.name, ":"); ok {
				service = name
			}
			test := "TestSchedules/" + service
			if service == "shortcut" {
				test = "TestTravel"
			}
			out, err := exec.Command(bin, "-test.run", test, "-test.timeout", "5m", "-schedules", "400", "-travels", "60").CombinedOutput()
			if err == nil {
				t.Fatalf("%s did not notice", test)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, " seed ") || strings.HasPrefix(line, "panic") {
					t.Log(strings.TrimSpace(line))
					break
				}
			}
		})
	}
}
