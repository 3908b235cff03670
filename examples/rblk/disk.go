package rblk

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/ib/attach"
	"verbena/rdmacm"
)

// DiskConfig says which remote store a Disk is.
type DiskConfig struct {
	// Manager is the core's connection manager.
	Manager *rdmacm.Manager
	// Target is where the target listens.
	Target netip.AddrPort
	// Export is the store's name.
	Export string
	// Device is the name of the RDMA device to use; "": any.
	Device string
	// Depth and MaxIO are how many requests may be outstanding, and how many bytes one may have; longer ones are split.
	// 0: 64, and 128 KiB. The target may grant less. The Disk takes Depth x MaxIO of memory.
	Depth, MaxIO int
	// Patience is how long the disk is held when the session is lost, before it is lost itself and everything fails with
	// EIO. A session on which nothing gets through does not count. 0: a minute; negative: for ever.
	Patience time.Duration
	// Hang is how long a request may have no response before the session is taken for lost. 0: 15 s.
	Hang time.Duration
	// Logf is told when the session is lost and found. nil: nobody.
	Logf func(format string, args ...any)
}

// Disk is a store on a target (see Store, which it is). Its methods may sleep, are safe for concurrent use, and order
// nothing among concurrent calls.
type Disk struct {
	cfg  DiskConfig
	name string
	att  *attach.Attachment[*link]

	opened chan struct{} // closed at the first session, or when there will be none
	free   chan uint16   // tags

	// What follows is set by the first session.
	store string // its ID
	cache string // its Cache
	size  int64
	depth int
	maxIO int
	data  *memory // maxIO bytes for each tag; stays through resets

	epoch uint64 // of logins, which are one at a time

	mu       sync.Mutex
	link     *link     // the session; nil: held
	end      error     // why requests fail from now on
	requests []slot    // by tag
	seq      uint64    // of the next request
	since    time.Time // the session was lost
	written  uint64    // writes that have returned
	synced   uint64    // as many of them are safe
	stats    Stats
	refusal  error // what keeps the session from coming, for messages
}

// slot is a request that is outstanding.
type slot struct {
	busy   bool
	req    request
	seq    uint64
	since  time.Time // posted, on this session
	covers uint64    // of a sync: Disk.written when it was asked for
	result chan error
}

// Stats tells what a Disk has been through.
type Stats struct {
	State    attach.State
	Sessions uint64        // that were established
	Replayed uint64        // requests that were posted again
	Failed   uint64        // requests that failed because Patience had passed
	Held     time.Duration // in all, without a session after the first
}

// ErrLost: no session could be had for as long as DiskConfig.Patience. The disk is lost for good. It wraps EIO.
var ErrLost = fmt.Errorf("the target cannot be reached: %w", syscall.EIO)

// ErrUnsynced: the target's host has crashed, and with it went writes that had returned and were not synced. The disk is
// lost for good, since what it has is not what was written. It wraps EIO.
var ErrUnsynced = fmt.Errorf("the target's host was started anew, and writes that were not synced are lost: %w", syscall.EIO)

var errNoDevice = errors.New("there is no RDMA device to use")

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
	d := &Disk{cfg: cfg, name: rand.Text(), opened: make(chan struct{})}
	var err error
	d.att, err = attach.New(core, attach.Config[*link]{
		Name: "rblk disk " + cfg.Export, Device: attach.Identity{Name: cfg.Device},
		Attach: d.attach, Detach: func(_ *ib.Device, l *link) { d.hold(l) }, Lost: d.lost,
		LossTimeout: max(cfg.Patience, 0), RetryDelay: 20 * time.Millisecond, Logf: cfg.Logf,
	})
	if err != nil {
		return nil, err
	}
	select {
	case <-d.opened:
	case <-ctx.Done():
		err = ctx.Err()
	}
	d.mu.Lock()
	switch {
	case err != nil:
		err = fmt.Errorf("%w: %w", err, cmp.Or(d.refusal, errNoDevice))
	case d.stats.Sessions == 0:
		err = cmp.Or(d.end, d.refusal)
	}
	if err == nil {
		d.mu.Unlock()
		return d, nil
	}
	d.mu.Unlock()
	d.Close()
	return nil, fmt.Errorf("open %s: %w", cfg.Export, err)
}

// attach makes a session, posts on it what is held, and returns when that gets through.
func (d *Disk) attach(ctx context.Context, dev *ib.Device, failed func(error)) (*link, error) {
	if err := d.ended(); err != nil {
		<-ctx.Done() // there is nothing to attach any more
		return nil, err
	}
	l, err := d.login(ctx, dev, failed)
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if errors.Is(err, ErrUnsynced) {
			d.finish(err)
		}
		if ctx.Err() == nil || d.refusal == nil { // else what was in the way before says more
			d.refusal = err
		}
		var r *refusal
		if errors.As(err, &r) && !r.retry && d.requests == nil {
			d.ready() // it will never be there
		}
		return nil, err
	}
	oldest := d.resume(l)
	if oldest < 0 {
		return l, nil
	}
	// That a session was agreed upon does not say that its requests get through, which are longer: one must, the oldest,
	// or Patience would begin anew with each session.
	select {
	case <-l.proved:
		return l, nil
	case <-ctx.Done():
	}
	d.hold(l)
	err = context.Cause(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	if errors.Is(err, attach.ErrLost) {
		err = errors.New("sessions were agreed upon, but no request has got through: are long packets lost on the way?")
	}
	d.refusal = err
	return nil, err
}

// ready lets Open return.
//
//verbena:held mu
func (d *Disk) ready() {
	select {
	case <-d.opened:
	default:
		close(d.opened)
	}
}

func (d *Disk) ended() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.end
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
		if w.Store != d.store {
			return fmt.Errorf("the export has changed: it is not what was written to (%q), but another (%q)", d.store, w.Store)
		}
		if w.Size != d.size || w.Depth < d.depth || w.MaxIO < d.maxIO {
			return fmt.Errorf("the export has changed: %d bytes, depth %d, requests of %d; it had %d, %d, %d",
				w.Size, w.Depth, w.MaxIO, d.size, d.depth, d.maxIO)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if w.Cache != d.cache && d.written != d.synced {
			return ErrUnsynced
		}
		d.cache = w.Cache
		return nil
	}
	if w.Size < 0 || w.Depth < 1 || w.Depth > d.cfg.Depth || w.MaxIO < 1 || w.MaxIO > d.cfg.MaxIO {
		return fmt.Errorf("the target offers %d bytes, depth %d, requests of %d", w.Size, w.Depth, w.MaxIO)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.store, d.cache, d.size, d.depth, d.maxIO = w.Store, w.Cache, w.Size, w.Depth, w.MaxIO
	d.requests, d.free = make([]slot, d.depth), make(chan uint16, d.depth)
	for i := range d.requests {
		d.requests[i].result = make(chan error, 1)
		d.free <- uint16(i)
	}
	return nil
}

// resume posts what was held, in its order, and opens the gate. The response to the oldest proves the link; oldest is -1
// if nothing was held.
func (d *Disk) resume(l *link) (oldest int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stats.Sessions > 0 {
		d.stats.Held += time.Since(d.since)
	}
	d.stats.Sessions++
	d.link, d.refusal = l, nil
	d.ready()
	var held []int
	for tag := range d.requests {
		if d.requests[tag].busy {
			held = append(held, tag)
		}
	}
	slices.SortFunc(held, func(a, b int) int { return cmp.Compare(d.requests[a].seq, d.requests[b].seq) })
	l.oldest = -1
	if len(held) > 0 {
		l.oldest = held[0]
	}
	for _, tag := range held {
		d.stats.Replayed++
		d.post(tag)
	}
	return l.oldest
}

// hold takes the session down; what has no response waits for the next.
func (d *Disk) hold(l *link) {
	d.mu.Lock()
	d.link, d.since = nil, time.Now()
	d.mu.Unlock()
	l.close() // after it nobody writes to the memory of requests
}

// lost fails what is held, and what is to come.
func (d *Disk) lost(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.finish(fmt.Errorf("%w (%w)", ErrLost, cmp.Or(d.refusal, cause)))
}

// finish ends the disk, which has no session.
//
//verbena:held mu
func (d *Disk) finish(why error) {
	if d.end == nil {
		d.end = why
	}
	d.ready()
	for tag := range d.requests {
		if r := &d.requests[tag]; r.busy {
			d.stats.Failed++
			r.busy = false
			r.result <- d.end
		}
	}
}

// Close ends the session, and fails what is outstanding with net.ErrClosed. It must not be called from a callback.
func (d *Disk) Close() error {
	d.att.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.finish(net.ErrClosed)
	return nil
}

// Size is in bytes, and does not change.
func (d *Disk) Size() int64 { return d.size }

// Stats tells what has happened so far.
func (d *Disk) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.State = d.att.State()
	if s.Sessions > 0 && d.link == nil {
		s.Held += time.Since(d.since)
	}
	return s
}

// ReadAt is that of io.ReaderAt. It waits while there is no session, up to DiskConfig.Patience.
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

// Sync returns when everything that was written before it was called is safe at the target. What was not made safe and
// is lost with the target's host ends the disk: ErrUnsynced.
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
	if d.end != nil {
		defer d.mu.Unlock()
		d.stats.Failed++
		return d.end
	}
	r := &d.requests[tag]
	r.busy, r.seq, r.covers = true, d.seq, d.written
	r.req = request{op: o, tag: tag, length: uint32(len(p)), offset: uint64(off), addr: d.data.addr + uint64(int(tag)*d.maxIO)}
	d.seq++
	if d.link != nil {
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
		d.link.failed(err)
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
	switch {
	case a.status != statusOK:
	case r.req.op == opWrite:
		d.written++
	case r.req.op == opSync:
		d.synced = max(d.synced, r.covers)
	}
	r.result <- a.status.err()
	if l.oldest == int(a.tag) {
		l.oldest = -1
		close(l.proved)
	}
	return nil
}
