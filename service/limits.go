package service

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/driver/rxe"
	"verbena/internal/ctl"
	"verbena/internal/procfile"
	"verbena/internal/quota"
	"verbena/internal/shm"
)

// machine is what the limits are shares of.
type machine struct {
	descriptors uint64 // RLIMIT_NOFILE
	mappings    uint64 // vm.max_map_count
	shm         uint64 // size of shmRoot, in bytes; 0: without limit
	memory      uint64 // of all, in bytes; 0: not known
}

// thisMachine raises RLIMIT_NOFILE as far as it may.
func thisMachine() machine {
	m := machine{descriptors: 1024, mappings: 65530}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) == nil {
		if l.Cur < l.Max {
			raised := unix.Rlimit{Cur: l.Max, Max: l.Max}
			if unix.Setrlimit(unix.RLIMIT_NOFILE, &raised) == nil {
				l = raised
			}
		}
		m.descriptors = l.Cur
	}
	if b, err := procfile.Read("/proc/sys/vm/max_map_count"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
			m.mappings = n
		}
	}
	var fs unix.Statfs_t
	if unix.Statfs(shmRoot, &fs) == nil {
		m.shm = fs.Blocks * uint64(fs.Bsize)
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.memory = uint64(info.Totalram) * uint64(info.Unit)
	}
	return m
}

// users is into how many shares what all users may have is divided. Three of them are full before the reserve of the
// quota package begins, which is for users who hold little.
const users = 4

// maxRingBytes bounds the queues of one user of a shared service, however large shmRoot is: it is memory.
const maxRingBytes = 1000 << 20

// maxThreads is beyond all threads that the limits allow, so that the runtime does not end the service.
const maxThreads = 30000

// DefaultLimits returns the limits of a service on this machine: shared with other users, or this user's own. In one's
// own the user may hold what a service can hold, and the tables of the devices are the limit for objects.
//
// With two users at their limits, a third still gets 10,000 queue pairs with what belongs to them. The descriptors
// together stay below seven eighths of RLIMIT_NOFILE, the mappings below half of vm.max_map_count, and the memory of
// queues below three quarters of /dev/shm.
func DefaultLimits(shared bool) quota.Limits { return thisMachine().limits(shared) }

func (m machine) limits(shared bool) (l quota.Limits) {
	fds := min(m.descriptors, 1<<20)
	// A connection is one descriptor, a session some four.
	l[quota.Connections] = quota.Limit{PerUser: min(256, fds/8/users), Total: min(2048, fds/8)}
	l[quota.Sessions] = quota.Limit{PerUser: min(128, fds/16/users), Total: min(1024, fds/16)}
	l[quota.Descriptors] = quota.Limit{PerUser: fds / 2 / users, Total: fds / 2}
	l[quota.Workers] = quota.Limit{PerUser: 512, Total: 2048}
	l[quota.Mappings] = quota.Limit{PerUser: m.mappings / 2 / users, Total: m.mappings / 2}
	l[quota.RingBytes] = quota.Limit{PerUser: min(m.shm/users, maxRingBytes), Total: m.shm / 4 * 3}
	l[quota.BufferBytes] = quota.Limit{PerUser: m.memory / 2 / users, Total: m.memory / 2}
	if !shared {
		for k := range l {
			l[k] = quota.Limit{PerUser: l[k].Total} // and no reserve for others
		}
		return l
	}
	l[quota.Contexts] = quota.Limit{PerUser: l[quota.Descriptors].PerUser / 2, Total: l[quota.Descriptors].Total / 2}
	for k, total := range map[quota.Kind]uint64{ // of a device's table, somewhat less than what it holds
		quota.PDs: 64000, quota.MRs: 480000, quota.MWs: 480000, quota.AHs: 32000, quota.CQs: 128000, quota.QPs: 65000,
		quota.SRQs: 64000, quota.XRCDs: 16000, quota.Multicast: 256,
		quota.CMIDs: 28000, // fewer than there are ports to choose from, so that some are left
	} {
		l[k] = quota.Limit{PerUser: total / users, Total: total}
	}
	return l
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

// checkRingBytes reports an error for a limit with which no user could have a queue pair.
func checkRingBytes(l quota.Limit) error {
	most, least := l.Most(), rxe.MinQueueMemory()
	if most == 0 || most >= least {
		return nil
	}
	if size := thisMachine().shm; size != 0 && size/4*3 < least {
		return fmt.Errorf("the queues of programs do not fit on %s, of %d bytes (df %[1]s): %[3]w; %[4]s", shmRoot, size, syscall.ENOSPC, shm.Enlarge(shmRoot))
	}
	return fmt.Errorf("limit ring-bytes: %d bytes for one user are less than %d, which one queue pair takes; "+
		"raise --limit ring-bytes=, or enlarge %s: %w", most, least, shmRoot, syscall.EINVAL)
}

// fewEntries is less than programs ask for that do not look at what the device has: perftest has 512 WRITEs under way, ibv_rc_pingpong
// 500 receives, and others a few thousand.
const fewEntries = 4000

// warnOfShortQueues logs that there is room for short queues only.
func warnOfShortQueues(log *slog.Logger, l quota.Limit, shmSize uint64) {
	work, completions, err := rxe.QueueLimits(l.Most())
	if err != nil || min(work, completions) >= fewEntries {
		return
	}
	remedy := "raise --limit ring-bytes="
	if shmSize != 0 && l.Most() >= shmSize/2 {
		remedy = shm.Enlarge(shmRoot)
	}
	log.Warn("queues are short; programs that ask for longer ones fail with EINVAL", "work_requests", work, "completions", completions,
		"bytes", l.Most(), "where", shmRoot, "remedy", remedy)
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
			args := []any{uidKey, e.User.UID, "err", e}
			if e.Kind == quota.RingBytes {
				// Unless the limit was given, it is a share of that.
				args = append(args, "where", shmRoot, "remedy", shm.Enlarge(shmRoot))
			}
			s.log.Warn("a limit is reached", args...)
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
