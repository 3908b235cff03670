package service

import (
	"errors"
	"log/slog"
	"strings"
	"syscall"
	"testing"

	"verbena/driver/rxe"
	"verbena/internal/ctl"
	"verbena/internal/quota"
)

// A shared service that two users have filled has room for a third's 10,000 queue pairs, and does not run out of what
// the kernel gives a process.
func TestDefaultLimits(t *testing.T) {
	for _, m := range []machine{
		{descriptors: 20000, mappings: 65530, shm: 24 << 30, memory: 48 << 30},
		{descriptors: 1 << 20, mappings: 1 << 20, shm: 8 << 30, memory: 16 << 30},
		{descriptors: 4096, mappings: 65530, shm: 4 << 30, memory: 8 << 30},
		{descriptors: 1024, mappings: 65530, shm: 64 << 20, memory: 1 << 30},
	} {
		l := m.limits(true)
		ledger := quota.New(l)
		for uid := range 2 {
			for k := range quota.NumKinds {
				if l[k].PerUser == 0 || l[k].Total == 0 {
					t.Errorf("%+v: no limit of %v", m, k)
				}
				if err := ledger.User(uid).Take(k, l[k].PerUser); err != nil {
					t.Errorf("%+v: user %d: %v", m, uid, err)
				}
			}
		}
		third := ledger.User(2)
		needs := map[quota.Kind]uint64{quota.QPs: 10000, quota.CQs: 20000, quota.MRs: 20000, quota.PDs: 1000,
			quota.SRQs:     1000,
			quota.Contexts: 1, quota.Sessions: 1, quota.Connections: 1, quota.Workers: 16, quota.Descriptors: 16, quota.Mappings: 1000}
		if m.shm >= 1<<30 {
			needs[quota.RingBytes] = 10000 * 4 * 4096 // two queues, and two completion queues
		}
		for k, n := range needs {
			if err := third.Take(k, n); err != nil {
				t.Errorf("%+v: the third user: %v", m, err)
			}
		}
		const perSession, perConnection = 4, 1
		if n := l[quota.Descriptors].Total + perSession*l[quota.Sessions].Total + perConnection*l[quota.Connections].Total; n > m.descriptors/8*7 {
			t.Errorf("%+v: %d descriptors in all", m, n)
		}
		if n := l[quota.Mappings].Total; n > m.mappings/4*3 {
			t.Errorf("%+v: %d mappings in all", m, n)
		}
		if n := l[quota.RingBytes].Total; n > m.shm/4*3 {
			t.Errorf("%+v: %d bytes of queues in all", m, n)
		}
		if n := l[quota.BufferBytes].Total; n > m.memory/2 {
			t.Errorf("%+v: %d bytes of buffers in all", m, n)
		}
		if n := l[quota.Workers].Total + l[quota.Connections].Total; n > maxThreads/4 {
			t.Errorf("%+v: %d threads in all", m, n)
		}
		if l[quota.Workers].Total < l[quota.Sessions].Total {
			t.Errorf("%+v: not every session has a worker", m)
		}
	}
}

// In one's own service one user may have all that there is.
func TestOwnLimits(t *testing.T) {
	l := machine{descriptors: 20000, mappings: 65530, shm: 1 << 30}.limits(false)
	if l[quota.QPs].PerUser != 0 || l[quota.RingBytes].PerUser == 0 || l[quota.Workers].PerUser == 0 {
		t.Errorf("got %+v", l)
	}
	user := quota.New(l).User(1001)
	for k := range quota.NumKinds {
		if err := user.Take(k, l[k].PerUser); err != nil {
			t.Error(err)
		}
	}
}

// A service does not start with a limit that leaves no user a queue pair.
func TestTooFewRingBytes(t *testing.T) {
	least := rxe.MinQueueMemory()
	for _, c := range []struct {
		limit quota.Limit
		want  error
	}{
		{quota.Limit{PerUser: least}, nil}, {quota.Limit{}, nil}, {quota.Limit{PerUser: least, Total: 2 * least}, nil},
		{quota.Limit{PerUser: least - 1}, syscall.EINVAL},
		{quota.Limit{PerUser: least, Total: least}, syscall.EINVAL}, // of which a quarter is the reserve
	} {
		limits := quota.Limits{quota.RingBytes: c.limit}
		s, err := New(Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.8.32"}}}, Limits: &limits})
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), "raise --limit ring-bytes") {
			t.Errorf("%+v: got %v, want %v", c.limit, err, c.want)
		}
		if err == nil {
			s.Close()
		}
	}
}

// Where /dev/shm is small, the service says that queues are short, and what to do.
func TestShortQueues(t *testing.T) {
	for _, c := range []struct {
		most, shm uint64
		says      string
	}{
		{300 << 10, 400 << 10, "/dev/shm"}, {48 << 20, 64 << 20, ""}, {0, 0, ""}, {1 << 20, 1 << 30, "raise --limit ring-bytes="},
	} {
		var log strings.Builder
		warnOfShortQueues(slog.New(slog.NewTextHandler(&log, nil)), quota.Limit{PerUser: c.most}, c.shm)
		if got := log.String(); (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%d bytes of %d: %q, want %q", c.most, c.shm, got, c.says)
		}
	}
}

func TestParseLimit(t *testing.T) {
	defaults := quota.Limits{quota.QPs: {PerUser: 10, Total: 40}}
	for text, want := range map[string]quota.Limit{
		"qps=5": {PerUser: 5, Total: 40}, "qps=40": {PerUser: 40, Total: 40}, "qps=50/60": {PerUser: 50, Total: 60},
		"qps=0/0": {}, "qps=7/0": {PerUser: 7},
		"qps=1K/2M": {PerUser: 1 << 10, Total: 2 << 20},
	} {
		l := defaults
		if err := ParseLimit(text, &l); err != nil || l[quota.QPs] != want {
			t.Errorf("%s: got %+v, %v, want %+v", text, l[quota.QPs], err, want)
		}
	}
	l := defaults
	if err := ParseLimit("ring-bytes=16G", &l); err != nil || l[quota.RingBytes] != (quota.Limit{PerUser: 16 << 30}) {
		t.Errorf("got %+v, %v", l[quota.RingBytes], err)
	}
	for _, text := range []string{"", "qps", "qps=", "qps=x", "qps=-1", "qps=1/", "qps=41",
		"qps=0", "qps=5/4", "things=4", "qps=99999999999999999999", "qps=99999999999T", "qps=K"} {
		l := defaults
		if err := ParseLimit(text, &l); !errors.Is(err, syscall.EINVAL) || l != defaults {
			t.Errorf("%q: got %v, want EINVAL", text, err)
		}
	}
}
