package supervisor

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
)

// TestRefusedOperationLeavesNoCharge tests that an operation is refused, without a lasting charge, if one unit is
// missing in the user's limit. With exactly its charge left, the operation succeeds.
func TestRefusedOperationLeavesNoCharge(t *testing.T) {
	const limit = 1000
	var limits quota.Limits
	for _, k := range []quota.ResourceKind{quota.Descriptors, quota.Contexts} {
		limits[k].PerUser = limit
	}
	ledger := quota.New(limits)
	c := newTrappedCall(t, nil, withCM(t), func(cfg *SupervisorConfig) {
		cfg.Quota, cfg.Doorbells = ledger,
			DoorbellsNative
	})
	p, th := c.mustProcess(), c.lookUpWithoutTrapCheck()
	file, _ := c.mustOpen(verbsNode, p.user, unix.O_RDWR)
	open := func(n *deviceNode) func() (func(), error) {
		make := newOpenFile
		if n.cm {
			make = newCMFile
		}
		return func() (func(), error) {
			f, description, err := make(c.s, n, &opener{process: p, session: c.s, id: th.id, user: p.user}, 0)
			return func() {
				description.Close()
				f.close()
				<-f.ended
			}, err
		}
	}
	for _, tt := range []struct {
		name string
		kind quota.ResourceKind
		n    uint64
		call func() (undo func(), err error)
	}{
		{"a process", quota.Descriptors, processDescriptors, func() (func(), error) {
			p, err := c.w.caller.newProcessLocked(th)
			return func() { p.closeLocked() }, err
		}},
		{"an address space", quota.Descriptors, spaceDescriptors, func() (func(), error) {
			s, err := c.w.caller.openAddressSpaceLocked(th, p)
			return func() { p.closeAddressSpace(s) }, err
		}},
		{"a device file, with its queue file", quota.Descriptors, descriptorsPerOpenFile + 1, open(verbsNode)},
		{"native doorbells", quota.Descriptors, descriptorsPerNativeDoorbell, func() (func(), error) {
			description, err := file.newNativeDoorbells()
			return func() {
				description.Close()
				file.closeNativeDoorbells()
				file.native = nil
			}, err
		}},
		{"a file of the connection manager", quota.Contexts, 1, open(cmNode)},
		{"its pipe", quota.Descriptors, descriptorsPerPipe, open(cmNode)},
		{"a netlink socket", quota.Descriptors, descriptorsPerNetlinkSocket, func() (func(), error) {
			n, end, err := c.sup.newNetlinkSocket(p.user, netlinkOpener{}, false, 1)
			return func() {
				unix.Close(end)
				n.serve()
			}, err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var before [quota.NumKinds]uint64
			unchanged := func(when string) {
				for k := range quota.NumKinds {
					if n := p.user.Held(k); n != before[k] {
						t.Errorf("%s: charge: got %d %v, want %d", when, n, k, before[k])
					}
				}
				if n := c.sup.natives.all; n != 0 {
					t.Errorf("%s: files with native doorbells: got %d, want none", when, n)
				}
			}
			held := p.user.Held(tt.kind)
			for left := range tt.n + 1 {
				others := limit - held - left
				if err := p.user.Charge(tt.kind, others); err != nil {
					t.Fatal(err)
				}
				for k := range quota.NumKinds {
					before[k] = p.user.Held(k)
				}
				undo, err := tt.call()
				var refusal *quota.LimitError
				switch {
				case left == tt.n && err != nil:
					t.Errorf("%d units left: got %v, want success", left, err)
				case left < tt.n && err == nil:
					t.Errorf("%d units left: got success, want a refusal", left)
				case left < tt.n && (!errors.As(err, &refusal) || refusal.Kind != tt.kind):
					t.Errorf("%d units left: got %v, want a refusal of %v", left, err, tt.kind)
				}
				if err == nil && left == tt.n {
					undo()
				}
				unchanged(map[bool]string{true: "after its end", false: "after the refusal"}[left == tt.n])
				p.user.Release(tt.kind, others)
			}
		})
	}
}

// TestWorkersAreLimitedPerUser tests that a worker for a user's program is started only if the user's limit allows
// another worker.
func TestWorkersAreLimitedPerUser(t *testing.T) {
	for _, left := range []uint64{0, 1} {
		var limits quota.Limits
		limits[quota.Workers].PerUser = 5
		user := quota.New(limits).User(1)
		if err := user.Charge(quota.Workers, 5-left); err != nil {
			t.Fatal(err)
		}
		updated := uint64(0)
		p := &cmPipe{user: user, want: true, setter: func(int, bool) bool {
			updated++
			return true
		}}
		if p.updatePipe(); updated != left || user.Held(quota.Workers) != 5-left {
			t.Errorf("%d workers left: got %d writes to the pipe, want %d, and %d charged workers, want %d",
				left, updated, left, user.Held(quota.Workers), 5-left)
		}
		started := uint64(0)
		var receiveTokens workerTokens
		receiveTokens.init(func() { started++ }, user)
		if receiveTokens.passToken(); started != 1+left || user.Held(quota.Workers) != 5 {
			t.Errorf("%d workers left: got %d started workers, want %d", left, started, 1+left)
		}
	}
	started := 0
	var receiveTokens workerTokens
	receiveTokens.init(func() { started++ }, nil)
	atomic.StoreUint32(&receiveTokens.free, 0)
	for range 2 * maxWorkers {
		receiveTokens.passToken()
		receiveTokens.waiting.Store(int32(atomic.LoadUint32(&receiveTokens.free)))
	}
	if started != maxWorkers {
		t.Errorf("after %d passes: got %d workers, want %d", 2*maxWorkers, started, maxWorkers)
	}
}

// TestClosedSupervisorAcceptsNothing tests that a closed supervisor accepts no new files, sockets or sessions, and
// leaves no charge.
func TestClosedSupervisorAcceptsNothing(t *testing.T) {
	c := newTrappedCall(t, nil, withCM(t))
	p, th := c.mustProcess(), c.lookUpWithoutTrapCheck()
	before := p.user.Held(quota.Descriptors)
	filtered, listener := filteredThread(t)
	defer filtered.end()
	defer listener.Close()
	c.sup.mu.Lock()
	c.sup.closed = true
	c.sup.mu.Unlock()
	defer func() { // Close waits for this goroutine
		c.sup.mu.Lock()
		c.sup.closed = false
		c.sup.mu.Unlock()
	}()
	o := &opener{process: p, session: c.s, id: th.id, user: p.user}
	for _, tt := range []struct {
		name string
		call func() error
	}{
		{"a device file", func() error {
			_, _, err := newOpenFile(c.s, verbsNode, o, unix.O_RDWR)
			return err
		}},
		{"a file of the connection manager", func() error {
			_, _, err := newCMFile(c.s, cmNode, o, 0)
			return err
		}},
		{"a netlink socket", func() error {
			_, _, err := c.sup.newNetlinkSocket(p.user, netlinkOpener{}, false, 1)
			return err
		}},
		{"a session", func() error {
			_, err := c.sup.Attach(listener, SessionInfo{LauncherPID: os.Getpid()})
			return err
		}},
	} {
		if err := tt.call(); !errors.Is(err, unix.ENODEV) {
			t.Errorf("%s: got %v, want ENODEV", tt.name, err)
		}
		if n := p.user.Held(quota.Descriptors); n != before {
			t.Errorf("%s: charged descriptors: got %d, want %d", tt.name, n, before)
		}
		if n := p.user.Held(quota.Contexts) + p.user.Held(quota.Sessions); n != 0 {
			t.Errorf("%s: charged contexts and sessions: got %d, want 0", tt.name, n)
		}
	}
}
