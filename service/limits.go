package service

import (
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/driver"
	"verbena/internal/cgroup"
	"verbena/internal/ctl"
	"verbena/internal/procfile"
	"verbena/internal/quota"
	"verbena/link"
)

// machine holds the resources of this process, of which the limits are shares.
type machine struct {
	descriptors uint64        // RLIMIT_NOFILE
	mappings    uint64        // vm.max_map_count
	memory      uint64        // in bytes, of the machine or of the cgroup; 0: not known
	tasks       uint64        // threads and processes; 0: not known
	cgroup      cgroup.Limits // that are part of memory and tasks
}

// thisMachine raises RLIMIT_NOFILE as far as possible, and reads the resources as they are now. Limits of a cgroup that
// are lowered later are not noticed.
func thisMachine() machine {
	m := machine{descriptors: 1024, mappings: 65530}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) == nil {
		raised := unix.Rlimit{Cur: l.Max, Max: l.Max}
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &raised) == nil {
			l = raised
		}
		m.descriptors = l.Cur
	}
	if n, ok := readNumber("/proc/sys/vm/max_map_count"); ok {
		m.mappings = n
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.memory = uint64(info.Totalram) * uint64(info.Unit)
	}
	for _, file := range []string{"/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"} {
		if n, ok := readNumber(file); ok {
			m.tasks = lowest(m.tasks, n)
		}
	}
	if unix.Geteuid() != 0 && unix.Getrlimit(unix.RLIMIT_NPROC, &l) == nil { // the kernel does not count root's
		m.tasks = lowest(m.tasks, l.Cur)
	}
	return m.within(cgroup.Read(os.DirFS("/")))
}

// within returns the machine as far as a cgroup allows it.
func (m machine) within(l cgroup.Limits) machine {
	m.cgroup = l
	m.memory = lowest(m.memory, l.Memory)
	m.tasks = lowest(m.tasks, l.Tasks)
	return m
}

func readNumber(file string) (n uint64, ok bool) {
	b, err := procfile.Read(file)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// lowest returns the lower of two limits; 0: no limit.
func lowest(a, b uint64) uint64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// users is the number of shares that the total of all users is divided into. Three of them are full before the reserve
// of the quota package begins, which is for users who hold little.
const users = 4

const (
	// maxRingBytes bounds the queues of one user of a shared service, however much memory there is.
	maxRingBytes = 1000 << 20
	// maxThreads is more than all threads that the limits allow. Beyond it the runtime ends the service.
	maxThreads = 30000
	// userThreads bounds the threads that all users can cause.
	userThreads = 4096
	// threadBytes is the memory of a thread: stacks of the kernel and of the runtime.
	threadBytes = 64 << 10
	// objectBytes is the memory of the service while all users together hold as many objects as the tables of devices do,
	// as measured.
	objectBytes = 1280 << 20
	// fewest is the least number of threads that each limit of threads leaves to all users.
	fewest = 8
)

// The shares of the memory in sixteenths. The rest, an eighth, is the service's own.
const (
	bufferShare = 6 // shared memory of buffers
	ringShare   = 3 // shared memory of queues
	objectShare = 4 // the service's heap for the objects of users
	threadShare = 1
	allShares   = 16
)

// DefaultLimits returns the limits of a service on this machine: shared with other users, or this user's own. In one's
// own the user may hold what a service can hold, and the tables of the devices are the limit for objects.
//
// Buffers, queues, objects and threads of users are charged to the service's cgroup. So the limits are shares of the
// memory and of the number of threads that the cgroup allows, where these are less than the machine's: if all users
// together are at their limits, the service still has an eighth of the memory and half of the threads. The limits of
// the cgroup are read once, here: if an administrator lowers them while the service runs, it must be restarted.
//
// With two users at their limits, a third still gets 10,000 queue pairs with what belongs to them, if there are 4 GiB
// of memory. The descriptors together stay below seven eighths of RLIMIT_NOFILE, and the mappings below half of
// vm.max_map_count.
func DefaultLimits(shared bool) quota.Limits { return thisMachine().limits(shared) }

func (m machine) limits(shared bool) (l quota.Limits) {
	fds := min(m.descriptors, 1<<20)
	threads := m.threads()
	// A connection is one descriptor, a session some four.
	l[quota.Connections] = bounded(min(2048, fds/8, threads/2), 256)
	l[quota.Sessions] = bounded(min(1024, fds/16, threads/4), 128)
	l[quota.Workers] = bounded(threads/2, 512)
	l[quota.Descriptors] = quota.Limit{PerUser: fds / 2 / users, Total: fds / 2}
	// The kernel counts all of them against the service's user id, and refuses other processes of that id beyond
	// RLIMIT_NOFILE.
	l[quota.InFlight] = bounded(max(min(512, fds/16), 32), 64)
	l[quota.Mappings] = quota.Limit{PerUser: m.mappings / 2 / users, Total: m.mappings / 2}
	rings := m.memory / allShares * ringShare
	l[quota.RingBytes] = quota.Limit{PerUser: min(rings/users, maxRingBytes), Total: rings}
	buffers := m.memory / allShares * bufferShare
	l[quota.BufferBytes] = quota.Limit{PerUser: buffers / users, Total: buffers}
	if !shared {
		for k := range l {
			l[k] = quota.Limit{PerUser: l[k].Total} // and no reserve for others
		}
		return l
	}
	l[quota.Contexts] = quota.Limit{PerUser: l[quota.Descriptors].PerUser / 2, Total: l[quota.Descriptors].Total / 2}
	for k, total := range map[quota.Kind]uint64{ // of a device's table, somewhat less than what it holds
		quota.PDs: 64000, quota.MRs: 480000, quota.MWs: 480000, quota.AHs: 32000, quota.CQs: 128000, quota.QPs: 65000,
		quota.SRQs: 64000, quota.XRCDs: 16000,
		quota.CMIDs: 28000, // fewer than there are ports to choose from, so that some are left
	} {
		if room := m.memory / allShares * objectShare; room != 0 && room < objectBytes {
			total = total * (room >> 10) / (objectBytes >> 10)
		}
		l[k] = bounded(total, total)
	}
	// A group takes a descriptor and a buffer of the kernel for each address of the device.
	l[quota.Multicast] = bounded(lowest(min(256, fds/16), m.memory/allShares*threadShare/link.GroupMemory), 64)
	return l
}

// threads returns the number of threads that all users together may cause. Half of what the service may have is for
// itself and for the other processes of its cgroup or user.
func (m machine) threads() uint64 {
	return lowest(lowest(userThreads, m.tasks/2), m.memory/allShares*threadShare/threadBytes)
}

// bounded returns a limit that leaves all users at least something.
func bounded(total, mostPerUser uint64) quota.Limit {
	total = max(total, fewest)
	return quota.Limit{PerUser: min(total/users, mostPerUser), Total: total}
}

// heap returns the memory that the limits leave to the service itself, including its objects, and at least an eighth;
// 0: not known.
func (m machine) heap(l quota.Limits) uint64 {
	if m.memory == 0 {
		return 0
	}
	shared := m.memory / allShares * threadShare
	for _, k := range []quota.Kind{quota.BufferBytes, quota.RingBytes} {
		shared += min(max(l[k].PerUser, l[k].Total), m.memory)
	}
	return max(m.memory-min(shared, m.memory), m.memory/8)
}

// limitHeap makes the runtime collect garbage more often before the heap reaches the share of the service, instead of
// letting it grow to twice what is in use. GOMEMLIMIT takes precedence.
func (m machine) limitHeap(l quota.Limits) {
	if n := m.heap(l); n != 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(n)) // the runtime ignores a negative limit, which is beyond all memory
	}
}

// ParseLimit reads KIND=PER-USER[/TOTAL] into limits. Numbers may end in K, M, G or T; 0 is no limit.
func ParseLimit(text string, into *quota.Limits) error {
	fail := func(err error) error { return fmt.Errorf("limit %q: %w", text, err) }
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return fail(fmt.Errorf("write KIND=PER-USER or KIND=PER-USER/TOTAL: %w", syscall.EINVAL))
	}
	kind, err := quota.ParseKind(name)
	if err != nil {
		return fail(err)
	}
	limit := into[kind]
	perUser, total, both := strings.Cut(value, "/")
	if limit.PerUser, err = parseAmount(perUser); err != nil {
		return fail(err)
	}
	if both {
		if limit.Total, err = parseAmount(total); err != nil {
			return fail(err)
		}
	}
	if limit.Total != 0 && (limit.PerUser > limit.Total || limit.PerUser == 0) {
		return fail(fmt.Errorf("one user may not have more than all users together, %d: write %s=%s/TOTAL: %w",
			limit.Total, name, perUser, syscall.EINVAL))
	}
	into[kind] = limit
	return nil
}

// checkRingBytes reports an error for a limit with which no user could have a queue pair of one of the drivers.
func (m machine) checkRingBytes(l quota.Limit, drivers []driver.Driver) error {
	most, least := l.Most(), uint64(0)
	for _, d := range drivers {
		least = max(least, d.MinQueueMemory())
	}
	if most == 0 || most >= least {
		return nil
	}
	if m.memory != 0 && m.memory/allShares*ringShare < least {
		return fmt.Errorf("the queues of programs do not fit into the memory of this machine or control group, %d bytes: %w",
			m.memory, syscall.ENOMEM)
	}
	return fmt.Errorf("limit ring-bytes: %d bytes for one user are less than %d, which one queue pair takes; "+
		"raise --limit ring-bytes=: %w", most, least, syscall.EINVAL)
}

// fewEntries is less than programs ask for that do not look at what the device has: perftest has 512 WRITEs under way,
// ibv_rc_pingpong 500 receives, and others a few thousand.
const fewEntries = 4000

// warnOfShortQueues logs that there is room for short queues only.
func warnOfShortQueues(log *slog.Logger, l quota.Limit, drivers []driver.Driver) {
	for _, d := range drivers {
		work, completions, err := d.QueueLimits(l.Most())
		if err != nil || min(work, completions) >= fewEntries {
			continue
		}
		log.Warn("queues are short; programs that ask for longer ones fail with EINVAL", "work_requests", work, "completions",
			completions,
			"bytes", l.Most(), "remedy", "raise --limit ring-bytes=, or the memory of the control group")
	}
}

func parseAmount(text string) (uint64, error) {
	digits, shift := text, 0
	if n := len(text); n > 0 {
		if i := strings.IndexByte("KMGT", text[n-1]); i >= 0 {
			digits, shift = text[:n-1], 10*(i+1)
		}
	}
	v, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || v<<shift>>shift != v {
		return 0, fmt.Errorf("%q is not a number, such as 1000, 64K or 2G: %w", text, syscall.EINVAL)
	}
	return v << shift, nil
}

func raiseThreadLimit() { debug.SetMaxThreads(maxThreads) }

// refusals logs what is refused to users, by a goroutine of its own.
type refusals chan *quota.Error

// add notes a refusal. It does not sleep: when there are many, some are not logged.
func (r refusals) add(e *quota.Error) {
	select {
	case r <- e:
	default:
	}
}

// logRefusals logs refusals until the service ends.
func (s *Service) logRefusals(r refusals) {
	for {
		select {
		case <-s.ended.Done():
			return
		case e := <-r:
			s.log.Warn("a limit is reached", uidKey, e.User.UID, "err", e)
		}
	}
}

// Users lists what users hold: each of those that sees is true of, and all together if that is true of quota.All.
func (s *Service) Users(sees func(quota.ID) bool) []ctl.UserInfo {
	limits := s.quota.Limits()
	users, total := s.quota.Usage()
	list := []ctl.UserInfo{}
	for _, u := range append(users, total) {
		if !sees(u.User) {
			continue
		}
		info := ctl.UserInfo{UID: u.User.UID, Container: u.User.Container}
		for k := range quota.NumKinds {
			limit := limits[k].PerUser
			if u.User == quota.All {
				limit = limits[k].Total
			}
			info.Holds = append(info.Holds, ctl.UsageInfo{Kind: k.String(), Held: u.Held[k], Limit: limit})
		}
		list = append(list, info)
	}
	return list
}
