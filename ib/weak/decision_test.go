package weak_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/ib/ibtest"
	"verbena/ib/weak"
	"verbena/internal/testutil"
)

// recorder collects the decisions of a device.
type recorder struct {
	mu        sync.Mutex
	decisions []weak.Decision
}

func (r *recorder) record(d *weak.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decisions = append(r.decisions, *d)
}

// lines returns the sorted lines of the log, with or without the texts for readers.
func (r *recorder) lines() (lines []string) {
	for i := range r.decisions {
		line, _, _ := strings.Cut(string(r.decisions[i].AppendText(nil)), " #")
		lines = append(lines, strings.TrimSpace(line))
	}
	slices.Sort(lines)
	return lines
}

// missingLines returns the lines of a list that another does not have.
func missingLines(in, from []string) []string {
	return slices.DeleteFunc(slices.Clone(in), func(s string) bool { return slices.Contains(from, s) })
}

// runTraffic posts all kinds of requests on two connections, and returns the results of all polls and the decisions of
// the device.
func runTraffic(t *testing.T, inner ibtest.NewDevice, c weak.Config) (results []string, r *recorder) {
	r = &recorder{}
	c.Record, c.Device = r.record, "test/1"
	synctest.Test(t, func(t *testing.T) {
		w := newConnectedDevice(t, newWeakFactory(inner, c))
		cq := w.newCQ()
		sides := make([]*qpSide, 4)
		for i := range sides {
			sides[i] = w.newSide(cq, cq)
		}
		w.connectSides(sides[0], sides[1])
		w.connectSides(sides[2], sides[3])
		from, to := w.newBuffer(shared), w.newBuffer(shared)
		for i := range 40 {
			a, b := sides[i%2*2], sides[i%2*2+1]
			b.postReceive(uint64(i), to)
			read, write := to.transferTo(ib.WRRDMARead, from), from.transferTo(ib.WRRDMAWrite, to)
			write.Flags = ib.SendSignaled
			a.postSend(read)
			a.postSend(write)
			a.postSend(ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.fullSGL()})
			for done := 0; done < 4; {
				var wc [8]ib.WC
				n, err := cq.Poll(wc[:])
				must(t, err)
				for _, x := range wc[:n] {
					results = append(results, fmt.Sprint(x.Opcode, x.ID, x.Status, x.ByteLen))
				}
				done += n
				testutil.AdvanceTime(20 * time.Microsecond)
			}
		}
	})
	return results, r
}

// TestReplayTakesTheRecordedDecisions records the decisions of a device, and replays them on a device with another
// seed. The program must see the same, and the second device must record the same decisions.
func TestReplayTakesTheRecordedDecisions(t *testing.T) {
	for _, d := range []struct {
		name  string
		inner ibtest.NewDevice
	}{{"loopback", newLoopback}, {"rxe", newRXE}} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s seed %d", d.name, seed), func(t *testing.T) {
				results, first := runTraffic(t, d.inner, weak.Config{Seed: seed, Choices: weak.All &^ weak.Of(weak.SlowMethods)})
				if len(first.decisions) < 20 {
					t.Fatalf("decisions: got %d, want at least 20", len(first.decisions))
				}
				replayed := weak.Config{Seed: seed + 100, Decisions: weak.NewDecisionSet(first.decisions)}
				again, second := runTraffic(t, d.inner, replayed)
				if !slices.Equal(again, results) {
					t.Errorf("results of the replay: got %v, want %v", again, results)
				}
				if got, want := second.lines(), first.lines(); !slices.Equal(got, want) {
					t.Errorf("decisions of the replay: got %d with %q, want %d with %q",
						len(got), missingLines(got, want), len(want), missingLines(want, got))
				}
			})
		}
	}
}

// TestReplayOfNothingIsKind checks that a replay without decisions delays and reorders nothing.
func TestReplayOfNothingIsKind(t *testing.T) {
	_, r := runTraffic(t, newLoopback, weak.Config{Seed: 1, Decisions: weak.NewDecisionSet(nil)})
	if len(r.decisions) != 0 {
		t.Errorf("decisions: got %v, want none", r.lines())
	}
}

// TestDroppedDecisionChangesOnlyItself drops one of the recorded decisions about requests. All others that do not
// depend on it must be taken.
func TestDroppedDecisionChangesOnlyItself(t *testing.T) {
	choices := weak.Of(weak.LateSource, weak.WriteOrder)
	_, first := runTraffic(t, newLoopback, weak.Config{Seed: 3, Choices: choices})
	for i := 0; i < len(first.decisions); i += 5 {
		rest := slices.Delete(slices.Clone(first.decisions), i, i+1)
		_, second := runTraffic(t, newLoopback, weak.Config{Decisions: weak.NewDecisionSet(rest)})
		want := (&recorder{decisions: rest}).lines()
		if got := second.lines(); !slices.Equal(got, want) {
			t.Errorf("without %s: got %d decisions, want %d", first.decisions[i].AppendText(nil), len(got), len(want))
		}
	}
}

func parseLog(text string) (*weak.Log, error) { return weak.ReadLog(strings.NewReader(text)) }

const logTitle = "verbena decisions 1\n"

// TestLogText checks that a log is the same after it was written and read, and that a person may edit it.
func TestLogText(t *testing.T) {
	_, r := runTraffic(t, newLoopback, weak.Config{Seed: 2})
	l := &weak.Log{Seed: 2, Missing: 1, Decisions: r.decisions}
	got, err := weak.ReadLog(bytes.NewReader(l.AppendText(nil)))
	must(t, err)
	if !reflect.DeepEqual(got, l) {
		t.Errorf("log after it was written and read: got %+v, want %+v", got, l)
	}
	edited := "\n# a comment\n  verbena   decisions 1\n\n# another\nlate-source  a/1 qp 3   send 17 = 2\n" +
		"exact-room a/1 = 1 # every queue\r\nslow-methods a/2 call 5 = 1"
	if got, err = parseLog(edited); err != nil || len(got.Decisions) != 3 || got.Decisions[1].About != "every queue" {
		t.Errorf("edited log: got %+v and error %v, want 3 decisions", got, err)
	}
}

// TestLogErrors checks that each error names its line and the cause.
func TestLogErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "does not begin with"},
		{"verbena decisions 2\n", `line 1: got "verbena decisions 2", want "verbena decisions 1"`},
		{logTitle + "late-source a/1 qp 3 send 17 2\n", "line 2: want CHOICE DEVICE"},
		{logTitle + "\nlate-sauce a/1 qp 3 send 17 = 2\n", `line 3: no choice of weak devices has the name "late-sauce"`},
		{logTitle + "late-source a/1 qp 3 poll 17 = 2\n", "line 2: late-source does not decide at such an object"},
		{logTitle + "late-source a/1 qp 0 send 17 = 2\n", `line 2: qp: "0" is not the number`},
		{logTitle + "late-source a/1 send 17 qp 3 = 2\n", `line 2: "qp" is not an object or event, or is in the wrong place`},
		{logTitle + "late-source a/1 qp 3 send 17 = 2049\n", `line 2: the value must be a number from 1 to 2048, not "2049"`},
		{logTitle + "late-source a/1 qp 3 send 17 = 0\n", "line 2: the value must be"},
		{logTitle + "late-source a\x01/1 qp 3 send 17 = 1\n", "line 2: \"a\\x01/1\" is not the name of a device"},
		{logTitle + "late-source a/1 qp 3 send 17 = 1\nlate-source a/1 qp 3 send 17 = 2\n", "line 3: line 2 has the same"},
		{logTitle + "exact-room a/1 qp 3 = 1\n", "line 2: exact-room does not decide at such an object"},
		{logTitle + strings.Repeat("a ", 300) + "\n", "line 2: longer than 512 bytes"},
		{logTitle + "seed x\n", `line 2: seed: "x" is not a number`},
	} {
		_, err := parseLog(c.text)
		if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("ReadLog(%q): got error %v, want EINVAL with %q", c.text, err, c.want)
		}
	}
	var devices, decisions strings.Builder
	for i := range 300 {
		fmt.Fprintf(&devices, "exact-room a/%d = 1\n", i)
	}
	for i := range weak.MaxDecisions + 1 {
		fmt.Fprintf(&decisions, "late-source a/1 qp 3 send %d = 1\n", i+1)
	}
	for name, text := range map[string]string{"devices": devices.String(), "decisions": decisions.String(),
		"bytes": strings.Repeat("#", weak.MaxLogSize)} {
		if _, err := parseLog(logTitle + text); !errors.Is(err, syscall.EFBIG) {
			t.Errorf("ReadLog with too many %s: got error %v, want EFBIG", name, err)
		}
	}
}

// FuzzReadLog checks that a log that was read is the same after it was written and read again.
func FuzzReadLog(f *testing.F) {
	for _, line := range []string{"late-source a/1 qp 3 send 17 = 2 # QP 18", "exact-room b/2 = 1", "missing 3",
		"cross-order a/1 qp 1 recv 1 = 3", "missed-completion a/1 qp 1 send 1 = 1"} {
		f.Add([]byte(logTitle + "seed 7\n" + line + "\n"))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := weak.ReadLog(bytes.NewReader(text))
		if err != nil {
			if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EFBIG) {
				t.Errorf("error: got %v, want EINVAL or EFBIG", err)
			}
			return
		}
		for i := range l.Decisions {
			if l.Decisions[i].Effect() == "" {
				t.Errorf("effect of %s: got none", l.Decisions[i].AppendText(nil))
			}
		}
		again, err := weak.ReadLog(bytes.NewReader(l.AppendText(nil)))
		if err != nil || !reflect.DeepEqual(again, l) {
			t.Errorf("log after it was written and read: got %+v and error %v, want %+v", again, err, l)
		}
	})
}

// TestPointsHaveTexts checks the table of points.
func TestPointsHaveTexts(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range weak.Points {
		d := weak.Decision{Device: "a/1", Point: weak.Point{Choice: p.Choice, Object: p.Object, Event: p.Event, Seq: 1},
			Value: p.Max}
		if p.Object != weak.WholeDevice {
			d.Number = 1
		}
		line := string(d.AppendText(nil))
		if seen[line] || p.Max < 1 || d.Effect() == "" || strings.Contains(d.Effect(), "%") {
			t.Errorf("row %+v: got the line %q and the effect %q, want another line, and an effect", p, line, d.Effect())
		}
		seen[line] = true
		if l, err := parseLog(logTitle + line); err != nil || len(l.Decisions) != 1 {
			t.Errorf("ReadLog(%q): got error %v, want one decision", line, err)
		}
	}
}

func TestParseForPrograms(t *testing.T) {
	all := weak.All &^ weak.InProcess
	tests := []struct {
		names string
		want  weak.Set // 0: an error
	}{
		{"all", all},
		{"late-source", weak.Of(weak.LateSource)},
		{"all,limits:efa", all | weak.Of(weak.LimitsEFA)},
		{"all,-late-source", all &^ weak.Of(weak.LateSource)},
		{"-late-source,-late-flush", all &^ weak.Of(weak.LateSource, weak.LateFlush)},
		{"late-source,late-flush,-late-source", weak.Of(weak.LateFlush)},
		{"late-source,-late-source", 0},
		{"late-sauce", 0},
		{"-late-sauce", 0},
		{"early-numbers", 0},
		{"packet-fault", 0},
		{"", 0},
		{"-", 0},
		{"--late-source", 0},
	}
	for _, c := range tests {
		got, err := weak.ParseForPrograms(strings.Split(c.names, ","))
		if got != c.want || (err == nil) == (c.want == 0) || err != nil && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("ParseForPrograms(%s): got %b, %v, want %b or EINVAL", c.names, got, err, c.want)
		}
	}
	if got, err := weak.ParseForPrograms(nil); got != 0 || err != nil {
		t.Errorf("ParseForPrograms without names: got %b, %v, want 0 and no error", got, err)
	}
}
