package rlocker

import (
	"sync"

	"verbena/ib"
)

type dev struct {
	ib.Driver
	mu    sync.RWMutex
	reply chan int
}

func (d *dev) QueryDevice() (ib.DeviceAttr, error) {
	l := d.mu.RLocker()
	l.Lock()
	defer l.Unlock()
	<-d.reply
	return ib.DeviceAttr{}, nil
}

func (d *dev) EnterError() {
	d.mu.Lock() // want "nosleep: .*may sleep: it locks rlocker.dev.mu, which is held at"
	defer d.mu.Unlock()
}
