package verbs

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"sync"
	"syscall"

	"verbena/internal/sched"
	"verbena/uapi"
	"verbena/verbs/internal/transport"
	"verbena/verbs/provider"
)

// WC is a completion. (struct ibv_wc)
type WC = provider.WC

// The next constants are the flags of completions, which mark the valid fields.
const (
	WithGRH        = uapi.WCFlagGRH // a global route header is in the first 40 bytes of the datagram's memory
	WithImm        = uapi.WCFlagWithImm
	WithInvalidate = uapi.WCFlagWithInvalidate
)

// The next constants are the opcodes of completions.
const (
	WCSend             = uapi.WCSend
	WCWrite            = uapi.WCRDMAWrite
	WCRead             = uapi.WCRDMARead
	WCCompareSwap      = uapi.WCCompSwap
	WCFetchAdd         = uapi.WCFetchAdd
	WCBindWindow       = uapi.WCBindMW
	WCLocalInvalidate  = uapi.WCLocalInv
	WCFlush            = uapi.WCFlush
	WCAtomicWrite      = uapi.WCAtomicWrite
	WCReceive          = uapi.WCRecv
	WCReceiveWriteWith = uapi.WCRecvRDMAWithImm
)

// Channel is a completion channel. Armed completion queues report completions on their channel. (struct
// ibv_comp_channel)
type Channel struct {
	d      *Device
	events *transport.Events
	id     uint64
	life   useCount
}

// CreateChannel creates a completion channel. CreateChannel may sleep. (ibv_create_comp_channel)
func (d *Device) CreateChannel() (*Channel, error) {
	e, err := d.cmd.CreateChannel()
	if err != nil {
		return nil, wrapOpError("create a completion channel", d.name, err)
	}
	c := &Channel{d: d, events: e, id: d.nextObjectID()}
	if err := d.addObject(c.id, c); err != nil {
		e.Close()
		return nil, wrapOpError("create a completion channel", d.name, err)
	}
	return c, nil
}

func (c *Channel) abandon() { _ = c.events.Close() }

// Wait waits until an armed completion queue reports a completion. Wait returns the queue, which is then no longer
// armed. Only one goroutine at a time waits for events. Other goroutines wait until the first one has returned. The
// error is the cause of ctx, ErrClosed, or the error of a removed device: io.EOF, or an error that wraps EIO.
// (ibv_get_cq_event)
func (c *Channel) Wait(ctx context.Context) (*CQ, error) {
	for {
		var b [8]byte
		n, err := c.events.Read(ctx, b[:])
		if err != nil {
			return nil, err
		}
		r, ok := uapi.Decode[uapi.CompEventDesc](b[:n])
		if !ok {
			continue
		}
		if cq, ok := c.d.findObject(r.CQHandle).(*CQ); ok {
			return cq, nil
		}
	}
}

// Close closes the channel. Waiting goroutines return ErrClosed. Close returns EBUSY while completion queues use the
// channel. Close may sleep. (ibv_destroy_comp_channel)
func (c *Channel) Close() error {
	return wrapOpError("close a completion channel", c.d.name, c.life.closeOnce(c.d, func() error {
		c.d.removeObject(c.id)
		return c.events.Close()
	}))
}

// CQ is a completion queue. (struct ibv_cq)
type CQ struct {
	d       *Device
	channel *Channel // may be nil
	own     bool     // the CQ has created its own channel
	handle  uint32
	id      uint64
	life    useCount

	//verbena:program those of one program who use the queue
	mu      sync.Mutex
	q       provider.CQ // nil: closed
	entries int
	empty   int // number of successive empty polls

	waits chan struct{} // contains an element while no goroutine is in Wait
}

// CreateCQ creates a completion queue with at least the given number of entries. When armed, the queue reports
// completions on channel. If channel is nil, CreateCQ creates a channel for [CQ.Wait]. CreateCQ may sleep.
// (ibv_create_cq)
func (d *Device) CreateCQ(entries int, channel *Channel) (*CQ, error) {
	fail := func(err error) (*CQ, error) {
		if d.isClosed() {
			err = ErrClosed // Close has also closed the descriptor of the channel
		}
		return nil, wrapOpError(fmt.Sprintf("create a CQ of %d entries", entries), d.name, err)
	}
	if entries < 1 || int64(entries) > 1<<31-1 {
		return fail(errInvalid)
	}
	if channel != nil && channel.d != d {
		return fail(fmt.Errorf("the channel must belong to the same device: %w", errInvalid))
	}
	c := &CQ{d: d, channel: channel, waits: make(chan struct{}, 1)}
	c.waits <- struct{}{}
	if channel == nil {
		var err error
		if c.channel, err = d.CreateChannel(); err != nil {
			return nil, err
		}
		c.own = true
	}
	release := func() {
		c.channel.life.dropUse()
		if c.own {
			_ = c.channel.Close()
		}
	}
	if err := c.channel.life.addUse(); err != nil {
		return fail(err)
	}
	c.id = d.nextObjectID()
	q, r, err := d.p.CreateCQ(d.cmd, uapi.CreateCQ{UserHandle: c.id, CQE: uint32(entries),
		CompChannel: int32(c.channel.events.FD())})
	if err != nil {
		release()
		return fail(err)
	}
	c.q, c.handle, c.entries = q, r.CQHandle, int(r.CQE)
	if err := d.addObject(c.id, c); err != nil {
		c.abandon()
		release()
		return fail(err)
	}
	return c, nil
}

// Entries returns the capacity of the queue.
func (c *CQ) Entries() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries
}

// Channel returns the channel on which the armed queue reports completions.
func (c *CQ) Channel() *Channel { return c.channel }

// Poll moves the oldest completions to wc, and returns their number, possibly 0. The only possible error is ErrClosed.
// Poll does not sleep. After a number of empty polls, Poll yields the processor to other threads. Otherwise polling
// loops on all processors would delay the service or the peer's program. Do not call runtime.Gosched in such a loop,
// because it would slow the loop down. (ibv_poll_cq)
func (c *CQ) Poll(wc []WC) (int, error) {
	n, vain, err := c.pollAndCountEmpty(wc)
	if vain > yieldAfterPolls {
		sched.Relax(vain)
	}
	return n, err
}

// yieldAfterPolls returns the number of empty polls after which every further empty poll yields.
var yieldAfterPolls = func() int {
	if runtime.NumCPU() <= 2 {
		return 16
	}
	return 1024 // about 20 us
}()

// pollAndCountEmpty is Poll without the yield. pollAndCountEmpty also returns the number of successive empty polls.
func (c *CQ) pollAndCountEmpty(wc []WC) (n, vain int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.q == nil {
		return 0, 0, ErrClosed
	}
	if n = c.q.Poll(wc); n > 0 {
		c.empty = 0
	} else {
		c.empty++
	}
	return n, c.empty, nil
}

// Arm requests a report on the channel for the next completion, or for the next solicited completion. Earlier
// completions are not reported. The caller must therefore poll once more after Arm. Arm returns ErrOverflow, like
// [CQ.Wait], if no more completions can arrive. Arm may sleep. (ibv_req_notify_cq)
func (c *CQ) Arm(solicitedOnly bool) error {
	if c.isClosed() {
		return ErrClosed
	}
	err := c.life.callWhileOpen(func() error { return c.d.cmd.ReqNotifyCQ(c.handle, solicitedOnly) })
	if isErrno(err, syscall.EOVERFLOW) {
		err = ErrOverflow
	}
	return wrapOpError("arm a CQ", c.d.name, err)
}

func (c *CQ) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.q == nil
}

// spinPolls is the number of polls in Wait before it arms the queue. The polls take a few microseconds, about as long
// as arming. Between polls Wait yields to other goroutines and processes, because one of them may be the sender. If
// there are more polling threads than processors, yielding reduces half a round trip from 60 us to 3 us.
const spinPolls = 32

// Wait waits for completions, moves the oldest ones to wc, and returns their number. Wait polls for a few microseconds,
// and then sleeps. The queue must have its own channel (see [Device.CreateCQ]). The error is one of these: the cause of
// ctx, ErrClosed, the error of a removed device, an error that wraps ErrOverflow, or EINVAL if wc is empty. (The
// kernel's rxe arms a queue that has overflowed. On the kernel's rxe, watch for [EventCQError].) Wait may sleep.
func (c *CQ) Wait(ctx context.Context, wc []WC) (int, error) {
	if !c.own {
		return 0, wrapOpError("wait for a CQ that was created with a channel: use Channel.Wait", c.d.name, errInvalid)
	}
	if len(wc) == 0 {
		return 0, wrapOpError("wait for completions with an empty slice", c.d.name, errInvalid)
	}
	for i := range spinPolls {
		if n, _, err := c.pollAndCountEmpty(wc); n > 0 || err != nil {
			return n, err
		}
		sched.Relax(i)
	}
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-c.waits:
		defer func() { c.waits <- struct{}{} }()
	}
	for {
		if n, _, err := c.pollAndCountEmpty(wc); n > 0 || err != nil {
			return n, err
		}
		if err := c.Arm(false); err != nil {
			return c.remainingCompletions(wc, err)
		}
		if n, _, err := c.pollAndCountEmpty(wc); n > 0 || err != nil {
			return n, err
		}
		if _, err := c.channel.Wait(ctx); err != nil {
			return c.remainingCompletions(wc, err)
		}
	}
}

// remainingCompletions returns the remaining completions of a removed device.
func (c *CQ) remainingCompletions(wc []WC, err error) (int, error) {
	if n, _, _ := c.pollAndCountEmpty(wc); n > 0 {
		return n, nil
	}
	return 0, err
}

// Completions yields the completions as they arrive, each with its [CompletionError]. The error is nil or a *WCError.
// More completions may follow a *WCError. When no more completions can arrive, because ctx, the queue or the device has
// ended, the last pair has the error of [CQ.Wait] and no completion. The queue must have its own channel, as for
// CQ.Wait. If the loop ends early, the remaining completions stay in the queue.
func (c *CQ) Completions(ctx context.Context) iter.Seq2[WC, error] {
	return func(yield func(WC, error) bool) {
		var wc [1]WC
		for {
			err := context.Cause(ctx) // ends the loop even if completions continue to arrive
			if err == nil {
				_, err = c.Wait(ctx, wc[:])
			}
			if err != nil {
				yield(WC{}, err)
				return
			}
			if !yield(wc[0], CompletionError(&wc[0])) {
				return
			}
		}
	}
}

// Resize changes the capacity to at least the given number of entries. Completions remain in the queue. Resize returns
// EINVAL if the queue holds more completions than entries. Resize may sleep. (ibv_resize_cq)
func (c *CQ) Resize(entries int) error {
	what := fmt.Sprintf("resize a CQ to %d entries", entries)
	if entries < 1 || int64(entries) > 1<<31-1 {
		return wrapOpError(what, c.d.name, errInvalid)
	}
	return wrapOpError(what, c.d.name, c.life.callWhileOpen(func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.q == nil {
			return ErrClosed
		}
		n, err := c.q.Resize(entries)
		if err == nil {
			c.entries = n
		}
		return err
	}))
}

// Close destroys the queue. Waiting goroutines return ErrClosed. Close returns EBUSY while queue pairs use the queue.
// Close may sleep. (ibv_destroy_cq)
func (c *CQ) Close() error {
	return wrapOpError("close a CQ", c.d.name, c.life.closeOnce(c.d, func() error {
		if err := ignoreRemovedError(c.d.cmd.DestroyCQ(c.handle)); err != nil {
			return err
		}
		c.d.removeObject(c.id)
		c.abandon()
		c.channel.life.dropUse()
		if c.own {
			return c.channel.Close()
		}
		return nil
	}))
}

func (c *CQ) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.q != nil {
		_ = c.q.Close()
		c.q = nil
	}
}
