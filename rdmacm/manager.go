package rdmacm

import (
	"cmp"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"verbena/ib"
	"verbena/internal/clock"
	"verbena/internal/contain"
)

// Config configures a Manager.
type Config struct {
	// Source returns the source address of packets to dst. Source may sleep. nil means the source address of the
	// kernel's route.
	Source func(dst netip.Addr) (netip.Addr, error)
	// Clock is the clock of timers; nil means the system clock.
	Clock clock.Clock
	// Rand chooses IDs, packet sequence numbers and ports; nil means a randomly seeded source.
	Rand *rand.Rand
	// NoLoopback makes 127.0.0.1 and ::1 fail unless a device has them, as in Linux. Otherwise these addresses
	// represent the first active device.
	NoLoopback bool
	// Timeout is the time for a peer's response, as a code: 4.096 us * 2^Timeout. 0 means 20, which is 4.3 s
	// (CMA_CM_RESPONSE_TIMEOUT).
	Timeout uint8
	// Retries is the number of retransmissions of a message; 0 means 15 (CMA_MAX_CM_RETRIES).
	Retries uint8
	// FirstPort and LastPort limit the ports that the manager chooses. If they are 0, the limits are Linux's
	// default, 32768 to 60999.
	FirstPort, LastPort uint16
	// Log receives errors that cannot be returned to a caller. A nil Log discards them.
	Log *slog.Logger
}

// Stats holds the counters of the manager.
type Stats struct {
	// Malformed counts malformed datagrams, and Unknown counts messages of unknown connections.
	Malformed, Unknown atomic.Uint64
	// Retries counts retransmitted messages, and Duplicates counts received duplicates.
	Retries, Duplicates atomic.Uint64
	// Refused counts rejected connection requests, because of a missing listener or its full backlog.
	Refused atomic.Uint64
}

// Manager is the connection manager of a Core. Manager's methods, and those of its IDs, are safe for concurrent
// use.
type Manager struct {
	core   *ib.Core
	client ib.Client
	cfg    Config
	stats  Stats

	mu       sync.Mutex
	closed   bool
	agents   agentTable
	ids      map[*ID]struct{}
	made     uint64 // number of IDs created so far
	ports    portTable
	conns    connectionTable
	sidr     map[uint32]*ID     // outstanding requests, by the ID that this side has chosen
	services map[serviceKey]*ID // requests of peers, by the IDs that the peers have chosen

	lately map[uint16]formerListener // recently destroyed listeners, by port
	held   int                       // number of requests that are held back

	events eventQueue

	rejected func(Rejection) // see OnRejection
}

// serviceKey identifies a request for a datagram service.
type serviceKey struct {
	from ib.GID
	id   uint32
}

// New creates the connection manager of a core. From then on the manager owns the general services queue pairs of the
// devices. The manager must be closed before the core's devices are unregistered permanently. New may sleep.
func New(core *ib.Core, cfg Config) (*Manager, error) {
	if cfg.Source == nil {
		cfg.Source = routeSource
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.System
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 20
	}
	if cfg.Retries == 0 {
		cfg.Retries = 15
	}
	if cfg.FirstPort == 0 || cfg.LastPort < cfg.FirstPort {
		cfg.FirstPort, cfg.LastPort = 32768, 60999
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m := &Manager{
		core: core, cfg: cfg, agents: agentTable{noLoopback: cfg.NoLoopback}, ids: map[*ID]struct{}{},
		ports: portTable{}, conns: newConnectionTable(), sidr: map[uint32]*ID{}, services: map[serviceKey]*ID{},
		lately: map[uint16]formerListener{},
	}
	m.events.wake, m.events.done = make(chan struct{}, 1), make(chan struct{})
	go m.events.dispatch()
	m.client = ib.Client{Name: "rdma_cm", Add: m.addDevice, Remove: m.removeDevice}
	if err := core.RegisterClient(&m.client); err != nil {
		m.events.stopAndWait()
		return nil, err
	}
	return m, nil
}

// Close closes the manager. Close must be called once. Remaining IDs are destroyed without an event to their
// owners, and peers are notified. A Conn or a Listener ends with ENODEV. It may sleep.
func (m *Manager) Close() {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.closed = true
	for id := range m.ids {
		m.destroy(id)
		if id.opts.closed != nil {
			id.opts.closed(errManagerClosed)
		}
	}
	m.mu.Unlock()
	m.core.UnregisterClient(&m.client)
	m.mu.Lock()
	for _, c := range m.conns.local {
		m.forgetConnection(c)
	}
	m.mu.Unlock()
	m.events.stopAndWait()
}

// containPanic calls f, which processes a peer's message. A panic in f is logged, and the manager continues. f must
// therefore unlock m.mu by a deferred call.
func (m *Manager) containPanic(f func()) {
	contain.RecoverPanic(f, contain.LogPanic(m.cfg.Log, "panic in the connection manager: the message is dropped"))
}

// Stats returns the counters.
func (m *Manager) Stats() *Stats { return &m.stats }

// addDevice implements the client's Add. (cm_add_one, cma_add_one)
func (m *Manager) addDevice(dev *ib.Device) (any, error) {
	a, err := newAgent(m, dev)
	if err != nil {
		m.cfg.Log.Warn("programs cannot connect by the connection manager", "dev", dev.Name(), "err", err)
		return nil, err
	}
	m.mu.Lock()
	m.agents.list = append(m.agents.list, a)
	m.mu.Unlock()
	return a, nil
}

// removeDevice implements the client's Remove. removeDevice reports the removal to the IDs of the device, and drops
// their connections. (cm_remove_one, cma_process_remove)
func (m *Manager) removeDevice(_ *ib.Device, data any) {
	a := data.(*agent)
	m.mu.Lock()
	for i, o := range m.agents.list {
		if o == a {
			m.agents.list = append(m.agents.list[:i:i], m.agents.list[i+1:]...)
			break
		}
	}
	ids := slices.SortedFunc(maps.Keys(m.ids), func(x, y *ID) int { return cmp.Compare(x.made, y.made) })
	for _, id := range ids { // in creation order
		if id.at.agent == a && id.state != idRemoved {
			id.state = idRemoved
			m.releaseDevice(id, RejectedByRemoval)
			m.events.enqueue(id, Event{Type: DeviceRemoval})
		}
	}
	for _, c := range m.conns.local {
		if c.agent == a {
			m.forgetConnection(c)
		}
	}
	m.mu.Unlock()
	a.close()
}

// queuedEvent is an event to report.
type queuedEvent struct {
	id *ID
	e  Event
}

// decodeTimeout converts a code to a time, 4.096 us * 2^code. (cm_convert_to_ms)
func decodeTimeout(code uint8) time.Duration {
	return time.Duration(4096) << min(code, 31)
}

// unusedRandomID returns a random number that is neither 0 nor in use.
func unusedRandomID(r *rand.Rand, isUsed func(uint32) bool) uint32 {
	for {
		if n := r.Uint32(); n != 0 && !isUsed(n) {
			return n
		}
	}
}
