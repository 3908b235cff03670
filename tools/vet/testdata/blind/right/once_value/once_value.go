package once_value

import (
	"context"
	"strings"
	"sync"
	"time"

	"verbena/ib"
)

type peer struct{ addr func() string }

func newPeer(name string) *peer {
	return &peer{addr: sync.OnceValue(func() string { return strings.ToUpper(name) })}
}

func Make(ctx context.Context, d *ib.Device) {
	p := newPeer("x")
	stop := context.AfterFunc(ctx, func() { time.Sleep(1) })
	d.OnEvent(func(ib.Event) { _ = p.addr(); stop() })
}
