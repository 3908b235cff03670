package exec_interface

import (
	"os/exec"

	"verbena/ib"
)

type runner interface{ Run() error }

func reset(r runner) error { return r.Run() } // want "nosleep: .*may sleep: it calls .*exec.Cmd.*Run"

func Make(d *ib.Device) {
	d.OnEvent(func(e ib.Event) {
		if e.Type == ib.EventDeviceFatal {
			reset(exec.Command("reset-device")) // want "nosleep: .*may sleep: it calls exec.Command"
		}
	})
}
