package json_conn

import (
	"encoding/json"
	"net"

	"verbena/ib"
)

type reporter struct{ enc *json.Encoder }

func dial() (*reporter, error) {
	c, err := net.Dial("unix", "/run/monitor")
	if err != nil {
		return nil, err
	}
	return &reporter{json.NewEncoder(c)}, nil
}

func Watch(d *ib.Device) {
	r, err := dial()
	if err != nil {
		return
	}
	d.OnEvent(func(e ib.Event) { r.enc.Encode(e.Port) }) // want "nosleep: .*may sleep: it calls .*json.Encoder.*Encode"
}
