package slog_file

import (
	"log/slog"
	"os"

	"verbena/ib"
)

type srv struct{ log *slog.Logger }

func newSrv(path string) (*srv, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &srv{slog.New(slog.NewJSONHandler(f, nil)).With("part", "srv")}, nil
}

func (s *srv) done(cq *ib.CQ) {
	s.log.Info("completion", "cq", cq.Entries()) // want "nosleep: .*may sleep: it calls .*slog.Logger.*Info"
}

func Make(d *ib.Device) {
	s, err := newSrv("/tmp/log")
	if err == nil {
		d.CreateCQ(ib.CQInit{Handler: s.done})
	}
}
