package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"verbena/capture"
)

type captureShowCmd struct {
	File    string `arg:"" help:"Capture: pcap or pcapng, also compressed with gzip." complete:"file"`
	QP      uint32 `name:"qp" help:"Show the connection of this queue pair." placeholder:"N" complete:"none"`
	Trouble bool   `help:"Begin shortly before the first packet that was lost, retransmitted, refused (NAK, RNR NAK) or corrupted."`
	Limit   int    `help:"Show at most N packets; 0: all." default:"200" placeholder:"N" complete:"none"`
	SVG     string `name:"svg" help:"Write an SVG picture to this file instead of text." placeholder:"FILE" complete:"file"`

	Perfetto string `help:"Write a trace of the requests to this file, for https://ui.perfetto.dev." placeholder:"FILE" complete:"file"`
}

func (*captureShowCmd) Help() string {
	return `Lists the connections in a capture, and with one, or --qp, its packets in order, with what is wrong with them. A packet between two
devices that were both recorded is one line, as it leaves; where it does not arrive it is lost. Datagrams (UD) are not shown.

Examples:
  verbena capture show lossy.pcapng
  verbena capture show lossy.pcapng --qp 17 --trouble
  verbena capture show lossy.pcapng --qp 17 --trouble --limit 40 --svg lossy.svg
  verbena capture show lossy.pcapng --perfetto lossy.pftrace`
}

func (c *captureShowCmd) Run() error { return c.writeConnections(os.Stdout) }

func (c *captureShowCmd) writeConnections(out io.Writer) error {
	if c.Limit < 0 {
		return fmt.Errorf("capture show: --limit %d is negative", c.Limit)
	}
	f, err := os.Open(c.File)
	if err != nil {
		return fmt.Errorf("capture show: %w", err)
	}
	defer f.Close()
	all, err := capture.Connections(f)
	if err != nil {
		return fmt.Errorf("capture show: %s: %w", c.File, err)
	}
	if len(all) == 0 {
		return fmt.Errorf("capture show: %s contains no packet of a connection (RC, UC, XRC, SRD)", c.File)
	}
	list := all
	if c.QP != 0 {
		list = slices.DeleteFunc(slices.Clone(all), func(x *capture.Connection) bool { return !x.HasQP(c.QP) })
	}
	switch {
	case len(list) == 0:
		return fmt.Errorf("capture show: %s contains no connection with queue pair %d; omit --qp to list the connections",
			c.File, c.QP)
	case c.Perfetto != "" && (c.SVG != "" || c.Trouble):
		return errors.New("capture show: --perfetto excludes --svg and --trouble: a trace shows all packets")
	case c.Perfetto != "":
		if err := writeFile(c.Perfetto, func(w io.Writer) error { return capture.WritePerfetto(w, list) }); err != nil {
			return fmt.Errorf("capture show: %w", err)
		}
		return nil
	case len(list) > 1 && c.SVG != "":
		return errors.New("capture show: --svg needs --qp: a picture shows one connection")
	case len(list) > 1:
		for _, x := range list {
			fmt.Fprintln(out, x.Summary())
		}
		return nil
	}
	x := list[0]
	if c.Trouble && !x.HasFault() {
		fmt.Fprintf(out, "%s\nnothing is wrong with them\n", x.Summary())
		return nil
	}
	if c.SVG != "" {
		err := writeFile(c.SVG, func(w io.Writer) error { return x.WriteSVG(w, c.Limit, c.Trouble) })
		if err != nil {
			return fmt.Errorf("capture show: %w", err)
		}
		return nil
	}
	w := bufio.NewWriter(out)
	fmt.Fprintln(w, x.Summary())
	if err := errors.Join(x.WriteText(w, c.Limit, c.Trouble), w.Flush()); err != nil &&
		!strings.Contains(err.Error(), "broken pipe") {
		return fmt.Errorf("capture show: %w", err)
	}
	return nil
}
