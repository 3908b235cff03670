package service

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"verbena/internal/ctl"
)

// attachedPrograms holds the connections of the programs that use a service.
type attachedPrograms struct {
	sync.Mutex
	n        int       // programs and captures
	yielded  bool      // the service has yielded, so no program may attach
	since    time.Time // time at which n became 0
	attached map[*net.UnixConn]struct{}
}

// attach counts a connection for a program until the caller calls done. attach returns ESHUTDOWN if the service
// is ending.
func (p *attachedPrograms) attach(ended context.Context, c ctl.Conn) (done func(), err error) {
	p.Lock()
	defer p.Unlock()
	if p.yielded || ended.Err() != nil {
		return nil, errServiceEnding
	}
	p.n++
	p.attached[c.UnixConn] = struct{}{}
	return func() {
		p.Lock()
		delete(p.attached, c.UnixConn)
		p.Unlock()
		p.addToCount(-1)
	}, nil
}

// errServiceEnding is the error for a program that attaches while the service is ending.
var errServiceEnding = fmt.Errorf("attach a program: the service is ending: %w", syscall.ESHUTDOWN)

// addToCount adds d to the number of programs.
func (p *attachedPrograms) addToCount(d int) {
	p.Lock()
	defer p.Unlock()
	p.n += d
	p.since = time.Now()
}
