package rblk

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"verbena/ib"
)

// DiskConfig says which remote store a Disk is.
type DiskConfig struct {
	// Dial connects to the target's login port. It is called again after each loss.
	Dial func(ctx context.Context) (net.Conn, error)
	// Export is the store's name.
	Export string
	// Device is the name of the RDMA device to use; "": any.
	Device string
	// Depth and MaxIO are how many requests may be outstanding, and how many bytes one may have; longer ones are split.
	// 0: 64, and 128 KiB. The target may grant less. The Disk takes Depth x MaxIO of memory.
	Depth, MaxIO int
	// Patience is how long requests are held when the session is lost, before they fail with EIO. 0: a minute; negative:
	// for ever. The Disk goes on trying, and works again when a session is there.
	Patience time.Duration
	// Hang is how long a request may have no response before the session is taken for lost. 0: 15 s.
	Hang time.Duration
	// Logf is told when the session is lost and found. nil: nobody.
	Logf func(format string, args ...any)
}

// DiskState is where a Disk stands.
//
//	        session                loss               Patience has passed
//	Held ------------> Attached ----------> Held ------------------------> Failed
//	                       ^                 |                                |
//	                       +-----------------+----------- session ------------+
//
// and Closed from everywhere, for good.
type DiskState uint8

const (
	DiskHeld     DiskState = iota // no session: requests wait
	DiskAttached                  // requests are carried out
	DiskFailed                    // no session for too long: requests fail
	DiskClosed
)

func (s DiskState) String() string {
	return [...]string{"held", "attached", "failed", "closed"}[s]
}

// Disk is a store on a target (see Store, which it is). Its methods may sleep, are safe for concurrent use, and order
// nothing among concurrent calls.
type Disk struct {
	cfg    DiskConfig
	core   *ib.Core
	client *ib.Client
	name   string

	ctx    context.Context // until Close
	cancel context.CancelFunc
	runs   sync.WaitGroup
	kick   chan struct{} // devices came or went
	opened chan struct{} // closed at the first session, or when there will be none
	free   chan uint16   // tags

	size  int64
	depth int
	maxIO int
	data  *memory // maxIO bytes for each tag; stays through resets
	epoch uint64

	mu       sync.Mutex
	state    DiskState
	devices  []*attachment
	link     *link  // in DiskAttached
	requests []slot // by tag
	seq      uint64
	stats    Stats
	since    time.Time // of the present hold
	refusal  error     // what keeps a session from coming, for messages
}

// attachment is a device that may be used, between the client's Add and the end of its Remove.
type attachment struct {
	dev     *ib.Device
	leaving context.CancelFunc
	ctx     context.Context
	users   sync.WaitGroup // the Disk's link, or an attempt at it
}

// slot is a request that is outstanding.
type slot struct {
	busy   bool
	req    request
	seq    uint64
	since  time.Time // posted, on this session
	result chan error
}

// Stats tells what a Disk has been through.
type Stats struct {
	State    DiskState
	Sessions uint64        // that were established
	Replayed uint64        // requests that were posted again
	Failed   uint64        // requests that failed because Patience had passed
	Held     time.Duration // in all, without a session after the first
}

// ErrLost: no session could be had for as long as Patience. It wraps EIO.
var ErrLost = fmt.Errorf("the target cannot be reached: %w", syscall.EIO)

// Open returns the disk when its first session is there, or says why ctx ended before.
func Open(ctx context.Context, core *ib.Core, cfg DiskConfig) (*Disk, error) {
	if cfg.Depth <= 0 {
		cfg.Depth = 64
	}
	if cfg.MaxIO <= 0 {
		cfg.MaxIO = 128 << 10
	}
	if cfg.Patience == 0 {
		cfg.Patience = time.Minute
	}
	if cfg.Hang <= 0 {
		cfg.Hang = 15 * time.Second
	}
	if cfg.Logf == nil {
		cfg.Logf = func(string, ...any) {}
	}
	d := &Disk{cfg: cfg, core: core, name: rand.Text(), kick: make(chan struct{}, 1), opened: make(chan struct{})}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.client = &ib.Client{Name: "rblk-disk", Add: d.add, Remove: d.remove}
	if err := core.RegisterClient(d.client); err != nil {
		return nil, err
	}
	d.runs.Go(d.run)
	var err error
	select {
	case <-d.opened:
		d.mu.Lock()
		if d.state == DiskClosed {
			err = d.refusal
		}
		d.mu.Unlock()
	case <-ctx.Done():
		d.mu.Lock()
		err = errors.Join(ctx.Err(), d.refusal)
		d.mu.Unlock()
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("open %s: %w", cfg.Export, err)
	}
	return d, nil
}

func (d *Disk) add(dev *ib.Device) (any, error) {
	if d.cfg.Device != "" && dev.Name() != d.cfg.Device {
		return nil, nil
	}
	a := &attachment{dev: dev}
	a.ctx, a.leaving = context.WithCancel(d.ctx)
	d.mu.Lock()
	d.devices = append(d.devices, a)
	d.mu.Unlock()
	d.poke()
	return a, nil
}

// remove holds the requests, and returns when nothing of the disk is left on the device.
func (d *Disk) remove(_ *ib.Device, data any) {
	a, _ := data.(*attachment)
	if a == nil {
		return
	}
	d.mu.Lock()
	d.devices = slices.DeleteFunc(d.devices, func(o *attachment) bool { return o == a })
	d.mu.Unlock()
	a.leaving()
	a.users.Wait()
}

func (d *Disk) poke() {
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// pick returns a device that works, held until its users.Done.
func (d *Disk) pick() *attachment {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.devices {
		if a.dev.State() == ib.DeviceActive {
			a.users.Add(1)
			return a
		}
	}
	return nil
}

// run keeps a session up until the disk is closed.
func (d *Disk) run() {
	const soon, late = 10 * time.Millisecond, time.Second
	wait := time.Duration(0)
	patience := newAlarm(d.cfg.Patience)
	defer patience.stop()
	for d.ctx.Err() == nil {
		if wait > 0 {
			select {
			case <-d.ctx.Done():
			case <-d.kick:
			case <-patience.c:
				d.giveUp()
			case <-time.After(wait):
			}
		}
		wait = min(max(2*wait, soon), late)
		a := d.pick()
		if a == nil {
			d.refused(errors.New("there is no RDMA device that works"))
			continue
		}
		l, err := d.attach(a)
		if err != nil {
			a.users.Done()
			d.refused(err)
			var fatal *refusal
			if errors.As(err, &fatal) && !fatal.retry && d.requests == nil {
				d.stop(err) // it was never there
				return
			}
			continue
		}
		patience.stop()
		d.resume(l)
		l.wait(a.ctx, d.oldest, d.cfg.Hang)
		d.hold(l)
		a.users.Done()
		patience = newAlarm(d.cfg.Patience)
		wait = 0
	}
	d.stop(net.ErrClosed)
}

// alarm is a timer that may never ring.
type alarm struct {
	c    <-chan time.Time
	stop func() bool
}

func newAlarm(after time.Duration) alarm {
	if after < 0 {
		return alarm{nil, func() bool { return true }}
	}
	t := time.NewTimer(after)
	return alarm{t.C, t.Stop}
}

func (d *Disk) refused(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refusal = err
}

// oldest is since when a request has been without a response; zero if there is none.
func (d *Disk) oldest() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	var t time.Time
	for i := range d.requests {
		if r := &d.requests[i]; r.busy && (t.IsZero() || r.since.Before(t)) {
			t = r.since
		}
	}
	return t
}

// prepare makes what stays, at the first session.
func (d *Disk) prepare(w *welcome) error {
	if d.requests != nil {
		if w.Size != d.size || w.Depth < d.depth || w.MaxIO < d.maxIO {
			return fmt.Errorf("the export has changed: %d bytes, depth %d, requests of %d; it had %d, %d, %d",
				w.Size, w.Depth, w.MaxIO, d.size, d.depth, d.maxIO)
		}
		return nil
	}
	if w.Size < 0 || w.Depth < 1 || w.Depth > d.cfg.Depth || w.MaxIO < 1 || w.MaxIO > d.cfg.MaxIO {
		return fmt.Errorf("the target offers %d bytes, depth %d, requests of %d", w.Size, w.Depth, w.MaxIO)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.size, d.depth, d.maxIO = w.Size, w.Depth, w.MaxIO
	d.requests, d.free = make([]slot, d.depth), make(chan uint16, d.depth)
	for i := range d.requests {
		d.requests[i].result = make(chan error, 1)
		d.free <- uint16(i)
	}
	return nil
}

// resume posts what was held, in its order, and opens the gate.
func (d *Disk) resume(l *link) {
	d.mu.Lock()
	defer d.mu.Unlock()
	first := d.stats.Sessions == 0
	d.state, d.link, d.refusal = DiskAttached, l, nil
	d.stats.Sessions++
	if first {
		close(d.opened)
	} else {
		d.stats.Held += time.Since(d.since)
	}
	var held []int
	for tag := range d.requests {
		if d.requests[tag].busy {
			held = append(held, tag)
		}
	}
	slices.SortFunc(held, func(a, b int) int { return int(int64(d.requests[a].seq - d.requests[b].seq)) })
	for _, tag := range held {
		d.stats.Replayed++
		d.post(tag)
	}
	d.cfg.Logf("rblk disk %s: session %d on %s, %d requests posted again", d.cfg.Export, d.stats.Sessions, l.ep.dev.Name(), len(held))
}

// hold takes the session down; what has no response waits for the next.
func (d *Disk) hold(l *link) {
	d.mu.Lock()
	d.state, d.link = DiskHeld, nil
	d.since = time.Now()
	d.mu.Unlock()
	l.close() // after it nobody writes to the memory of requests
	d.cfg.Logf("rblk disk %s: session lost: %v", d.cfg.Export, l.reason())
}

// giveUp fails what is held.
func (d *Disk) giveUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = DiskFailed
	err := ErrLost
	if d.refusal != nil {
		err = fmt.Errorf("%w (%w)", ErrLost, d.refusal)
	}
	d.failAll(err)
}

func (d *Disk) failAll(err error) {
	for tag := range d.requests {
		if r := &d.requests[tag]; r.busy {
			d.stats.Failed++
			r.busy = false
			r.result <- err
		}
	}
}

// stop ends the disk.
func (d *Disk) stop(why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == DiskClosed {
		return
	}
	d.state, d.refusal = DiskClosed, why
	if d.stats.Sessions == 0 {
		close(d.opened)
	}
	d.failAll(net.ErrClosed)
}

// Close ends the session, and fails what is outstanding. It must not be called from a callback.
func (d *Disk) Close() error {
	d.cancel()
	d.runs.Wait()
	d.core.UnregisterClient(d.client)
	return nil
}

// Size is in bytes, and does not change.
func (d *Disk) Size() int64 { return d.size }

// Stats tells what has happened so far.
func (d *Disk) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.State = d.state
	if s.Sessions > 0 && s.State != DiskAttached && s.State != DiskClosed {
		s.Held += time.Since(d.since)
	}
	return s
}

// ReadAt is that of io.ReaderAt. It waits through a lost session, up to DiskConfig.Patience.
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > d.size {
		return 0, fmt.Errorf("read at %d of %d: %w", off, d.size, syscall.EINVAL)
	}
	var end error
	if rest := d.size - off; int64(len(p)) > rest {
		p, end = p[:rest], io.EOF
	}
	n, err := d.split(opRead, p, off)
	if err == nil {
		err = end
	}
	return n, err
}

// WriteAt is that of io.WriterAt; the disk does not grow. What it has written others see at once, and it survives the
// target's end after Sync. After an error any part may have been written.
func (d *Disk) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off > d.size || int64(len(p)) > d.size-off {
		return 0, fmt.Errorf("write %d bytes at %d of %d: %w", len(p), off, d.size, syscall.ENOSPC)
	}
	return d.split(opWrite, p, off)
}

// Sync returns when everything that was written before it was called is safe at the target.
func (d *Disk) Sync() error { return d.do(opSync, nil, 0) }

// split carries out a long operation in pieces, all at once as far as tags allow.
func (d *Disk) split(o op, p []byte, off int64) (int, error) {
	if len(p) <= d.maxIO {
		if len(p) == 0 {
			return 0, nil
		}
		if err := d.do(o, p, off); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	var wg sync.WaitGroup
	errs := make([]error, (len(p)+d.maxIO-1)/d.maxIO)
	limit := make(chan struct{}, d.depth)
	for i := range errs {
		limit <- struct{}{}
		wg.Go(func() {
			from := i * d.maxIO
			errs[i] = d.do(o, p[from:min(from+d.maxIO, len(p))], off+int64(from))
			<-limit
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return i * d.maxIO, err
		}
	}
	return len(p), nil
}

// do is one request, start to end.
func (d *Disk) do(o op, p []byte, off int64) error {
	tag := <-d.free
	defer func() { d.free <- tag }()
	stage := d.data.bytes[int(tag)*d.maxIO:][:len(p)]
	if o == opWrite {
		copy(stage, p)
	}
	d.mu.Lock()
	switch d.state {
	case DiskClosed:
		d.mu.Unlock()
		return net.ErrClosed
	case DiskFailed:
		d.stats.Failed++
		d.mu.Unlock()
		return ErrLost
	}
	r := &d.requests[tag]
	r.busy, r.seq = true, d.seq
	r.req = request{op: o, tag: tag, length: uint32(len(p)), offset: uint64(off), addr: d.data.addr + uint64(int(tag)*d.maxIO)}
	d.seq++
	if d.state == DiskAttached {
		d.post(int(tag))
	}
	d.mu.Unlock()
	err := <-r.result
	if err == nil && o == opRead {
		copy(p, stage)
	}
	return err
}

// post sends a request on the session that there is. If it cannot, the session is lost, and the request held.
func (d *Disk) post(tag int) {
	r := &d.requests[tag]
	r.since = time.Now()
	if err := d.link.post(r.req); err != nil {
		d.link.lose(err)
	}
}

// answered ends a request. It is called in the completion handler.
func (d *Disk) answered(l *link, a response) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := &d.requests[a.tag]
	if d.link != l {
		return nil // the session is being taken down: the request will be posted again
	}
	if !r.busy {
		return fmt.Errorf("response for tag %d, which is free", a.tag)
	}
	r.busy = false
	r.result <- a.status.err()
	return nil
}
