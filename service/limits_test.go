package service

import (
	"errors"
	"log/slog"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/driver/rxe"
	"verbena/internal/cgroup"
	"verbena/internal/ctl"
	"verbena/internal/quota"
	"verbena/internal/testutil"
)

// TestDefaultLimitsLeaveRoom tests that a shared service with two users at their limits has room for 10,000 queue pairs
// of a third user, and stays within the kernel's limits for a process.
func TestDefaultLimitsLeaveRoom(t *testing.T) {
	for _, m := range []machineResources{
		{descriptors: 20000, mappings: 65530, memory: 48 << 30},
		{descriptors: 1 << 20, mappings: 1 << 20, memory: 16 << 30},
		{descriptors: 4096, mappings: 65530, memory: 8 << 30, tasks: 32768},
		{descriptors: 1024, mappings: 65530, memory: 4 << 30},
	} {
		l := m.defaultLimits(true)
		ledger := quota.New(l)
		for uid := range 2 {
			for k := range quota.NumKinds {
				if l[k].PerUser == 0 || l[k].Total == 0 {
					t.Errorf("limits of %+v: got none of %v, want one", m, k)
				}
				if err := ledger.User(uid).Charge(k, l[k].PerUser); err != nil {
					t.Errorf("%+v: charge user %d: got %v, want success", m, uid, err)
				}
			}
		}
		third := ledger.User(2)
		needs := map[quota.ResourceKind]uint64{quota.QPs: 10000, quota.CQs: 20000, quota.MRs: 20000, quota.PDs: 1000,
			quota.SRQs:     1000,
			quota.Contexts: 1, quota.Sessions: 1, quota.Connections: 1, quota.Workers: 16, quota.Descriptors: 16,
			quota.Mappings: 1000}
		if m.memory >= 8<<30 {
			needs[quota.RingBytes] = 10000 * 4 * 4096 // two queues, and two completion queues
		}
		for k, n := range needs {
			if err := third.Charge(k, n); err != nil {
				t.Errorf("%+v: charge the third user: got %v, want success", m, err)
			}
		}
		const perSession, perConnection = 4, 1
		if n := l[quota.Descriptors].Total + perSession*l[quota.Sessions].Total +
			perConnection*l[quota.Connections].Total; n > m.descriptors/8*7 {
			t.Errorf("%+v: got %d descriptors in total, want at most 7/8", m, n)
		}
		if n := l[quota.Mappings].Total; n > m.mappings/4*3 {
			t.Errorf("%+v: got %d mappings in total, want at most 3/4", m, n)
		}
		if n := l[quota.RingBytes].Total; n > m.memory/4 {
			t.Errorf("%+v: got %d bytes of queues in total, want at most 1/4 of the memory", m, n)
		}
		if n := l[quota.BufferBytes].Total; n > m.memory/2 || n < m.memory/3 {
			t.Errorf("%+v: got %d bytes of buffers in total, want 1/3 to 1/2 of the memory", m, n)
		}
		if n := l[quota.Workers].Total + l[quota.Connections].Total; n > maxThreads/4 {
			t.Errorf("%+v: got %d threads in total, want at most %d", m, n, maxThreads/4)
		}
		if l[quota.Workers].Total < l[quota.Sessions].Total {
			t.Errorf("%+v: worker limit: got less than the session limit", m)
		}
	}
}

// TestCgroupLimitsLeaveReserve tests that all users together, at their limits, leave memory and threads of the cgroup
// to the service.
func TestCgroupLimitsLeaveReserve(t *testing.T) {
	big := machineResources{descriptors: 20000, mappings: 65530, memory: 24 << 30, tasks: 32768}
	with := func(memory, tasks uint64) machineResources {
		return big.limitedToCgroup(cgroup.Limits{Memory: memory, Tasks: tasks})
	}
	type want struct{ workers, sessions, connections, rings, buffers, qps uint64 } // limits of all users together
	for _, c := range []struct {
		name string
		m    machineResources
		want want
	}{
		{"no limits", big, want{2048, 1024, 2048, 4608 << 20, 9 << 30, 65000}},
		{"1 GiB", with(1<<30, 0), want{512, 256, 512, 192 << 20, 384 << 20, 13000}},
		{"256 MiB", with(256<<20, 0), want{128, 64, 128, 48 << 20, 96 << 20, 3250}},
		{"pids.max 900", with(0, 900), want{225, 112, 225, 4608 << 20, 9 << 30, 65000}},
		{"both", with(256<<20, 900), want{128, 64, 128, 48 << 20, 96 << 20, 3250}},
		{"few threads", with(0, 10), want{8, 8, 8, 4608 << 20, 9 << 30, 65000}},
	} {
		for _, shared := range []bool{true, false} {
			l := c.m.defaultLimits(shared)
			total := func(k quota.ResourceKind) uint64 { return max(l[k].Total, l[k].PerUser) }
			got := want{total(quota.Workers), total(quota.Sessions), total(quota.Connections), total(quota.RingBytes),
				total(quota.BufferBytes),
				total(quota.QPs)}
			if !shared {
				got.qps = c.want.qps // here the device's tables set the limit
			}
			if got != c.want {
				t.Errorf("%s, shared %v: got %+v, want %+v", c.name, shared, got, c.want)
			}
			if shared && l[quota.QPs].PerUser != c.want.qps/userShareDivisor {
				t.Errorf("%s: queue pairs of one user: got %d, want %d", c.name, l[quota.QPs].PerUser, c.want.qps/userShareDivisor)
			}
			if shared {
				for k := range quota.NumKinds {
					if l[k].PerUser == 0 || l[k].Total == 0 {
						t.Errorf("%s: limit of %v: got none, want one", c.name, k)
					}
				}
			}
			objects := min(objectBytes, objectBytes/65000*got.qps)
			if !shared {
				objects = 0
			}
			threads := got.workers + got.connections
			if n := got.rings + got.buffers + objects + threads*threadBytes; n > c.m.memory/8*7 {
				t.Errorf("%s: memory of users: got %d of %d bytes, want at most 7/8", c.name, n, c.m.memory)
			}
			if threads > max(c.m.tasks/2, 2*minThreadLimit) {
				t.Errorf("%s: threads of users: got %d of %d, want at most half", c.name, threads, c.m.tasks)
			}
			if n := c.m.serviceHeapLimit(l); n < c.m.memory/4 || n+got.rings+got.buffers > c.m.memory {
				t.Errorf("%s: heap: got %d bytes beside %d bytes of users, want at most %d together", c.name, n,
					got.rings+got.buffers, c.m.memory)
			}
		}
	}
	l := big.defaultLimits(true)
	l[quota.BufferBytes] = quota.Limit{PerUser: 1 << 63, Total: 1 << 63} // as set by --limit
	if got := big.serviceHeapLimit(l); got != big.memory/8 {
		t.Errorf("heap with more buffers than memory: got %d bytes, want an eighth", got)
	}
}

// TestPrivateServiceMayUseAllResources tests that the user of a private service may use all resources of that service.
func TestPrivateServiceMayUseAllResources(t *testing.T) {
	l := machineResources{descriptors: 20000, mappings: 65530, memory: 8 << 30}.defaultLimits(false)
	if l[quota.QPs].PerUser != 0 || l[quota.RingBytes].PerUser == 0 || l[quota.Workers].PerUser == 0 {
		t.Errorf("limits of a private service: got %+v, want limits of ring-bytes and workers and none of qps", l)
	}
	user := quota.New(l).User(1001)
	for k := range quota.NumKinds {
		if err := user.Charge(k, l[k].PerUser); err != nil {
			t.Error(err)
		}
	}
}

// TestServiceNeedsRingBytesForQP tests that a service does not start if its limit allows no queue pair.
func TestServiceNeedsRingBytesForQP(t *testing.T) {
	least := new(rxe.Driver).MinQueueMemory()
	for _, c := range []struct {
		limit quota.Limit
		want  error
	}{
		{quota.Limit{PerUser: least}, nil}, {quota.Limit{}, nil}, {quota.Limit{PerUser: least, Total: 2 * least}, nil},
		{quota.Limit{PerUser: least - 1}, syscall.EINVAL},
		{quota.Limit{PerUser: least, Total: least}, syscall.EINVAL}, // a quarter of the total is the reserve
	} {
		limits := quota.Limits{quota.RingBytes: c.limit}
		s, err := newService(Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.32"}}}, Limits: &limits})
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), "raise --limit ring-bytes") {
			t.Errorf("%+v: got %v, want %v", c.limit, err, c.want)
		}
		if err == nil {
			s.Close()
		}
	}
}

// TestCheckRingBytes tests that the error names the memory if too little memory caused the low limit, and otherwise
// names the limit.
func TestCheckRingBytes(t *testing.T) {
	least := new(rxe.Driver).MinQueueMemory()
	for _, c := range []struct {
		memory uint64
		want   syscall.Errno
		says   string
	}{
		{0, syscall.EINVAL, "raise --limit ring-bytes="},
		{1 << 50, syscall.EINVAL, "raise --limit ring-bytes="},
		{1 << 10, syscall.ENOMEM, "do not fit into the memory of this machine or control group, 1024 bytes"},
	} {
		err := machineResources{memory: c.memory}.checkRingBytes(quota.Limit{PerUser: least - 1}, rxeDrivers())
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%d bytes of memory: got %v, want %v and %q", c.memory, err, c.want, c.says)
		}
	}
}

// TestShortQueuesAreWarnedOf tests that the service warns about short queues and names the remedy if a user may have
// little memory for queues.
func TestShortQueuesAreWarnedOf(t *testing.T) {
	for most, says := range map[uint64]bool{300 << 10: true, 1 << 20: true, 48 << 20: false, 0: false} {
		var log strings.Builder
		warnOfShortQueues(slog.New(slog.NewTextHandler(&log, nil)), quota.Limit{PerUser: most}, rxeDrivers())
		if got := log.String(); (got != "") != says || says && !strings.Contains(got, "raise --limit ring-bytes=") {
			t.Errorf("warning for %d bytes: got %q, want one with the remedy: %v", most, got, says)
		}
	}
}

// TestNPROCLimitsThreads tests that RLIMIT_NPROC limits the threads of a service that does not run as root.
func TestNPROCLimitsThreads(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to act as another user")
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &old); err != nil {
		t.Fatal(err)
	}
	const limit = 1001
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: limit, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NPROC, &old)
	all := thisMachineResources().tasks
	if all == limit {
		t.Errorf("tasks of root: got %d, want no limit by user", all)
	}
	var got uint64
	testutil.RunAsUser(t, 65533, func() { got = thisMachineResources().tasks })
	if want := lowerLimit(all, limit); got != want {
		t.Errorf("tasks of user 65533: got %d, want %d", got, want)
	}
}
