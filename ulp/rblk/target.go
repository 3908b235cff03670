package rblk

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"verbena/ib"
)

// TargetConfig is what a target exports, and where.
type TargetConfig struct {
	// Exports by name. The stores stay the caller's.
	Exports map[string]Store
	// Device is the name of the RDMA device to use; "": any.
	Device string
	// Depth and MaxIO bound what an initiator may ask for: requests outstanding, and bytes of one. 0: 64, and 128 KiB.
	// Each session takes Depth x MaxIO of memory.
	Depth, MaxIO int
	// Workers is how many requests of one session use the store at once. 0: 8.
	Workers int
	// Sessions is how many may exist, logins under way among them. 0: 64.
	Sessions int
	// LoginTimeout bounds how long an initiator may take to log in. 0: 5 s.
	LoginTimeout time.Duration
	// Logf is told of sessions that come and go. nil: nobody.
	Logf func(format string, args ...any)
}

// Target serves stores to initiators. It is a client of the midlayer: sessions on a device that is unregistered end,
// as in any orderly shutdown, and initiators log in again when it, or another one, is there.
type Target struct {
	cfg     TargetConfig
	exports map[string]*export
	core    *ib.Core
	client  *ib.Client

	mu         sync.Mutex
	closed     bool
	devices    []*ib.Device // that may be used
	initiators map[string]*initiator
	listeners  map[net.Listener]bool
	conns      map[net.Conn]*session // nil: logging in
	logins     sync.WaitGroup        // of conns
}

// initiator is what a target knows of one. It is kept while a login or a session of it exists.
type initiator struct {
	users int // under Target.mu: logins and sessions

	//verbena:program those who serve one initiator; held through a login, which sleeps
	mu      sync.Mutex
	session *session
}

// NewTarget returns a target on the devices of core. It serves when Serve is called.
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
	if cfg.Logf == nil {
		cfg.Logf = func(string, ...any) {}
	}
	t := &Target{
		cfg: cfg, exports: map[string]*export{}, core: core, initiators: map[string]*initiator{}, listeners: map[net.Listener]bool{}, conns: map[net.Conn]*session{},
	}
	for name, store := range cfg.Exports {
		t.exports[name] = &export{Store: store}
	}
	t.client = &ib.Client{Name: "rblk-target", Add: t.add, Remove: t.remove}
	return t, core.RegisterClient(t.client)
}

func (t *Target) add(d *ib.Device) (any, error) {
	if t.cfg.Device != "" && d.Name() != t.cfg.Device {
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.devices = append(t.devices, d)
	return nil, nil
}

// remove ends the sessions of a device. A login that is under way on it is ended as well.
func (t *Target) remove(d *ib.Device, _ any) {
	t.mu.Lock()
	var gone []*session
	t.devices = slices.DeleteFunc(t.devices, func(o *ib.Device) bool { return o == d })
	for _, in := range t.initiators {
		in.users++ // so that it stays
		defer t.release(in)
	}
	all := make([]*initiator, 0, len(t.initiators))
	for _, in := range t.initiators {
		all = append(all, in)
	}
	for _, s := range t.conns {
		if s != nil && s.ep.dev == d {
			gone = append(gone, s)
		}
	}
	t.mu.Unlock()
	for _, s := range gone { // all begin to end before one is waited for
		s.lose(fmt.Errorf("device %s is going", d.Name()))
	}
	// A login holds the initiator's lock until its session is in the place where it is seen here.
	for _, in := range all {
		in.mu.Lock()
		if s := in.session; s != nil && s.ep.dev == d {
			s.end(fmt.Errorf("device %s is going", d.Name()))
			in.session = nil
		}
		in.mu.Unlock()
	}
}

// Serve logs initiators in that connect to l, until l or the target is closed. It owns l.
func (t *Target) Serve(l net.Listener) error {
	defer l.Close()
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.listeners[l] = true
	t.mu.Unlock()
	for {
		c, err := l.Accept()
		if err != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			delete(t.listeners, l)
			if t.closed || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		t.mu.Lock()
		if t.closed {
			t.mu.Unlock()
			c.Close()
			return nil
		}
		if len(t.conns) >= t.cfg.Sessions {
			t.mu.Unlock()
			t.cfg.Logf("rblk target: login from %v: there are %d sessions already", c.RemoteAddr(), t.cfg.Sessions)
			c.Close()
			continue
		}
		t.conns[c] = nil
		t.logins.Add(1)
		t.mu.Unlock()
		go func() {
			defer t.logins.Done()
			t.serve(c)
			t.mu.Lock()
			delete(t.conns, c)
			t.mu.Unlock()
		}()
	}
}

// Close ends all sessions, and stops serving. The stores have been left alone when it returns. It sleeps, and must not
// be called from a callback.
func (t *Target) Close() error {
	t.mu.Lock()
	t.closed = true
	for l := range t.listeners {
		l.Close()
	}
	for c := range t.conns {
		c.Close()
	}
	t.mu.Unlock()
	t.logins.Wait()
	t.core.UnregisterClient(t.client)
	return nil
}

// Sessions is the number of initiators that are logged in.
func (t *Target) Sessions() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, s := range t.conns {
		if s != nil {
			n++
		}
	}
	return n
}

// serve is one connection from its login to its end.
func (t *Target) serve(c net.Conn) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(t.cfg.LoginTimeout))
	var l login
	if err := readLine(c, &l); err != nil {
		t.cfg.Logf("rblk target: login from %v: %v", c.RemoteAddr(), err)
		return
	}
	in := t.initiator(l.Initiator)
	defer t.release(in)
	s, err := t.login(in, c, &l)
	if err != nil {
		t.cfg.Logf("rblk target: login of initiator %.32q: %v", l.Initiator, err)
		writeLine(c, welcome{Refused: err.Error(), Retry: errors.Is(err, errLater)})
		return
	}
	c.SetDeadline(time.Time{})
	// The initiator says nothing more on the stream: reading it returns at its end, or the session's.
	var b [1]byte
	_, err = c.Read(b[:])
	if err == nil {
		err = errors.New("the initiator spoke out of turn")
	}
	s.lose(err)
	in.mu.Lock()
	s.end(err)
	if in.session == s {
		in.session = nil
	}
	in.mu.Unlock()
	t.cfg.Logf("rblk target: session of initiator %.32q, epoch %d: %v", l.Initiator, l.Epoch, s.reason())
}

// errLater is a refusal that may be different in a moment.
var errLater = errors.New("not now")

func (t *Target) initiator(name string) *initiator {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.initiators[name]
	if in == nil {
		in = &initiator{}
		t.initiators[name] = in
	}
	in.users++
	return in
}

func (t *Target) release(in *initiator) {
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

// login ends the initiator's old session, and makes a new one. It waits for nobody else's login: those that are under way
// have ended their old session before they wait.
func (t *Target) login(in *initiator, c net.Conn, l *login) (*session, error) {
	store := t.exports[l.Export]
	switch {
	case l.Version != version:
		return nil, fmt.Errorf("this target speaks version %d, not %d", version, l.Version)
	case l.Initiator == "":
		return nil, errors.New("the initiator has no name")
	case store == nil:
		return nil, fmt.Errorf("there is no export %.32q", l.Export)
	case l.Depth < 1 || l.MaxIO < 512:
		return nil, fmt.Errorf("depth %d or size %d of requests is too small", l.Depth, l.MaxIO)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if old := in.session; old != nil {
		if l.Epoch <= old.epoch {
			return nil, fmt.Errorf("epoch %d has passed", l.Epoch)
		}
		old.end(errors.New("the initiator has logged in again"))
		in.session = nil
	}
	t.settle(store)
	dev, err := t.device()
	if err != nil {
		return nil, err
	}
	s, err := newSession(&t.cfg, dev, store, c, l)
	if errors.Is(err, syscall.EINVAL) {
		return nil, err // what the initiator says of itself cannot be
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errLater, err) // the device is failing: it goes, or recovers
	}
	in.session = s
	t.mu.Lock()
	t.conns[c] = s
	usable := !t.closed && slices.Contains(t.devices, dev)
	t.mu.Unlock()
	if !usable {
		s.end(fmt.Errorf("device %s is going", dev.Name()))
		in.session = nil
		return nil, fmt.Errorf("%w: device %s is going", errLater, dev.Name())
	}
	s.start()
	c.SetDeadline(time.Now().Add(t.cfg.LoginTimeout)) // anew: the old session may have taken long to end
	hello := welcome{
		Store: idOf(store.Store), Cache: cacheOf(store.Store), Size: store.Size(), Depth: s.depth, MaxIO: s.maxIO, QP: s.ep.addr,
	}
	if err := writeLine(c, hello); err != nil {
		s.end(err)
		in.session = nil
		return nil, err
	}
	return s, nil
}

// settle waits until the store has finished what sessions had begun that are ending. Without it a write of an initiator
// that has died could come after what the next one writes.
func (t *Target) settle(store *export) {
	t.mu.Lock()
	var ending []*session
	for _, s := range t.conns {
		if s != nil && s.store == store && s.reason() != nil {
			ending = append(ending, s)
		}
	}
	t.mu.Unlock()
	for _, s := range ending {
		<-s.over
	}
}

func (t *Target) device() (*ib.Device, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.devices {
		if d.State() == ib.DeviceActive {
			return d, nil
		}
	}
	return nil, fmt.Errorf("%w: no RDMA device", errLater)
}
