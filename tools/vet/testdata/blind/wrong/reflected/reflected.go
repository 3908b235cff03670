package reflected

import (
	"reflect"
	"time"

	"verbena/ib"
)

func slow() { time.Sleep(time.Second) } // want "nosleep: .*may sleep: it calls time.Sleep"

var plugins = map[string]any{"slow": slow}

func Make(d *ib.Device) {
	d.CreateCQ(ib.CQInit{Handler: func(*ib.CQ) {
		reflect.ValueOf(plugins["slow"]).Call(nil)
	}})
}
