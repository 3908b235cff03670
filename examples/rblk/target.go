package rblk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/rdmacm"
)

// TargetConfig holds the exports and the options of a target.
type TargetConfig struct {
	// Exports maps names to stores. The caller keeps ownership of the stores.
	Exports map[string]Store
	// Device is the name of the RDMA device to use; "" selects all devices.
	Device string
	// Depth is the maximum number of outstanding requests of an initiator (0: 64). MaxIO is the maximum number of
	// bytes of a request (0: 128 KiB). Each session allocates Depth x MaxIO bytes of memory.
	Depth, MaxIO int
	// Workers is the number of requests of one session that use the store concurrently. 0: 8.
	Workers int
	// Sessions is the maximum number of sessions, including logins in progress (0: 64).
	Sessions int
	// LoginTimeout limits the time for an initiator's login (0: 5 s).
	LoginTimeout time.Duration
	// Probe is the interval at which a session probes its initiator (0: 5 s).
	Probe time.Duration
	// Logf is called when sessions begin and end. May be nil.
	Logf func(format string, args ...any)
}

// Target serves stores to initiators. A Target is a client of the midlayer. When a device is unregistered, its
// sessions end, as in any orderly shutdown. Initiators log in again when it, or another device, is available.
type Target struct {
	cfg     TargetConfig
	exports map[string]*exportedStore
	core    *ib.Core
	client  *ib.Client

	mu         sync.Mutex
	closed     bool
	devices    []*ib.Device // registered devices
	initiators map[string]*initiatorState
	listeners  map[*rdmacm.Listener]bool
	sessions   map[*targetSession]bool // includes sessions before their login
	serving    sync.WaitGroup          // counts sessions
}

// initiatorState is the target's state of an initiator. An initiator exists while it has a login or a session.
type initiatorState struct {
	users int // guarded by Target.mu: number of logins and sessions

	// Only goroutines that serve one initiator lock mu. It is held during a login, which sleeps.
	mu      sync.Mutex
	session *targetSession
}

// NewTarget returns a target on the devices of core. The target accepts connections once Serve is called. The caller
// must close it. NewTarget may sleep.
func NewTarget(core *ib.Core, cfg TargetConfig) (*Target, error) {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&cfg.Depth, 64)
	def(&cfg.MaxIO, 128<<10)
	def(&cfg.Workers, 8)
	def(&cfg.Sessions, 64)
	if cfg.LoginTimeout <= 0 {
		cfg.LoginTimeout = 5 * time.Second
	}
	if cfg.Probe <= 0 {
		cfg.Probe = 5 * time.Second
	}
	if cfg.Logf == nil {
		cfg.Logf = func(string, ...any) {}
	}
	t := &Target{
		cfg: cfg, exports: map[string]*exportedStore{}, core: core, initiators: map[string]*initiatorState{},
		listeners: map[*rdmacm.Listener]bool{},
		sessions:  map[*targetSession]bool{},
	}
	for name, store := range cfg.Exports {
		t.exports[name] = &exportedStore{Store: store}
	}
	t.client = &ib.Client{Name: "rblk-target", Add: t.addDevice, Remove: t.removeDevice}
	return t, core.RegisterClient(t.client)
}

func (t *Target) addDevice(d *ib.Device) (any, error) {
	if t.cfg.Device != "" && d.Name() != t.cfg.Device {
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.devices = append(t.devices, d)
	return nil, nil
}

// removeDevice ends the sessions of a device, including those before their login.
func (t *Target) removeDevice(d *ib.Device, _ any) {
	t.mu.Lock()
	t.devices = slices.DeleteFunc(t.devices, func(o *ib.Device) bool { return o == d })
	var gone []*targetSession
	for s := range t.sessions {
		if s.dev == d {
			gone = append(gone, s)
		}
	}
	t.mu.Unlock()
	why := fmt.Errorf("device %s is going", d.Name())
	for _, s := range gone { // end all sessions before waiting for the first one
		s.beginEnd(why)
	}
	for _, s := range gone {
		s.endSession(why)
	}
}

// Serve accepts connections of initiators from l, until l or the target is closed. Serve takes ownership of l. The
// address of l should be unspecified, because a listener with an address of a device ends with the device, also in
// a reset.
func (t *Target) Serve(l *rdmacm.Listener) error {
	defer l.Close()
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.listeners[l] = true
	t.mu.Unlock()
	for {
		r, err := l.Accept(context.Background())
		if err != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			delete(t.listeners, l)
			if t.closed || errors.Is(err, syscall.ECONNABORTED) {
				return nil
			}
			return err
		}
		s, err := t.createSession(r)
		if err != nil {
			t.refuseRequest(r, err)
			continue
		}
		go func() {
			defer t.serving.Done()
			t.serveSession(s, r)
			t.mu.Lock()
			delete(t.sessions, s)
			t.mu.Unlock()
		}()
	}
}

// refuseRequest rejects a request with a reason.
func (t *Target) refuseRequest(r *rdmacm.Request, why error) {
	t.cfg.Logf("rblk target: connection from %v: %v", r.RemoteAddr(), why)
	r.Reject((&sessionRefusal{why.Error(), errors.Is(why, errTemporaryRefusal)}).bytes())
}

// createSession creates a session for a connection request. The session is not open yet.
func (t *Target) createSession(r *rdmacm.Request) (*targetSession, error) {
	o, err := parseOffer(r.Data)
	if err != nil {
		return nil, err
	}
	at := r.Device()
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.devices, func(d *ib.Device) bool { return d.Same(at) })
	switch {
	case t.closed:
		return nil, fmt.Errorf("%w: the target ends", errTemporaryRefusal)
	case i < 0:
		return nil, fmt.Errorf("%w: the device is not in use, or is being removed", errTemporaryRefusal)
	case len(t.sessions) >= t.cfg.Sessions:
		return nil, fmt.Errorf("%w: %d sessions are open", errTemporaryRefusal, t.cfg.Sessions)
	}
	s := newSession(t.devices[i], min(t.cfg.Depth, o.depth), min(t.cfg.MaxIO, o.maxIO))
	t.sessions[s] = true
	t.serving.Add(1)
	return s, nil
}

// Close ends all sessions, and stops serving. Once Close has returned, the target does not use the stores. Close
// sleeps, and must not be called from a callback.
func (t *Target) Close() error {
	t.mu.Lock()
	t.closed = true
	listeners := slices.Collect(maps.Keys(t.listeners))
	for s := range t.sessions {
		s.beginEnd(errors.New("the target ends"))
	}
	t.mu.Unlock()
	for _, l := range listeners {
		l.Close()
	}
	t.serving.Wait()
	t.core.UnregisterClient(t.client)
	return nil
}

// Sessions returns the number of sessions after login.
func (t *Target) Sessions() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for s := range t.sessions {
		if s.store.Load() != nil {
			n++
		}
	}
	return n
}

// serveSession handles one connection until it ends.
func (t *Target) serveSession(s *targetSession, r *rdmacm.Request) {
	if err := s.open(r, t.cfg.Workers); err != nil {
		// the device is failing: it is being removed or reset
		t.refuseRequest(r, fmt.Errorf("%w: %w", errTemporaryRefusal, err))
		s.endSession(err)
		return
	}
	l, err := s.login(t.cfg.LoginTimeout)
	if err != nil {
		t.cfg.Logf("rblk target: login from %v: %v", r.RemoteAddr(), err)
		s.endSession(err)
		return
	}
	in := t.acquireInitiator(l.Initiator)
	defer t.releaseInitiator(in)
	if err := t.acceptLogin(in, s, l); err != nil {
		t.cfg.Logf("rblk target: login of initiator %.32q: %v", l.Initiator, err)
		if s.ep.sendHandshake(welcomeMessage{Refused: err.Error(), Retry: errors.Is(err, errTemporaryRefusal)}) == nil {
			select { // until the initiator has received the refusal
			case <-s.conn.Done():
			case <-s.lost:
			case <-time.After(t.cfg.LoginTimeout):
			}
		}
		s.endSession(err)
		return
	}
	s.watchConnection(t.cfg.Probe)
	s.endSession(s.endReason())
	in.mu.Lock()
	if in.session == s {
		in.session = nil
	}
	in.mu.Unlock()
	t.cfg.Logf("rblk target: session of initiator %.32q, epoch %d: %v", l.Initiator, l.Epoch, s.endReason())
}

// errTemporaryRefusal is the error of a temporary refusal.
var errTemporaryRefusal = errors.New("not now")

func (t *Target) acquireInitiator(name string) *initiatorState {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.initiators[name]
	if in == nil {
		in = &initiatorState{}
		t.initiators[name] = in
	}
	in.users++
	return in
}

func (t *Target) releaseInitiator(in *initiatorState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if in.users--; in.users > 0 {
		return
	}
	for name, o := range t.initiators {
		if o == in {
			delete(t.initiators, name)
		}
	}
}

// acceptLogin ends the initiator's old session, and replies to the login with a welcome. acceptLogin does not wait for
// logins of other initiators. Such a login ends the old session of its initiator before it waits, so it does not use
// the store meanwhile.
func (t *Target) acceptLogin(in *initiatorState, s *targetSession, l *loginMessage) error {
	store := t.exports[l.Export]
	switch {
	case l.Initiator == "":
		return errors.New("the login has no initiator name")
	case store == nil:
		return fmt.Errorf("the target has no export %.32q", l.Export)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if old := in.session; old != nil {
		if l.Epoch <= old.epoch {
			return fmt.Errorf("epoch %d has passed", l.Epoch)
		}
		old.endSession(errors.New("the initiator has logged in again"))
		in.session = nil
	}
	t.awaitStoreOperations(store)
	s.epoch = l.Epoch
	s.store.Store(store)
	in.session = s
	hello := welcomeMessage{Store: storeIDOf(store.Store), Cache: cacheIDOf(store.Store), Size: store.Size(),
		Depth: s.depth,
		MaxIO: s.maxIO}
	if err := s.ep.sendHandshake(hello); err != nil {
		s.beginEnd(err)
	}
	return nil
}

// awaitStoreOperations waits until the store has finished the operations of ending sessions. Without this wait, a write
// of a dead initiator could overwrite data of the next one.
func (t *Target) awaitStoreOperations(store *exportedStore) {
	t.mu.Lock()
	var ending []*targetSession
	for s := range t.sessions {
		if s.store.Load() == store && s.endReason() != nil {
			ending = append(ending, s)
		}
	}
	t.mu.Unlock()
	for _, s := range ending {
		<-s.over
	}
}
