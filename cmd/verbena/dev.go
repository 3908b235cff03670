package main

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"verbena/internal/ctl"
)

// unreachableFlag is the value of --unreachable[=DURATION].
type unreachableFlag struct {
	set bool
	d   time.Duration // 0: until 'dev plug'
}

// IsBool implements kong.BoolMapperValue: the value is optional.
func (*unreachableFlag) IsBool() bool { return true }

// Decode implements kong.MapperValue.
func (o *unreachableFlag) Decode(ctx *kong.DecodeContext) error {
	o.set = true
	// Without a "=", the next word is the value if it has the form of a time. Device names begin with rxe.
	if t := ctx.Scan.Peek(); t.Type != kong.FlagValueToken && !strings.ContainsAny(firstByte(t.String()), "0123456789.") {
		return nil
	}
	var text string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not a duration: write 5s or 300ms", text)
	}
	o.d = d
	return nil
}

func firstByte(s string) string { return s[:min(1, len(s))] }

// oneBasedNumber is a number that counts from 1.
type oneBasedNumber uint64

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *oneBasedNumber) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil || v == 0 {
		return fmt.Errorf("%q is not a number from 1 upwards", b)
	}
	*n = oneBasedNumber(v)
	return nil
}

// decodeNumberFrom1 decodes the flags of package fault that are such numbers.
func decodeNumberFrom1(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("value", &text); err != nil {
		return err
	}
	var n oneBasedNumber
	err := n.UnmarshalText([]byte(text))
	target.SetUint(uint64(n))
	return err
}

// resetMomentFlag is a ctl.ResetMoment.
type resetMomentFlag ctl.ResetMoment

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *resetMomentFlag) UnmarshalText(b []byte) error {
	switch v := ctl.ResetMoment(b); v {
	case ctl.DevRegistration, ctl.DevCompletion:
		*m = resetMomentFlag(v)
		return nil
	}
	return fmt.Errorf("moment %q is not %s or %s", b, ctl.DevRegistration, ctl.DevCompletion)
}

type devResetCmd struct {
	Name        string          `arg:"" help:"Name of the device." complete:"device"`
	Unreachable unreachableFlag `help:"Disconnect the hardware for a time (--unreachable=2s); without a duration, until 'dev plug'." placeholder:"DURATION" complete:"none"`
	NoFlush     bool            `help:"Give programs no completions for outstanding requests, as the kernel's Soft-RoCE does, rather than flush errors."`
	AtWR        oneBasedNumber  `name:"at-wr" help:"Reset just before the device executes its N-th send work request from now." placeholder:"N" xor:"moment" complete:"none"`
	At          resetMomentFlag `help:"Reset when the next completion handler begins (completion), or now and again while the recovered device is being registered (registration)." placeholder:"MOMENT" xor:"moment" complete:"registration,completion"`
	Cancel      bool            `help:"Cancel the pending resets of --at-wr and --at, and do not reset the device." xor:"moment"`
}

func (d *devResetCmd) Help() string {
	return `Returns when the device can be used again; with --at-wr, --at completion, or --unreachable without a duration, at once.
A reset that waits for its moment is shown by 'dev show', below RESET AT, until it comes, --cancel takes it back, or
the device is reset or unplugged. Interrupting the command does not end a reset that has begun.

Examples:
  verbena dev reset rxe0
  verbena dev reset rxe0 --unreachable=2s
  verbena dev reset rxe0 --at-wr 1000
  verbena dev reset rxe0 --no-flush`
}

func (d *devResetCmd) Run(c *cli) error {
	if d.Cancel && (d.Unreachable.set || d.NoFlush) {
		return errors.New("dev reset: --cancel resets no device: omit --unreachable and --no-flush")
	}
	_, err := c.sendRequest(&ctl.Request{Op: ctl.OpDevReset, Reset: &ctl.DevReset{
		Name: d.Name, Unreachable: d.Unreachable.set, Outage: d.Unreachable.d, NoFlush: d.NoFlush, AtWR: uint64(
			d.AtWR), At: ctl.ResetMoment(d.At), Cancel: d.Cancel}})
	return err
}

type devUnplugCmd struct {
	Name string `arg:"" help:"Name of the device." complete:"device"`
}

func (d *devUnplugCmd) Run(c *cli) error {
	_, err := c.sendRequest(&ctl.Request{Op: ctl.OpDevUnplug, Name: d.Name})
	return err
}

type devPlugCmd struct {
	Name string `arg:"" help:"Name of the device." complete:"device"`
}

func (d *devPlugCmd) Run(c *cli) error {
	_, err := c.sendRequest(&ctl.Request{Op: ctl.OpDevPlug, Name: d.Name})
	return err
}

type devHangCmd struct {
	Name string `arg:"" help:"Name of the device." complete:"device"`
}

func (d *devHangCmd) Run(c *cli) error {
	_, err := c.sendRequest(&ctl.Request{Op: ctl.OpDevHang, Name: d.Name})
	return err
}

type devEventCmd struct{ ctl.DevEvent }

func (d *devEventCmd) Help() string {
	return `Programs get the event though nothing has happened: the state of the port or the queue does not change. Those who are to get an
event with its cause want link set, dev reset or fault add.

Events of the port: port_active, port_err, lid_change, pkey_change, sm_change, client_reregister, gid_change.
Of a queue pair: qp_fatal, qp_req_err, qp_access_err, comm_est, sq_drained, path_mig, path_mig_err, qp_last_wqe_reached.
Of others: cq_err, srq_err, srq_limit_reached, device_fatal, device_speed_change.

Examples:
  verbena dev event rxe0 client_reregister
  verbena dev event rxe0 path_mig --qp 17`
}

func (d *devEventCmd) Run(c *cli) error {
	_, err := c.sendRequest(&ctl.Request{Op: ctl.OpDevEvent, Event: &d.DevEvent})
	return err
}

type devShowCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

func (d *devShowCmd) Run(c *cli) error {
	r, err := c.sendRequest(&ctl.Request{Op: ctl.OpDevShow})
	if err != nil {
		return err
	}
	if r.Devs == nil {
		r.Devs = []ctl.DevInfo{}
	}
	return printOutput(d.JSON, r.Devs, func(w io.Writer) {
		fmt.Fprintln(w, "NAME\tSTATE\tDEVICE\tHARDWARE\tCONTEXTS\tZOMBIES\tRESETS\tRECOVERY\tRESET AT")
		for _, x := range r.Devs {
			recovery, armed := "-", "-"
			if x.Resets > 0 {
				recovery = x.Recovery.Round(time.Microsecond).String()
			}
			if x.Armed != "" {
				armed = x.Armed
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", x.Name, x.State, x.Device, x.Hardware, x.Contexts, x.Zombies,
				x.Resets, recovery, armed)
			if x.Error != "" {
				fmt.Fprintf(w, "\t%s\n", x.Error)
			}
		}
	})
}
