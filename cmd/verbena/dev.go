package main

import (
	"fmt"
	"io"
	"time"

	"github.com/alecthomas/kong"

	"verbena/internal/service"
)

// outage is the value of --unreachable[=DURATION].
type outage struct {
	set bool
	d   time.Duration // 0: without end
}

// IsBool has kong take the flag without a value too.
func (*outage) IsBool() bool { return true }

// Decode implements kong.MapperValue.
func (o *outage) Decode(ctx *kong.DecodeContext) error {
	o.set = true
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
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

type devResetCmd struct {
	Name        string `arg:"" help:"Name of the device."`
	Unreachable outage `help:"The hardware does not answer for so long; without a duration, until 'dev plug'." placeholder:"DURATION"`
	AtWR        uint64 `name:"at-wr" help:"Not now, but just before the device carries out its N-th send work request from now." placeholder:"N"`
	At          string `help:"Not now, but when the next completion handler begins (completion); or now, and again while the recovered device is being registered (registration)." enum:",registration,completion" default:"" placeholder:"MOMENT"`
}

func (d *devResetCmd) Run(c *cli) error {
	_, err := c.ask(&service.Request{Op: service.OpDevReset, Reset: &service.DevReset{
		Name: d.Name, Unreachable: d.Unreachable.set, Outage: d.Unreachable.d, AtWR: d.AtWR, At: service.DevMoment(d.At)}})
	return err
}

type devUnplugCmd struct {
	Name string `arg:"" help:"Name of the device."`
}

func (d *devUnplugCmd) Run(c *cli) error {
	_, err := c.ask(&service.Request{Op: service.OpDevUnplug, Name: d.Name})
	return err
}

type devPlugCmd struct {
	Name string `arg:"" help:"Name of the device."`
}

func (d *devPlugCmd) Run(c *cli) error {
	_, err := c.ask(&service.Request{Op: service.OpDevPlug, Name: d.Name})
	return err
}

type devHangCmd struct {
	Name string `arg:"" help:"Name of the device."`
}

func (d *devHangCmd) Run(c *cli) error {
	_, err := c.ask(&service.Request{Op: service.OpDevHang, Name: d.Name})
	return err
}

type devShowCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

func (d *devShowCmd) Run(c *cli) error {
	r, err := c.ask(&service.Request{Op: service.OpDevShow})
	if err != nil {
		return err
	}
	if r.Devs == nil {
		r.Devs = []service.DevInfo{}
	}
	return output(d.JSON, r.Devs, func(w io.Writer) {
		fmt.Fprintln(w, "NAME\tSTATE\tDEVICE\tHARDWARE\tCONTEXTS\tZOMBIES\tRESETS\tRECOVERY\tRESET AT")
		for _, x := range r.Devs {
			recovery, armed := "-", "-"
			if x.Resets > 0 {
				recovery = x.Recovery.Round(time.Microsecond).String()
			}
			if x.Armed != "" {
				armed = x.Armed
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", x.Name, x.State, x.Device, x.Hardware, x.Contexts, x.Zombies, x.Resets, recovery, armed)
			if x.Error != "" {
				fmt.Fprintf(w, "\t%s\n", x.Error)
			}
		}
	})
}
