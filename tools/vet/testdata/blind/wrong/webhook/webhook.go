package webhook

import (
	"net/http"

	"verbena/ib"
)

type dev struct {
	ib.Driver
	c *http.Client
}

func (d *dev) EnterError() {
	r, err := http.NewRequest("POST", "http://monitor/", nil) // want "nosleep: .*may sleep: it calls http.NewRequest"
	if err == nil {
		d.c.Do(r) // want "nosleep: .*may sleep: it calls .*http.Client.*Do"
	}
}
