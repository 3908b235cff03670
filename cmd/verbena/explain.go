package main

import (
	"fmt"
	"io"
	"strings"

	"verbena/internal/ctl"
	"verbena/internal/qpinfo"
)

type explainCmd struct {
	Last int    `short:"n" help:"Only the latest N causes; default: ${default}, 0 for all." default:"10" placeholder:"N" complete:"none"`
	QP   uint32 `name:"qp" help:"Only causes of this queue pair." placeholder:"QPN" complete:"none"`
	JSON bool   `name:"json" help:"Print JSON."`
}

func (*explainCmd) Help() string {
	return `Prints the causes of failed completions, refused calls, dropped packets, rejected connections and lost devices: the rule with its
clause, the end at fault, since when, and the remedy. The service keeps the latest 1000 causes of each user. It compares the facts
of both ends if both are here. It says "unknown" rather than guess. Users see only their own causes.

Examples:
  verbena explain
  verbena explain --qp 17 --last 1
  verbena explain --json --last 0`
}

func (e *explainCmd) Run(c *cli) error {
	if e.Last < 0 {
		return fmt.Errorf("explain: --last %d is less than 0", e.Last)
	}
	r, err := c.sendRequest(&ctl.Request{Op: ctl.OpExplain, Explain: &ctl.Explain{Last: e.Last, QP: e.QP}})
	if err != nil {
		return err
	}
	if r.Causes == nil {
		r.Causes = []qpinfo.Cause{}
	}
	return printOutput(e.JSON, r.Causes, func(w io.Writer) { writeCauses(w, r.Causes) })
}

// writeCauses writes causes, each as a line and indented lines with its details.
func writeCauses(w io.Writer, causes []qpinfo.Cause) {
	for i := range causes {
		c := &causes[i]
		who := ""
		if c.PID != 0 {
			who = fmt.Sprintf(" %s[%d]", replaceControlChars(c.Process), c.PID)
		}
		fmt.Fprintf(w, "%s%s %s\n", c.Time.Format("15:04:05.000"), who,
			replaceControlChars(strings.TrimSpace(c.Device+" "+c.String())))
		rule := fmt.Sprintf("%s; at fault: %s; rule: %s", c.Row, c.Fault, c.Clause)
		fmt.Fprintf(w, "    cause: %s\n", replaceControlChars(rule))
		fmt.Fprintf(w, "    remedy: %s\n", replaceControlChars(c.Remedy))
	}
}
