// Package text_in_memory logs events to memory.
package text_in_memory

import (
	"bytes"
	"log/slog"
	"sync"

	"verbena/ib"
)

// Journal keeps the text of events.
type Journal struct {
	start sync.Once
	text  bytes.Buffer
	log   *slog.Logger
}

// Watch records the events of a device.
func (j *Journal) Watch(d *ib.Device) func() { return d.OnEvent(j.record) }

func (j *Journal) record(e ib.Event) {
	j.start.Do(func() { j.log = slog.New(slog.NewTextHandler(&j.text, nil)) })
	j.log.Info("event", "type", int(e.Type))
}
