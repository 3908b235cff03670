//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
	"verbena/verbs/service"
)

// TestAttackSwappedDevice tests a program that replaces a device file while the service duplicates it. The service
// must not open the replacement, and must not acquire a controlling terminal. (N1)
func TestAttackSwappedDevice(t *testing.T) {
	t.Parallel()
	forEachServiceConfig(t, attackSwappedDevice)
}

func attackSwappedDevice(t *testing.T, e *serviceConfig) {
	s := e.startWithNeighbour(t)
	seconds := fmt.Sprint(shortOrFullCount(e.fullCountOnce(3), 30))
	t.Run("file", func(t *testing.T) {
		// The attacker may look up this file, but may not open it.
		secret := filepath.Join(t.TempDir(), "secret")
		for dir := filepath.Dir(secret); dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
			os.Chmod(dir, 0o755)
		}
		if err := os.WriteFile(secret, []byte("root's own"), 0o600); err != nil {
			t.Fatal(err)
		}
		watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(watch)
		if _, err := unix.InotifyAddWatch(watch, secret, unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
		a := s.startAttack(attacker, "swap-device", secret, seconds)
		a.nextLineWith("done", 60*time.Second)
		if n, _ := unix.Read(watch, make([]byte, 4096)); n > 0 {
			t.Errorf("service: opened the file %d times, want 0", n/unix.SizeofInotifyEvent)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			t.Skip(err)
		}
		defer master.Close()
		unlock := 0
		if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, unlock); err != nil {
			t.Fatal(err)
		}
		n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
		if err != nil {
			t.Fatal(err)
		}
		a := s.startAttack(attacker, "swap-device", fmt.Sprintf("/dev/pts/%d", n), seconds)
		a.nextLineWith("done", 60*time.Second)
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.serve.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		// The fields after the name are state, ppid, pgrp, session, tty_nr. (proc_pid_stat(5))
		if f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])); f[4] != "0" {
			t.Errorf("terminal of the service: got %s, want none", f[4])
		}
		master.Close()
		s.checkServiceStays()
		s.checkServesNewUser()
	})
	s.serve.Process.Signal(syscall.SIGHUP) // as for a terminal acquired in another way
	s.checkServiceStays()
	s.checkServesNewUser()
	s.checkNeighbourProgress()
}

// checkServiceStays checks that the service has not ended after 100 ms.
func (s *attackedService) checkServiceStays() {
	s.t.Helper()
	testutil.Consistently(s.t, 100*time.Millisecond, "the service runs", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.serve.Process.Pid))
		return err == nil && !bytes.Contains(b, []byte(") Z "))
	})
}

// TestAttackLingeringClose tests descriptors with a close that takes a minute, sent with messages that allow no
// descriptors. Such descriptors may block only a few threads of the service. (N2, N11)
func TestAttackLingeringClose(t *testing.T) {
	t.Parallel()
	forEachServiceConfig(t, attackLingeringClose)
}

func attackLingeringClose(t *testing.T, e *serviceConfig) {
	count := fmt.Sprint(shortOrFullCount(100, 250))
	for _, tt := range []struct {
		name   string
		attack func(*attackedService) *interactiveProgram
	}{
		{"netlink", func(s *attackedService) *interactiveProgram {
			return s.startAttack(attacker, "linger-netlink", fmt.Sprint(shortOrFullCount(100, 1000)))
		}},
		{"begin", func(s *attackedService) *interactiveProgram {
			return s.startAttackOutside(attacker, "linger-control", s.socket, count, "begin")
		}},
		{"rest", func(s *attackedService) *interactiveProgram {
			return s.startAttackOutside(attacker, "linger-control", s.socket, count, "rest")
		}},
		{"closed", func(s *attackedService) *interactiveProgram {
			return s.startAttackOutside(attacker, "linger-control", s.socket, count, "closed")
		}},
		{"refused", func(s *attackedService) *interactiveProgram {
			return s.startAttackOutside(attacker, "linger-control", s.socket, "600", "begin")
		}},
	} {
		if e.name != sharedConfig.name && tt.name != "netlink" && tt.name != "refused" && !fullAttacks {
			continue // the code is the same in the other surroundings
		}
		if e.user.uid != 0 && tt.name == "refused" {
			continue // the only user would have no free connection for a minute
		}
		t.Run(tt.name, func(t *testing.T) {
			s := e.startWithNeighbour(t)
			before := s.readLoad()
			a := tt.attack(s)
			t.Logf("%s", a.expectLine("s"))
			testutil.Consistently(t, 500*time.Millisecond, "at most 40 more threads of the service", func() bool {
				return s.readLoad().threads-before.threads <= 40
			})
			s.checkServiceAndNeighbour()
			a.kill()
			<-a.over
			s.checkServesNewUser()
			s.checkNeighbourProgress()
		})
	}
}

// TestAttackGrownQueueFile tests that data that a program appends to its queue file occupies no memory of others,
// even if the program and the service have different /dev/shm. The service has a small /dev/shm. (N3)
func TestAttackGrownQueueFile(t *testing.T) {
	t.Parallel()
	forEachServiceConfig(t, attackGrownQueueFile)
}

func attackGrownQueueFile(t *testing.T, e *serviceConfig) {
	s := e.startWithNeighbour(t)
	const mount = "mount -t tmpfs -o size=4m,mode=1777 none /dev/shm && exec \"$@\""
	c := s.asUser(0).verbenaCommand(s.contextWithTimeout(60), "run", "--", s.program, "grow", fmt.Sprint(256<<20))
	// The program runs in a mount namespace with a small /dev/shm, as in a container.
	id := fmt.Sprint(s.mappedUID(attacker))
	argv := []string{"unshare", "-m", "sh", "-c", mount, "sh", "setpriv", "--reuid=" + id, "--regid=" + id,
		"--clear-groups"}
	at := 0
	if s.runsInContainer() {
		at = slices.Index(c.Args, "--") + 1
	}
	c.Args = slices.Concat(c.Args[:at], argv, c.Args[at:])
	var err error
	if c.Path, err = exec.LookPath(c.Args[0]); err != nil {
		t.Fatal(err)
	}
	a := startInteractiveProgram(t, c)
	t.Logf("%s", a.nextLineWith("grown by", 30*time.Second))
	if line := a.nextLineWith("truncate", 10*time.Second); line != "truncate: Operation not permitted" {
		t.Errorf("the attacker printed %q", line)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &fs); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []uint32{stranger, neighbor} {
		out, err := s.asUser(uid).verbenaCommand(s.contextWithTimeout(20), "run", "--", s.program, "paths",
			"/dev/infiniband/uverbs0").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "uverbs0: success") {
			t.Errorf("user %d: %v %q", uid, err, out)
		}
	}
	s.checkNeighbourProgress()
	a.kill()
	<-a.over
	s.checkServesNewUser()
}

// TestAttackConfusedLauncher tests root's launcher after its service was killed. A program has changed its user,
// before or after it opened the device, and has passed the device to a daemon of root. The launcher must not end
// the daemon. The launcher must end the program if the program's user owns the file. (N8)
func TestAttackConfusedLauncher(t *testing.T) {
	for _, first := range []string{"becomes another user", "opens the device"} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			s := startAttackedService(t)
			dir := t.TempDir()
			for d := dir; d != "/tmp" && d != "/"; d = filepath.Dir(d) {
				os.Chmod(d, 0o755)
			}
			path := filepath.Join(dir, "daemon")
			daemon := s.startAttackOutside(0, "keep-descriptor", path)
			daemon.expectLine("listening")
			argv := []string{"run", "--", s.program, "give-device", path, fmt.Sprint(attacker)}
			if first == "becomes another user" {
				argv = []string{"run", "--", "setpriv", fmt.Sprint("--reuid=", attacker), fmt.Sprint("--regid=", attacker),
					"--clear-groups",
					s.program, "give-device", path}
			}
			p := startInteractiveProgram(t, s.verbenaCommand(s.contextWithTimeout(60), argv...))
			p.nextLineWith("given", 20*time.Second)
			daemon.expectLine("kept")
			syscall.Kill(s.serve.Process.Pid, syscall.SIGKILL)
			if first == "becomes another user" {
				select {
				case <-p.over:
				case <-time.After(20 * time.Second):
					t.Error("program with an open device: still runs, want it killed")
				}
			}
			select {
			case <-daemon.over:
				t.Errorf("root's daemon: was ended: %v", daemon.end)
			case <-time.After(12 * time.Second):
			}
			s.start() // the cleanup of the test needs a service
		})
	}
}

// TestAttackUnreadAnswers tests that unread answers occupy a bounded part of the service's memory. (N9)
func TestAttackUnreadAnswers(t *testing.T) {
	t.Parallel()
	forEachServiceConfig(t, attackUnreadAnswers)
}

func attackUnreadAnswers(t *testing.T, e *serviceConfig) {
	raw := buildRawverbs(t)
	s := e.startWithNeighbour(t)
	filler := startInteractiveProgram(t, s.asUser(attacker).verbenaCommand(s.contextWithTimeout(120), "run", "--", raw,
		"fill",
		"all",
		fmt.Sprint(shortOrFullCount(e.fullCountOnce(30000), 100000))))
	filler.nextLineWith("has", 60*time.Second)
	before := s.readLoad()
	a := s.startAttackOutside(attacker, "unread", s.socket, fmt.Sprint(shortOrFullCount(60, 200)), "res show")
	t.Logf("%s", a.expectLine("asked"))
	highest := 0
	testutil.Consistently(t, 2*time.Second, "at most 8 answers in the memory of the service", func() bool {
		highest = max(highest, s.readLoad().rss-before.rss)
		return s.own != 0 || highest <= 70 // an ordinary user manages their own service, and may make many requests at a time
	})
	t.Logf("%d MiB more", highest)
	s.checkServiceAndNeighbour()
	for _, d := range []*interactiveProgram{a, filler} {
		d.kill()
		<-d.over
	}
	s.checkServesNewUser()
	s.checkNeighbourProgress()
}

// TestAttackUnreceivedDescriptors tests answers with descriptors that a program does not receive before it closes
// the connection. The number of descriptors in flight must be limited, and other users must still get descriptors.
func TestAttackUnreceivedDescriptors(t *testing.T) {
	t.Parallel()
	forEachServiceConfig(t, attackUnreceivedDescriptors)
}

func attackUnreceivedDescriptors(t *testing.T, e *serviceConfig) {
	s := e.startWithNeighbour(t)
	before := s.readLoad()
	a := s.startAttackOutside(attacker, "unreceived", s.socket, "60",
		fmt.Sprintf(`{"Protocol":%d,"Op":"open","Name":"rxe0"}`, ctl.ProtocolVersion))
	line := a.nextLineWith("in flight", 30*time.Second)
	var flying, answered int
	most := 64
	if s.own != 0 {
		most = 512 // limit of the only user
	}
	if n, err := fmt.Sscanf(line, "in flight %d, answered %d", &flying, &answered); n != 2 || flying == 0 ||
		flying > most {
		t.Errorf("attacker: got %q (%v), want 1 to %d descriptors in flight", line, err, most)
	}
	s.checkServiceAndNeighbour()
	if s.own == 0 && !s.runsInContainer() {
		svc, err := service.At(s.socket)
		if err != nil {
			t.Fatal(err)
		}
		dev, err := svc.Open("")
		if err != nil {
			t.Errorf("open of a device over the socket as another user: %v", err)
		} else {
			dev.Close()
		}
	}
	a.kill()
	<-a.over
	testutil.Eventually(t, fmt.Sprintf("the service to hold %d descriptors, as before", before.descriptors), func() bool {
		return s.readLoad().descriptors <= before.descriptors+2
	})
	s.checkServesNewUser()
	s.checkNeighbourProgress()
}
