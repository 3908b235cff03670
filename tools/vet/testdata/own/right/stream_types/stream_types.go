// Package stream_types: the type of a writer that comes from elsewhere shows that it does not sleep.
package stream_types

import (
	"bytes"
	"io"
	"log"
	"log/slog"
	"sync"

	"verbena/ib"
)

type ring struct {
	mu sync.Mutex
	b  [4096]byte
	at int
}

func (r *ring) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = (r.at + copy(r.b[r.at:], p)) % len(r.b)
	return len(p), nil
}

type count int

func (c count) Write(p []byte) (int, error) { return len(p), nil }

type sinks struct {
	r *ring
	n count
}

// Slog logs to a parameter.
func Slog(d *ib.Device, r *ring) (*ib.CQ, error) {
	l := slog.New(slog.NewTextHandler(r, nil)).With("device", d.Name())
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: func(cq *ib.CQ) { l.Info("completion", "entries", cq.Entries()) }})
}

// Log logs to fields.
func Log(d *ib.Device, s *sinks) (*ib.CQ, error) {
	l, n := log.New(s.r, "", 0), log.New(io.MultiWriter(s.n, s.r), "", 0)
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: func(cq *ib.CQ) {
		l.Print("completion")
		n.Print("completion")
	}})
}

// Buffer logs to a buffer.
func Buffer(d *ib.Device, b *bytes.Buffer) (*ib.CQ, error) {
	l := log.New(b, "", 0)
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: func(cq *ib.CQ) { l.Print("completion") }})
}
