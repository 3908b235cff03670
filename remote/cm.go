package remote

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/kept"
	"verbena/internal/quota"
	"verbena/internal/shm"
	"verbena/rdmacm/ucma"
	"verbena/umem"
)

// For an event of the connection manager, the service sends a byte on the signal socket. The client then takes
// events until the service returns EAGAIN. Therefore one unread byte represents all pending events.

// openCM opens a file of the connection manager.
func (f *File) openCM() error {
	if f.srv.cfg.CM == nil {
		return fmt.Errorf("this service has no connection manager: %w", syscall.ENODEV)
	}
	if err := f.chargeQuota(quota.Contexts, 1); err != nil {
		return err
	}
	buffers, err := shm.Create("verbena-buffers", quota.BufferBytes, f.user, f.kept)
	if err != nil {
		return err
	}
	f.memory = &sharedMemory{buffers: buffers}
	b := &eventSignal{fd: int(f.signal.Fd())}
	f.cm = f.srv.cfg.CM.Open(ucma.Config{
		User: f.user, PID: f.client.PID, UID: f.client.UID, Alive: func() bool { return !hasExited(f.client.Process) },
		Ready: b.setReady,
	})
	f.cmSignal = b
	return nil
}

func (f *File) closeCM() {
	if f.cm == nil {
		return
	}
	f.cm.Close()
	f.cmSignal.close()
	f.memory.Close()
}

// eventSignal signals events of a file of the connection manager to the client.
type eventSignal struct {
	mu sync.Mutex
	fd int // -1 once closed
}

func (b *eventSignal) setReady(on bool) {
	if !on {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// One unread byte is enough. Each byte takes about 800 bytes of the kernel's memory.
	if b.fd >= 0 && !kept.UnreadSocket(b.fd).InUse() {
		_ = unix.Send(b.fd, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
}

func (b *eventSignal) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fd = -1
}

func (f *File) writeCM(addr uint64, n int) (uint64, error) {
	done, _, err := f.cm.Write(cmCaller{f}, addr, n)
	if errors.Is(err, ucma.ErrNoEvent) {
		err = syscall.EAGAIN
	}
	return uint64(done), err
}

// cmCaller implements ucma.Caller for the client.
type cmCaller struct{ f *File }

func (c cmCaller) Space() umem.Space { return &c.f.space }

// CMFile implements ucma.Caller. IDs cannot be moved between connections, so CMFile always fails.
func (c cmCaller) CMFile(int) (*ucma.File, error) {
	return nil, fmt.Errorf("move an ID: the file of another connection is not accessible: %w", syscall.EINVAL)
}

// MayConnect reports whether the client may connect a queue pair. The queue pair must belong to the client's user,
// or the client must be a manager.
func (c cmCaller) MayConnect(dev *ib.Device, num uint32) bool {
	if c.f.client.Manager {
		return true
	}
	owner, ok := c.f.srv.cfg.Uverbs.QueuePairUser(dev, num)
	return ok && owner == c.f.user
}

// MayBindLowPorts reports whether the client has CAP_NET_BIND_SERVICE in the service's user namespace.
func (c cmCaller) MayBindLowPorts() bool { return c.f.client.HasCapability(unix.CAP_NET_BIND_SERVICE) }
