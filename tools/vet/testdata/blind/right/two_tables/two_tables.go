package two_tables

import (
	"verbena/ib"
)

type op func(id uint32) error

type dev struct {
	ib.Driver
	quick map[uint32]op
	admin map[string]op
	reply chan error
}

func newDev() *dev {
	d := &dev{reply: make(chan error)}
	d.quick = map[uint32]op{1: func(uint32) error { return nil }}
	d.admin = map[string]op{"reset": func(uint32) error { return <-d.reply }}
	return d
}

func (d *dev) EnterError() { d.quick[1](0) }

func (d *dev) QueryDevice() (ib.DeviceAttr, error) { return ib.DeviceAttr{}, d.admin["reset"](1) }
