package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
)

type pprofCmd struct {
	Kind    string `arg:"" optional:"" default:"profile" enum:"heap,goroutine,profile,trace" help:"heap: memory in use; goroutine: all stacks; profile: processor time; trace: an execution trace. Default: profile."`
	Seconds int    `help:"How long to take a profile or trace, at most 60. Default: 10." placeholder:"N" complete:"none"`
}

func (*pprofCmd) Help() string {
	return `Writes a profile of the service's process to the standard output. Only root and the service's own user may have one, and one is
taken at a time.

Examples:
  verbena debug pprof profile --seconds 5 > cpu.pprof && go tool pprof -top cpu.pprof
  verbena debug pprof heap > heap.pprof
  verbena debug pprof trace --seconds 2 > trace.out && go tool trace trace.out`
}

// defaultProfileSeconds is the duration of a profile.
const defaultProfileSeconds = 10

func (p *pprofCmd) Run(c *cli) error {
	timed := p.Kind == ctl.ProfileCPU || p.Kind == ctl.ProfileTrace
	if most := int(ctl.MaxProfileTime / time.Second); p.Seconds < 0 || p.Seconds > most {
		return fmt.Errorf("debug pprof: --seconds %d is not from 1 to %d", p.Seconds, most)
	}
	if p.Seconds != 0 && !timed {
		return fmt.Errorf("debug pprof: %s is a snapshot: --seconds is for profile and trace", p.Kind)
	}
	if _, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS); err == nil {
		return fmt.Errorf("debug pprof: a profile is not for a terminal: send it to a file, verbena debug pprof %s > FILE",
			p.Kind)
	}
	if p.Seconds == 0 && timed {
		p.Seconds = defaultProfileSeconds
	}
	r, err := c.sendRequest(&ctl.Request{Op: ctl.OpProfile,
		Profile: &ctl.Profile{Kind: p.Kind, Duration: time.Duration(p.Seconds) * time.Second}})
	if err != nil {
		return err
	}
	if _, err := os.Stdout.Write(r.Profile); err != nil {
		return fmt.Errorf("debug pprof: %w", err)
	}
	return nil
}
