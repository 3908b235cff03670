package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"

	"verbena/ib/weak"
	"verbena/internal/ctl"
)

// decisionLog records the decisions of the weak devices of a program, and replays those of a file. A launcher cannot
// open files at its end.
type decisionLog struct {
	to     *resultFile     // destination of --weak-log, or nil
	replay []weak.Decision // decisions to take
	given  bool            // --replay was given
	mem    *ctl.DecisionFile
}

// newDecisionLog returns a log for the values of --weak-log and --replay, or nil without both.
func newDecisionLog(log, replay string) (*decisionLog, error) {
	if log == "" && replay == "" {
		return nil, nil
	}
	l := &decisionLog{given: replay != ""}
	if l.given {
		var err error
		if l.replay, err = readReplay(replay); err != nil {
			return nil, fmt.Errorf("--replay: %s: %w", replay, err)
		}
	}
	if log != "" {
		var err error
		if l.to, err = openResultFile(log); err != nil {
			return nil, fmt.Errorf("--weak-log: %w", err)
		}
	}
	return l, nil
}

// readReplay reads the decisions of a file for programs.
func readReplay(name string) ([]weak.Decision, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, errors.Unwrap(err) // the caller names the file
	}
	defer f.Close()
	l, err := weak.ReadLog(f)
	if err != nil {
		return nil, err
	}
	for _, d := range l.Decisions {
		if weak.InProcess.Has(d.Choice) {
			return nil, fmt.Errorf("programs do not meet the choice %s", weak.Choices[d.Choice].Name)
		}
	}
	return l.Decisions, nil
}

// begin makes the memory of the log on the connection of a client, and begins to record the decisions of fault rules
// there. A user who may not add rules gets a log without these decisions. l may be nil.
func (l *decisionLog) begin(client *ctl.Client, seed uint64) (err error) {
	if l == nil {
		return nil
	}
	if l.mem, err = client.Decisions(); err != nil {
		return err
	}
	if l.given {
		err = l.mem.WriteReplay((&weak.Log{Decisions: l.replay}).AppendText(nil))
	}
	if err != nil {
		return err
	}
	err = client.BeginFaultDecisions(ctl.Weak{Seed: seed, Replay: l.given})
	if errors.Is(err, syscall.EPERM) {
		err = nil
	}
	return err
}

// abandon is for a program that was not started. l may be nil.
func (l *decisionLog) abandon() {
	if l != nil && l.to != nil {
		l.to.abandon()
	}
}

// finish writes the file, and reports to messages whether the program met the decisions of the replay. l may be nil.
func (l *decisionLog) finish(messages io.Writer) error {
	if l == nil || l.mem == nil {
		return nil
	}
	defer l.mem.Close()
	record, err := l.read()
	if err == nil && l.to != nil {
		if err = l.to.clear(); err == nil {
			_, err = l.to.Write(record.AppendText(nil))
		}
		err = errors.Join(err, l.to.Close())
	}
	if err != nil {
		return fmt.Errorf("decisions of the weak device: %w", err)
	}
	if record.Missing > 0 {
		fmt.Fprintf(messages, "verbena: %d later decisions of the weak device were not recorded: the log holds the first %d\n",
			record.Missing, len(record.Decisions))
	}
	if l.given {
		reportReplay(messages, l.replay, record.Decisions)
	}
	return nil
}

// read returns the recorded log. A process of the program may be recording its last line.
func (l *decisionLog) read() (*weak.Log, error) {
	from, missing, err := l.mem.Record()
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(from)
	if err != nil {
		return nil, err
	}
	text, _, _ = bytes.Cut(text, []byte{0})
	record, err := weak.ReadLog(bytes.NewReader(text[:bytes.LastIndexByte(text, '\n')+1]))
	if err != nil {
		return nil, err
	}
	record.Missing = uint64(missing)
	return record, nil
}

// maxUnmet limits the number of decisions that reportReplay lists.
const maxUnmet = 5

// reportReplay prints the number of decisions that the program met.
func reportReplay(to io.Writer, replay, met []weak.Decision) {
	unmet := slices.DeleteFunc(slices.Clone(replay), func(d weak.Decision) bool {
		return slices.ContainsFunc(met, func(m weak.Decision) bool { return m.Device == d.Device && m.Point == d.Point })
	})
	fmt.Fprintf(to, replayNotice+" the program met %d of %d decisions\n", len(replay)-len(unmet), len(replay))
	for i := range unmet[:min(len(unmet), maxUnmet)] {
		fmt.Fprintf(to, replayNotice+" not met: %s", unmet[i].AppendText(nil))
	}
}
