package principal

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/internal/testutil"
)

// startProcess starts a process below a command, and returns the process's directory in /proc.
func startProcess(t *testing.T, attr *syscall.SysProcAttr, argv ...string) (dir int, pid string) {
	t.Helper()
	argv = append(argv, "sh", "-c", "readlink /proc/self | sed s/^/ready-/; read end")
	c := exec.Command(argv[0], argv[1:]...)
	c.SysProcAttr, c.Stderr = attr, os.Stderr
	in, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := c.Start(); err != nil {
		t.Fatalf("start %v: got %v, want success", argv, err)
	}
	t.Cleanup(func() {
		in.Close()
		c.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "ready-") {
		t.Fatalf("output of %v: got %q and error %v, want ready", argv, line, err)
	}
	// If unshare(1) makes a process ID namespace, it has a child process.
	pid = fmt.Sprint(c.Process.Pid)
	for {
		b, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
		f := strings.Fields(string(b))
		comm, _ := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil || len(f) == 0 || strings.TrimSpace(string(comm)) == "sh" {
			break
		}
		pid = f[0]
	}
	if dir, err = unix.Open("/proc/"+pid, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(dir) })
	return dir, pid
}

func withCredential(uid uint32) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
}

func inodeOf(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// TestPrincipalRightsInAccounts tests the rights of a principal in accounts. A manager sees all accounts, and an ID
// that represents several users owns none.
func TestPrincipalRightsInAccounts(t *testing.T) {
	own := quota.ID{UID: 7, Container: 3}
	for _, tt := range []struct {
		p          Principal
		of         quota.ID
		owns, sees bool
	}{
		{Principal{Account: own}, own, true, true},
		{Principal{Account: own}, quota.ID{UID: 8, Container: 3}, false, false},
		{Principal{Account: own}, quota.ID{UID: 7, Container: 4}, false, false},
		{Principal{Account: own}, quota.ID{UID: 7}, false, false},
		{Principal{Account: own, Anonymous: true}, own, false, false},
		{Principal{Account: own, Manager: true}, own, true, true},
		{Principal{Account: own, Manager: true}, quota.ID{UID: 8}, false, true},
		{Principal{Account: own, Manager: true, Anonymous: true}, own, false, true},
	} {
		if owns, sees := tt.p.OwnsAccount(tt.of), tt.p.SeesAccount(tt.of); owns != tt.owns || sees != tt.sees {
			t.Errorf("%+v in account %v: got Owns %v and Sees %v, want %v and %v", tt.p, tt.of, owns, sees, tt.owns, tt.sees)
		}
	}
	for c := range 41 {
		p := Principal{Caps: 1<<unix.CAP_NET_RAW | 1<<40}
		if got, want := p.HasCapability(c), c == unix.CAP_NET_RAW || c == 40; got != want {
			t.Errorf("Has(%d): got %v, want %v", c, got, want)
		}
	}
}

// TestManagerNeedsCapabilities tests that root manages root's service only with capabilities that count in its
// namespaces, and that other users manage it only if their ID was configured.
func TestManagerNeedsCapabilities(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to make namespaces, and to be several users")
	const named, user = 65531, 65533
	a, err := New([]int{named}, 65534)
	if err != nil {
		t.Fatal(err)
	}
	const none = "--bounding-set=-all"
	for _, tt := range []struct {
		what string
		uid  int
		attr *syscall.SysProcAttr
		argv []string
		want bool
	}{
		{"root", 0, nil, nil, true},
		{"root without capabilities", 0, nil, []string{"setpriv", none}, false},
		{"root with CAP_NET_ADMIN", 0, nil, []string{"setpriv", none + ",+net_admin"}, true},
		{"root with CAP_SYS_ADMIN", 0, nil, []string{"setpriv", none + ",+sys_admin"}, true},
		{"root with CAP_NET_ADMIN in another network namespace", 0, nil,
			[]string{"unshare", "-n", "setpriv", none + ",+net_admin"}, false},
		{"root with the capabilities of a container", 0, nil,
			[]string{"setpriv", none + ",+chown,+dac_override,+setuid,+setgid,+net_raw,+kill"}, false},
		{"root of a user namespace", 0, nil, []string{"unshare", "-U", "-r"}, false},
		{"a user", user, withCredential(user), nil, false},
		{"a user who is root of a user namespace", user, withCredential(user), []string{"unshare", "-U", "-r"}, false},
		{"a configured user", named, withCredential(named), nil, true},
		{"the overflow ID", 65534, withCredential(65534), nil, false},
		{"a user with CAP_SYS_ADMIN", user, nil, []string{"setpriv", "--reuid", fmt.Sprint(user), "--clear-groups",
			"--inh-caps=+sys_admin", "--ambient-caps=+sys_admin"}, false},
		{"root of a user namespace with the IDs of the service's namespace", 0, &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{Size: 1<<32 - 1}}, GidMappings: []syscall.SysProcIDMap{{Size: 1<<32 - 1}},
		}, nil, false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			dir, _ := startProcess(t, tt.attr, tt.argv...)
			p, err := a.PrincipalOf(dir, tt.uid, tt.uid)
			if err != nil || p.Manager != tt.want || p.Anonymous != (tt.uid == 65534) {
				t.Errorf("principal: got %+v and error %v, want manager %v", p, err, tt.want)
			}
		})
	}
	// For a set-uid program, the effective ID decides on management, and the real ID is charged.
	for _, tt := range []struct {
		real, effective int
		want            bool
	}{{named, named, true}, {user, named, true}, {named, user, false}, {user, 65532, false}} {
		dir, _ := startProcess(t, withCredential(uint32(tt.effective)))
		want := Principal{Account: quota.ID{UID: tt.real}, Manager: tt.want}
		if p, err := a.PrincipalOf(dir, tt.real, tt.effective); err != nil || p != want {
			t.Errorf("principal with real ID %d and effective ID %d: got %+v, %v, want %+v", tt.real, tt.effective, p, err, want)
		}
	}
	if p := a.InaccessiblePrincipal(0); p.Manager {
		t.Error("Manager of root with an invisible process: got true, want false")
	}
	if p := a.InaccessiblePrincipal(named); !p.Manager {
		t.Error("Manager of a configured user with an invisible process: got false, want true")
	}
	// A user opens the connection, and meanwhile the process executes a set-uid program.
	dir, _ := startProcess(t, nil)
	if p, err := a.PrincipalOf(dir, user, user); err != nil || p.Caps != 0 || p.Manager {
		t.Errorf("principal of a user's connection with the capabilities of root: got %+v and error %v, want no capabilities", p, err)
	}
}

// TestProcessesOfOwnUserManageService tests which processes of a service's own user manage it, for a service of an
// ordinary user or of root without capabilities. They need at least the service's capabilities, and must be outside of
// other containers.
func TestProcessesOfOwnUserManageService(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to make namespaces")
	a, err := New(nil, -1)
	if err != nil {
		t.Fatal(err)
	}
	a.caps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_KILL // as in a container
	for _, tt := range []struct {
		what string
		argv []string
		want bool
	}{
		{"the same capabilities", []string{"setpriv", "--bounding-set=-all,+chown,+kill"}, true},
		{"fewer", []string{"setpriv", "--bounding-set=-all,+chown"}, false},
		{"the same capabilities in another container", []string{"unshare", "-p", "-f", "setpriv",
			"--bounding-set=-all,+chown,+kill"}, false},
	} {
		dir, _ := startProcess(t, nil, tt.argv...)
		if p, err := a.PrincipalOf(dir, 0, 0); err != nil || p.Manager != tt.want {
			t.Errorf("principal of %s: got %+v and error %v, want manager %v", tt.what, p, err, tt.want)
		}
	}
}

// TestProcessIsChargedByUserOrContainer tests that a process is charged by its user ID, in a container by the ID of the
// container, and in user namespaces to the creator of the outermost namespace. A user cannot get several accounts by
// making namespaces.
func TestProcessIsChargedByUserOrContainer(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to make namespaces, and to be several users")
	a, err := New(nil, -1)
	if err != nil {
		t.Fatal(err)
	}
	const user = 65533
	for _, tt := range []struct {
		what      string
		uid       int
		attr      *syscall.SysProcAttr
		argv      []string
		want      int
		container string // namespace that identifies the container; "outer" is the parent of the user namespace
	}{
		{"a user", user, withCredential(user), nil, user, ""},
		{"a mount namespace", 0, nil, []string{"unshare", "-m"}, 0, ""},
		{"a container", 0, nil, []string{"unshare", "-p", "-f"}, 0, "ns/pid"},
		{"a user in a container", user, nil, []string{"unshare", "-p", "-f", "setpriv", "--reuid=65533", "--regid=65533",
			"--clear-groups"}, user, "ns/pid"},
		{"a user's namespaces", user, withCredential(user), []string{"unshare", "-U", "-r", "-p", "-f"}, user, ""},
		{"a user's nested namespaces", user, withCredential(user), []string{"unshare", "-U", "-r", "unshare", "-U", "-r",
			"-p", "-f"},
			user, ""},
		{"a container with a user namespace", 0, nil, []string{"unshare", "-U", "-r", "-p", "-f"}, 0, "ns/user"},
		{"a user namespace in such a container", 0, nil, []string{"unshare", "-U", "-r", "unshare", "-U", "-r"}, 0, "outer"},
		{"a user namespace in a container", 0, nil,
			[]string{"unshare", "-p", "-f", "setpriv", "--bounding-set=-all", "unshare", "-U"}, 0, "ns/pid"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			dir, pid := startProcess(t, tt.attr, tt.argv...)
			want := quota.ID{UID: tt.want}
			switch tt.container {
			case "":
			case "outer":
				want.Container = parentNamespace(t, "/proc/"+pid+"/ns/user")
			default:
				want.Container = inodeOf(t, "/proc/"+pid+"/"+tt.container)
			}
			if p, err := a.PrincipalOf(dir, tt.uid, tt.uid); err != nil || p.Account != want {
				t.Errorf("account: got %+v and error %v, want %+v", p.Account, err, want)
			}
		})
	}
	// Root maps several subordinate IDs into a namespace of the user, like newuidmap(1).
	dir, pid := startProcess(t, withCredential(user), "unshare", "-U")
	for _, name := range []string{"uid_map", "gid_map"} {
		if err := os.WriteFile("/proc/"+pid+"/"+name, []byte("0 100000 10"), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, uid := range []int{100000, 100007} {
		if p, err := a.PrincipalOf(dir, uid, uid); err != nil || p.Account != (quota.ID{UID: user}) {
			t.Errorf("account of subordinate ID %d: got %+v and error %v, want that of user %d", uid, p.Account, err, user)
		}
	}
	// A subordinate ID owns a namespace inside of the user's namespace.
	dir, _ = startProcess(t, nil, "nsenter", "-U", "-t", pid, "-S", "7", "-G", "7", "unshare", "-U")
	if p, err := a.PrincipalOf(dir, 100007, 100007); err != nil || p.Account != (quota.ID{UID: user}) {
		t.Errorf("account in the namespace of a subordinate ID: got %+v and error %v, want that of user %d", p.Account, err,
			user)
	}
}

// parentNamespace returns the inode of the parent of a namespace.
func parentNamespace(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, id, err := openRelatedNS(int(f.Fd()), unix.NS_GET_PARENT)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	return id.ino
}

// TestPIDNamespaceOfOwnIsZero tests that PIDNamespace returns 0 for processes in the service's own process ID
// namespace, and the inode of the namespace for other processes.
func TestPIDNamespaceOfOwnIsZero(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to make namespaces")
	a, err := New(nil, -1)
	if err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{nil, {"unshare", "-p", "-f"}} {
		_, pid := startProcess(t, nil, argv...)
		n, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		want := uint64(0)
		if argv != nil {
			want = inodeOf(t, "/proc/"+pid+"/ns/pid")
		}
		if got, err := a.PIDNamespace(n); got != want || err != nil {
			t.Errorf("PIDNamespace of a process below %q: got %d and error %v, want %d", argv, got, err, want)
		}
	}
	if got, err := a.PIDNamespace(1 << 30); got != 0 || !errors.Is(err, unix.ENOENT) {
		t.Errorf("PIDNamespace of a missing process: got %d and error %v, want ENOENT", got, err)
	}
}

// TestPrincipalOfEndedProcessFails tests that PrincipalOf returns an error for an ended process.
func TestPrincipalOfEndedProcessFails(t *testing.T) {
	a, err := New(nil, -1)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	dir, err := unix.Open(fmt.Sprintf("/proc/%d", c.Process.Pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	if _, err := a.PrincipalOf(dir, os.Getuid(), os.Getuid()); err != nil {
		t.Errorf("principal of a running process: got %v, want success", err)
	}
	c.Process.Kill()
	c.Wait()
	if p, err := a.PrincipalOf(dir, 0, 0); err == nil {
		t.Errorf("principal of an ended process: got %+v, want an error", p)
	}
}

// TestRootManagesUserService tests that root manages the service of an ordinary user, which may not access root's
// namespaces. Root of a container or of a user namespace does not manage it. The test process is the service of an
// ordinary user.
func TestRootManagesUserService(t *testing.T) {
	const env = "PRINCIPAL_TEST_PROCESS"
	if pid := os.Getenv(env); pid != "" {
		a, err := New(nil, -1)
		if err != nil {
			t.Fatal(err)
		}
		dir, err := unix.Open("/proc/"+pid, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.PrincipalOf(dir, 0, 0)
		fmt.Printf("manager %v %v\n", p.Manager, err)
		return
	}
	testutil.SkipUnlessRoot(t, "to make namespaces, and to be several users")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/test"
	if err := os.WriteFile(path, self, 0o755); err != nil {
		t.Fatal(err)
	}
	testutil.MakeSearchable(t, filepath.Dir(path))
	for _, tt := range []struct {
		what string
		argv []string
		want bool
	}{
		{"root", nil, true},
		{"root without capabilities", []string{"setpriv", "--bounding-set=-all"}, false},
		{"root of a container", []string{"unshare", "-p", "-f"}, false},
		{"root of a user namespace", []string{"unshare", "-U", "-r"}, false},
	} {
		_, pid := startProcess(t, nil, tt.argv...)
		c := exec.Command(path, "-test.run=^TestRootManagesUserService$")
		c.Env = append(os.Environ(), env+"="+pid)
		c.SysProcAttr, c.Dir = withCredential(65533), "/"
		out, err := c.CombinedOutput()
		if want := fmt.Sprintf("manager %v <nil>\n", tt.want); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("principal of %s: got %s and error %v, want %s", tt.what, out, err, want)
		}
	}
}
