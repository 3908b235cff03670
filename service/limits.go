package service

import (
	"context"
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

// machineResources lists the resources of this process, from which the limits are derived.
type machineResources struct {
	descriptors uint64        // RLIMIT_NOFILE
	mappings    uint64        // vm.max_map_count
	memory      uint64        // memory of the machine or of the cgroup in bytes; 0 if unknown
	tasks       uint64        // number of threads and processes; 0 if unknown
	cgroup      cgroup.Limits // the limits of memory and tasks that come from a cgroup
}

// thisMachineResources raises RLIMIT_NOFILE to its maximum, and reads the available resources. thisMachineResources
// does not notice a limit of the cgroup that is lowered later.
func thisMachineResources() machineResources {
	m := machineResources{descriptors: 1024, mappings: 65530}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) == nil {
		raised := unix.Rlimit{Cur: l.Max, Max: l.Max}
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &raised) == nil {
			l = raised
		}
		m.descriptors = l.Cur
	}
	if n, ok := readNumberFile("/proc/sys/vm/max_map_count"); ok {
		m.mappings = n
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.memory = uint64(info.Totalram) * uint64(info.Unit)
	}
	for _, file := range []string{"/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"} {
		if n, ok := readNumberFile(file); ok {
			m.tasks = lowerLimit(m.tasks, n)
		}
	}
	// The kernel does not enforce RLIMIT_NPROC for root.
	if unix.Geteuid() != 0 && unix.Getrlimit(unix.RLIMIT_NPROC, &l) == nil {
		m.tasks = lowerLimit(m.tasks, l.Cur)
	}
	return m.limitedToCgroup(cgroup.ReadLimits(os.DirFS("/")))
}

// limitedToCgroup returns the machine reduced to the limits of a cgroup.
func (m machineResources) limitedToCgroup(l cgroup.Limits) machineResources {
	m.cgroup = l
	m.memory = lowerLimit(m.memory, l.Memory)
	m.tasks = lowerLimit(m.tasks, l.Tasks)
	return m
}

func readNumberFile(file string) (n uint64, ok bool) {
	b, err := procfile.ReadNoFollow(file)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// lowerLimit returns the lower of two limits, where 0 means no limit.
func lowerLimit(a, b uint64) uint64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// userShareDivisor is the divisor that yields one user's share of the total of all users. Three full shares reach the
// reserve of package quota, which is for users with few resources.
const userShareDivisor = 4

const (
	// maxRingBytes limits the queues of one user of a shared service, regardless of the amount of memory.
	maxRingBytes = 1000 << 20
	// maxThreads is greater than the sum of all limits of threads. With more than maxThreads threads, the Go
	// runtime ends the service.
	maxThreads = 30000
	// userThreads limits the threads that all users together can cause.
	userThreads = 4096
	// threadBytes is the memory of a thread's stacks in the kernel and in the runtime.
	threadBytes = 64 << 10
	// objectBytes is the measured memory of a service with full device tables.
	objectBytes = 1280 << 20
	// minThreadLimit is the minimum number of threads that each limit of threads allows all users together.
	minThreadLimit = 8
)

// The shares of memory are in sixteenths. The remaining eighth is for the service itself.
const (
	bufferShare = 6 // shared memory of buffers
	ringShare   = 3 // shared memory of queues
	objectShare = 4 // the service's heap for the objects of users
	threadShare = 1
	allShares   = 16
)

// DefaultLimits returns the limits of a service on this machine, which is either shared with other users or private
// to this user. In a private service, the user may use all resources of the service, and the tables of the devices
// limit the objects.
//
// Buffers, queues, objects and threads of users are charged to the service's cgroup. The limits are therefore
// shares of the memory and threads of the cgroup, or of the machine if the machine has less. The limits leave an
// eighth of the memory and half of the threads to the service, even if all users are at their limits. The limits of
// the cgroup are read once, here. If an administrator lowers the cgroup's limits later, the service must be
// restarted.
//
// With two users at their limits and 4 GiB of memory, a third user still gets 10,000 queue pairs and their related
// objects. The descriptors of all users together stay below seven eighths of RLIMIT_NOFILE, and the mappings below
// half of vm.max_map_count.
func DefaultLimits(shared bool) quota.Limits { return thisMachineResources().defaultLimits(shared) }

func (m machineResources) defaultLimits(shared bool) (l quota.Limits) {
	fds := min(m.descriptors, 1<<20)
	threads := m.threadLimit()
	// A connection uses one descriptor, and a session about four.
	l[quota.Connections] = userAndTotalLimit(min(2048, fds/8, threads/2), 256)
	l[quota.Sessions] = userAndTotalLimit(min(1024, fds/16, threads/4), 128)
	l[quota.Workers] = userAndTotalLimit(threads/2, 512)
	l[quota.Descriptors] = quota.Limit{PerUser: fds / 2 / userShareDivisor, Total: fds / 2}
	// The kernel counts the descriptors against the service's user ID, and refuses other processes of that ID
	// beyond RLIMIT_NOFILE.
	l[quota.InFlight] = userAndTotalLimit(max(min(512, fds/16), 32), 64)
	l[quota.Mappings] = quota.Limit{PerUser: m.mappings / 2 / userShareDivisor, Total: m.mappings / 2}
	rings := m.memory / allShares * ringShare
	l[quota.RingBytes] = quota.Limit{PerUser: min(rings/userShareDivisor, maxRingBytes), Total: rings}
	buffers := m.memory / allShares * bufferShare
	l[quota.BufferBytes] = quota.Limit{PerUser: buffers / userShareDivisor, Total: buffers}
	if !shared {
		for k := range l {
			l[k] = quota.Limit{PerUser: l[k].Total} // no reserve for other users
		}
		return l
	}
	l[quota.Contexts] = quota.Limit{PerUser: l[quota.Descriptors].PerUser / 2, Total: l[quota.Descriptors].Total / 2}
	for k, total := range map[quota.ResourceKind]uint64{ // slightly less than the capacity of a device's table
		quota.PDs: 64000, quota.MRs: 480000, quota.MWs: 480000, quota.AHs: 32000, quota.CQs: 128000, quota.QPs: 65000,
		quota.SRQs: 64000, quota.XRCDs: 16000,
		quota.CMIDs: 28000, // fewer than the usable ports, so some ports stay free
	} {
		if room := m.memory / allShares * objectShare; room != 0 && room < objectBytes {
			total = total * (room >> 10) / (objectBytes >> 10)
		}
		l[k] = userAndTotalLimit(total, total)
	}
	// A multicast group uses a descriptor, and a kernel buffer for each address of the device.
	l[quota.Multicast] = userAndTotalLimit(lowerLimit(min(256, fds/16), m.memory/allShares*threadShare/link.GroupMemory),
		64)
	return l
}

// threadLimit returns the number of threads that all users together may cause. The other half of the service's tasks is
// for the service itself and for other processes of its cgroup or user.
func (m machineResources) threadLimit() uint64 {
	return lowerLimit(lowerLimit(userThreads, m.tasks/2), m.memory/allShares*threadShare/threadBytes)
}

// userAndTotalLimit returns a limit for one user and a limit for all users that is not below the minimum.
func userAndTotalLimit(total, mostPerUser uint64) quota.Limit {
	total = max(total, minThreadLimit)
	return quota.Limit{PerUser: min(total/userShareDivisor, mostPerUser), Total: total}
}

// serviceHeapLimit returns the memory that the limits leave to the service, including the objects of users. The result
// is at least an eighth of the memory, or 0 if the memory is unknown.
func (m machineResources) serviceHeapLimit(l quota.Limits) uint64 {
	if m.memory == 0 {
		return 0
	}
	shared := m.memory / allShares * threadShare
	for _, k := range []quota.ResourceKind{quota.BufferBytes, quota.RingBytes} {
		shared += min(max(l[k].PerUser, l[k].Total), m.memory)
	}
	return max(m.memory-min(shared, m.memory), m.memory/8)
}

// limitHeap makes the runtime collect garbage before the heap exceeds the service's share of memory. By default the
// heap may grow to twice the live memory. GOMEMLIMIT takes precedence.
func (m machineResources) limitHeap(l quota.Limits) {
	if n := m.serviceHeapLimit(l); n != 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(n)) // the runtime ignores a negative number, which exceeds any memory
	}
}

// checkRingBytes returns an error if the limit is below the size of one queue pair of a driver.
func (m machineResources) checkRingBytes(l quota.Limit, drivers []driver.Driver) error {
	most, least := l.UserMaximum(), uint64(0)
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
	return fmt.Errorf("limit ring-bytes: %d bytes for one user are less than %d, the size of one queue pair; "+
		"raise --limit ring-bytes=: %w", most, least, syscall.EINVAL)
}

// shortQueueEntries is less than the queue depth of programs that ignore the device's limits. perftest has 512 WRITEs
// in flight, ibv_rc_pingpong posts 500 receives, and other programs post a few thousand.
const shortQueueEntries = 4000

// warnOfShortQueues logs a warning if the limit allows only short queues.
func warnOfShortQueues(log *slog.Logger, l quota.Limit, drivers []driver.Driver) {
	for _, d := range drivers {
		work, completions, err := d.QueueLimits(l.UserMaximum())
		if err != nil || min(work, completions) >= shortQueueEntries {
			continue
		}
		log.Warn("queues are short; programs that request longer ones fail with EINVAL", "work_requests", work, "completions",
			completions,
			"bytes", l.UserMaximum(), "remedy", "raise --limit ring-bytes=, or the memory of the control group")
	}
}

func raiseThreadLimit() { debug.SetMaxThreads(maxThreads) }

// refusalQueue queues users' refused requests for the log.
type refusalQueue chan *quota.LimitError

// add queues a refused request. add does not sleep; if the queue is full, the refusal is not logged.
func (r refusalQueue) add(e *quota.LimitError) {
	select {
	case r <- e:
	default:
	}
}

// write logs refusals until the service ends.
func (r refusalQueue) write(ended context.Context, log *slog.Logger) {
	for {
		select {
		case <-ended.Done():
			return
		case e := <-r:
			log.Warn("a limit is reached", uidKey, e.User.UID, "err", e)
		}
	}
}

// Users lists the holdings of each user for whom sees returns true, and the total of all users if sees returns true for
// quota.All.
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
			if u.User == quota.AllUsers {
				limit = limits[k].Total
			}
			info.Holds = append(info.Holds, ctl.UsageInfo{Kind: k.String(), Held: u.Held[k], Limit: limit})
		}
		list = append(list, info)
	}
	return list
}
