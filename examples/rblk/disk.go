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

// DiskConfig identifies the remote store of a Disk and holds the disk's options.
type DiskConfig struct {
	// Manager is the connection manager of the ib.Core.
	Manager *rdmacm.Manager
	// Target is the address on which the target listens.
	Target netip.AddrPort
	// Export is the name of the store.
	Export string
	// Device is the name of the RDMA device to use; "" selects any device.
	Device string
	// Depth is the maximum number of outstanding requests (0: 64). MaxIO is the maximum number of bytes of a
	// request (0: 128 KiB); longer requests are split. The target may set lower limits. The Disk allocates Depth x
	// MaxIO bytes of memory.
	Depth, MaxIO int
	// Patience is the time for which requests wait after the session is lost. After this time the disk is lost, and
	// every request fails with EIO. A session in which no request completes does not count. 0: one minute;
	// negative: no limit.
	Patience time.Duration
	// Hang is the time without a response after which the session counts as lost (0: 15 s).
	Hang time.Duration
	// Logf is called when a session is lost or established again. May be nil.
	Logf func(format string, args ...any)
}

// Disk is a store on a target; it implements Store. The methods of a Disk may sleep and are safe for concurrent
// use. Concurrent calls are not ordered.
type Disk struct {
	cfg  DiskConfig
	name string
	att  *attach.Attachment[*initiatorSession]

	opened chan struct{} // closed at the first session, or when no session will follow
	free   chan uint16   // free tags

	// The first session sets the following fields.
	store string // ID of the store
	cache string // Cache of the store
	size  int64
	depth int
	maxIO int
	data  *endpointMemory // maxIO bytes for each tag; kept across resets

	epoch uint64 // number of the latest login; logins are made one at a time

	mu       sync.Mutex
	link     *initiatorSession    // the current session; nil: requests wait
	end      error                // error of all later requests
	requests []outstandingRequest // outstanding requests by tag
	seq      uint64               // sequence number of the next request
	since    time.Time            // time at which the session was lost
	written  uint64               // number of completed writes
	synced   uint64               // number of completed writes that are durable
	stats    Stats
	refusal  error // reason for the missing session, for messages
}

// outstandingRequest is an outstanding request.
type outstandingRequest struct {
	busy   bool
	req    request
	seq    uint64
	since  time.Time // time of the post in this session
	covers uint64    // for a sync: value of Disk.written at the start of the sync
	result chan error
}

// Stats holds the counters of a Disk.
type Stats struct {
	State    attach.State
	Sessions uint64        // sessions established
	Replayed uint64        // requests posted again
	Failed   uint64        // requests that failed after Patience
	Held     time.Duration // total time without a session, after the first one
}

// ErrLost reports that no session was established for DiskConfig.Patience. The disk is lost permanently. It wraps
// EIO.
var ErrLost = fmt.Errorf("the target cannot be reached: %w", syscall.EIO)

// ErrUnsynced reports that the target's host has crashed and lost writes that had completed but were not synced.
// The disk is lost permanently, because its contents differ from the written data. It wraps EIO.
var ErrUnsynced = fmt.Errorf("the target's host was restarted, and writes that were not synced are lost: %w",
	syscall.EIO)

var errNoDevice = errors.New("the host has no RDMA device")

// Open returns the disk once its first session is established. If ctx ends before, Open returns the reason for the
// missing session. The caller must close the disk. Open may sleep.
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
	d.att, err = attach.New(core, attach.Config[*initiatorSession]{
		Name: "rblk disk " + cfg.Export, Device: attach.Identity{Name: cfg.Device},
		Attach: d.attach, Detach: func(_ *ib.Device, l *initiatorSession) { d.holdRequests(l) }, Lost: d.failAllRequests,
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

// attach creates a session, posts the held requests, and returns when the oldest of them has completed.
func (d *Disk) attach(ctx context.Context, dev *ib.Device, failed func(error)) (*initiatorSession, error) {
	if err := d.endReason(); err != nil {
		<-ctx.Done() // the disk has ended
		return nil, err
	}
	l, err := d.login(ctx, dev, failed)
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if errors.Is(err, ErrUnsynced) {
			d.endDisk(err)
		}
		if ctx.Err() == nil || d.refusal == nil { // otherwise the earlier reason is more useful
			d.refusal = err
		}
		var r *sessionRefusal
		if errors.As(err, &r) && !r.retry && d.requests == nil {
			d.markOpened() // no session will follow
		}
		return nil, err
	}
	oldest := d.resumeRequests(l)
	if oldest < 0 {
		return l, nil
	}
	// An established session does not prove that requests complete, because they are longer than the login. The
	// oldest held request must complete; otherwise DiskConfig.Patience would restart with each session.
	select {
	case <-l.proved:
		return l, nil
	case <-ctx.Done():
	}
	d.holdRequests(l)
	err = context.Cause(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	if errors.Is(err, attach.ErrLost) {
		err = errors.New("sessions were established, but no request completed: are long packets lost on the way?")
	}
	d.refusal = err
	return nil, err
}

// markOpened makes Open return.
//
//verbena:held mu
func (d *Disk) markOpened() {
	select {
	case <-d.opened:
	default:
		close(d.opened)
	}
}

func (d *Disk) endReason() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.end
}

// oldestPostTime returns the time of the oldest post without a response, or the zero time if no request is outstanding.
func (d *Disk) oldestPostTime() time.Time {
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

// applyWelcome creates the permanent state at the first session.
func (d *Disk) applyWelcome(w *welcomeMessage) error {
	if d.requests != nil {
		if w.Store != d.store {
			return fmt.Errorf("the export has changed: want store %q, got %q", d.store, w.Store)
		}
		if w.Size != d.size || w.Depth < d.depth || w.MaxIO < d.maxIO {
			return fmt.Errorf("the export has changed: got %d bytes, depth %d, requests of %d; want %d, %d, %d",
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
		return fmt.Errorf("the target offers invalid limits: %d bytes, depth %d, requests of %d", w.Size, w.Depth, w.MaxIO)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.store, d.cache, d.size, d.depth, d.maxIO = w.Store, w.Cache, w.Size, w.Depth, w.MaxIO
	d.requests, d.free = make([]outstandingRequest, d.depth), make(chan uint16, d.depth)
	for i := range d.requests {
		d.requests[i].result = make(chan error, 1)
		d.free <- uint16(i)
	}
	return nil
}

// resumeRequests posts the held requests in order, and then allows new requests. The response to the oldest request
// proves that the link works. The tag oldest is -1 if no requests were held.
func (d *Disk) resumeRequests(l *initiatorSession) (oldest int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stats.Sessions > 0 {
		d.stats.Held += time.Since(d.since)
	}
	d.stats.Sessions++
	d.link, d.refusal = l, nil
	d.markOpened()
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
		d.postRequest(tag)
	}
	return l.oldest
}

// holdRequests closes the session. Requests without a response wait for the next session.
func (d *Disk) holdRequests(l *initiatorSession) {
	d.mu.Lock()
	d.link, d.since = nil, time.Now()
	d.mu.Unlock()
	l.close() // after the close the peer cannot write to the memory of requests
}

// failAllRequests fails all held and all later requests.
func (d *Disk) failAllRequests(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endDisk(fmt.Errorf("%w (%w)", ErrLost, cmp.Or(d.refusal, cause)))
}

// endDisk ends the disk, which must have no session.
//
//verbena:held mu
func (d *Disk) endDisk(why error) {
	if d.end == nil {
		d.end = why
	}
	d.markOpened()
	for tag := range d.requests {
		if r := &d.requests[tag]; r.busy {
			d.stats.Failed++
			r.busy = false
			//verbena:allow nosleep the channel has room for the one result of a busy request
			r.result <- d.end
		}
	}
}

// Close ends the session, and fails outstanding requests with net.ErrClosed. Close must not be called from a
// callback.
func (d *Disk) Close() error {
	d.att.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endDisk(net.ErrClosed)
	return nil
}

// Size returns the size in bytes, which does not change.
func (d *Disk) Size() int64 { return d.size }

// Stats returns the current counters.
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

// ReadAt implements io.ReaderAt. ReadAt waits while the disk has no session, up to DiskConfig.Patience.
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > d.size {
		return 0, fmt.Errorf("read at %d of %d: %w", off, d.size, syscall.EINVAL)
	}
	var end error
	if rest := d.size - off; int64(len(p)) > rest {
		p, end = p[:rest], io.EOF
	}
	n, err := d.splitOperation(opRead, p, off)
	if err == nil {
		err = end
	}
	return n, err
}

// WriteAt implements io.WriterAt. The disk does not grow. Other users of the store read the written data at once.
// After Sync the data survives a crash of the target. After an error any part of the data may have been written.
func (d *Disk) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off > d.size || int64(len(p)) > d.size-off {
		return 0, fmt.Errorf("write %d bytes at %d: the disk has %d: %w", len(p), off, d.size, syscall.ENOSPC)
	}
	return d.splitOperation(opWrite, p, off)
}

// Sync returns when all data written before the call is durable at the target. If data that is not durable is lost
// with the target's host, the disk ends with ErrUnsynced.
func (d *Disk) Sync() error { return d.doRequest(opSync, nil, 0) }

// splitOperation executes a long operation as several requests, concurrently while tags are free.
func (d *Disk) splitOperation(o requestOpcode, p []byte, off int64) (int, error) {
	if len(p) <= d.maxIO {
		if len(p) == 0 {
			return 0, nil
		}
		if err := d.doRequest(o, p, off); err != nil {
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
			errs[i] = d.doRequest(o, p[from:min(from+d.maxIO, len(p))], off+int64(from))
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

// doRequest executes one request and waits for its response.
func (d *Disk) doRequest(o requestOpcode, p []byte, off int64) error {
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
	r.req = request{op: o, tag: tag, length: uint32(len(p)), offset: uint64(off), addr: d.data.addr +
		uint64(int(tag)*d.maxIO)}
	d.seq++
	if d.link != nil {
		d.postRequest(int(tag))
	}
	d.mu.Unlock()
	err := <-r.result
	if err == nil && o == opRead {
		copy(p, stage)
	}
	return err
}

// postRequest sends a request in the current session. If the post fails, the session is lost, and the request is held.
func (d *Disk) postRequest(tag int) {
	r := &d.requests[tag]
	r.since = time.Now()
	if err := d.link.postRequest(r.req); err != nil {
		d.link.failed(err)
	}
}

// handleResponse completes a request with its response. handleResponse is called in the completion handler.
func (d *Disk) handleResponse(l *initiatorSession, a response) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := &d.requests[a.tag]
	if d.link != l {
		return nil // the session is being closed, and the request will be posted again
	}
	if !r.busy {
		return fmt.Errorf("response for tag %d, which has no request", a.tag)
	}
	r.busy = false
	switch {
	case a.status != statusOK:
	case r.req.op == opWrite:
		d.written++
	case r.req.op == opSync:
		d.synced = max(d.synced, r.covers)
	}
	//verbena:allow nosleep the channel has room for the one result of a busy request
	r.result <- a.status.err()
	if l.oldest == int(a.tag) {
		l.oldest = -1
		close(l.proved)
	}
	return nil
}
