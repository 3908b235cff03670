// Package stream_types: writers that come from elsewhere and may sleep, by their type or because it is unknown.
package stream_types

import (
	"bufio"
	"io"
	"log"
	"log/slog"
	"os"

	"verbena/ib"
)

type queue struct{ c chan []byte }

func (q *queue) Write(p []byte) (int, error) {
	q.c <- p // want "nosleep: .* may sleep: it sends to a channel"
	return len(p), nil
}

type wrapped struct{ io.Writer }

// Slog logs to a parameter whose Write waits.
func Slog(d *ib.Device, q *queue) (*ib.CQ, error) {
	l := slog.New(slog.NewTextHandler(q, nil))
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: func(cq *ib.CQ) { l.Info("completion") }})
}

// File logs to a file.
func File(d *ib.Device, f *os.File) (*ib.CQ, error) {
	l := log.New(f, "", 0)
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: func(cq *ib.CQ) {
		l.Print("completion") // want "nosleep: .* may sleep: it calls .*Logger..Print"
	}})
}

// Buffered logs to a buffered writer of an unknown stream.
func Buffered(d *ib.Device, b *bufio.Writer) (*ib.CQ, error) {
	l := log.New(b, "", 0)
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: func(cq *ib.CQ) {
		l.Print("completion") // want "nosleep: .* may sleep: it calls .*Logger..Print"
	}})
}

// Unknown logs to an unknown writer.
func Unknown(d *ib.Device, w io.Writer) (*ib.CQ, error) {
	l := log.New(w, "", 0)
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: func(cq *ib.CQ) {
		l.Print("completion") // want "nosleep: .* may sleep: it calls .*Logger..Print"
	}})
}

// Embedded logs to a type of the program whose Write is that of an unknown stream.
func Embedded(d *ib.Device, w *wrapped) (*ib.CQ, error) {
	l := log.New(w, "", 0)
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: func(cq *ib.CQ) {
		l.Print("completion") // want "nosleep: .* may sleep: it calls .*"
	}})
}
