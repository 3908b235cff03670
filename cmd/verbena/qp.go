package main

import (
	"fmt"
	"io"
	"os"

	"verbena/internal/ctl"
	"verbena/internal/qpinfo"
)

type qpShowCmd struct {
	Dev  string `help:"Only this device." placeholder:"NAME" complete:"device"`
	JSON bool   `name:"json" help:"Print JSON, with window and retries."`
}

func (q *qpShowCmd) Run(c *cli) error {
	r, err := c.sendRequest(&ctl.Request{Op: ctl.OpQPShow, Name: q.Dev})
	if err != nil {
		return err
	}
	if r.QPs == nil {
		r.QPs = []ctl.QPStatusInfo{}
	}
	return printOutput(q.JSON, r.QPs, func(w io.Writer) { writeQPTable(w, r.QPs) })
}

// writeQPTable writes the states of queue pairs, one per line.
func writeQPTable(w io.Writer, qps []ctl.QPStatusInfo) {
	fmt.Fprintln(w, "DEVICE\tQP\tTYPE\tSTATE\tPEER\tUNACKED\tNEXT\tEXPECTED\tIN FLIGHT\tNOTE")
	for _, x := range qps {
		peer, note := "-", ""
		if x.Peer != "" {
			peer = fmt.Sprintf("%d at %s", x.DestQPN, x.Peer)
		}
		switch note = x.Flows.String(); {
		case x.Slow:
			note = "memory of its program does not answer"
		case x.Traced && note == "":
			note = "traced"
		case x.Traced:
			note += "; traced"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\n", x.Device, x.Num, x.Type, x.State, peer,
			x.Unacknowledged, x.NextPSN, x.ExpectedPSN, x.InFlight, note)
	}
}

type qpTraceCmd struct {
	Num  uint32 `arg:"" name:"qpn" help:"Number of the queue pair, as printed by qp show and by the program." complete:"none"`
	Dev  string `help:"Device of the queue pair; required if the service has several devices." placeholder:"NAME" complete:"device"`
	Off  bool   `help:"End the trace, after printing it."`
	JSON bool   `name:"json" help:"Print JSON."`
}

func (*qpTraceCmd) Help() string {
	return `The first time it begins a trace of the queue pair; from then on it prints its latest 256 protocol events: packets sent, received
and dropped, retries, timeouts, waits for a receive of the peer, completions, changes of state. Payload is not in it; see
verbena capture for that. At most 64 queue pairs of a device are traced at a time.

Examples:
  verbena qp show
  verbena qp trace 17
  verbena qp trace 17 --off`
}

func (q *qpTraceCmd) Run(c *cli) error {
	r, err := c.sendRequest(&ctl.Request{Op: ctl.OpQPTrace, Trace: &ctl.QPTrace{Dev: q.Dev, Num: q.Num, End: q.Off}})
	if err != nil {
		return err
	}
	t := r.Trace
	if t == nil {
		return fmt.Errorf("qp trace %d: got no trace from the service", q.Num)
	}
	if t.Began {
		fmt.Fprintf(os.Stderr, "verbena: QP %d on %s is traced from now on; repeat this command to print its events\n", t.Num,
			t.Device)
	}
	if t.Lost > 0 {
		fmt.Fprintf(os.Stderr, "verbena: %d older events were discarded\n", t.Lost)
	}
	return printOutput(q.JSON, t, func(w io.Writer) { writeTraceTable(w, t.Events) })
}

// writeTraceTable writes protocol events, one per line.
func writeTraceTable(w io.Writer, events []qpinfo.Event) {
	for _, e := range events {
		fmt.Fprintf(w, "%s  %s\n", e.Time.Format("15:04:05.000000"), e)
	}
}
