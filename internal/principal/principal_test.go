package principal

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/internal/testutil"
)

// running starts a process below a command, and returns its directory in /proc.
func running(t *testing.T, attr *syscall.SysProcAttr, argv ...string) (dir int, pid string) {
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
		t.Fatalf("%v: %v", argv, err)
	}
	t.Cleanup(func() {
		in.Close()
		c.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "ready-") {
		t.Fatalf("%v: got %q, %v", argv, line, err)
	}
	// unshare(1) has a child where it makes a process id namespace.
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

func as(uid uint32) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// TestManager: root manages root's service with capabilities that count in its namespaces, and not without. Others do if their id
// was named.
func TestManager(t *testing.T) {
	testutil.NeedRoot(t, "to make namespaces, and to be several users")
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
		{"a user", user, as(user), nil, false},
		{"a user who is root of a user namespace", user, as(user), []string{"unshare", "-U", "-r"}, false},
		{"a named user", named, as(named), nil, true},
		{"the id of those without one", 65534, as(65534), nil, false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			dir, _ := running(t, tt.attr, tt.argv...)
			p, err := a.Of(dir, tt.uid, tt.uid)
			if err != nil || p.Manager != tt.want || p.Anonymous != (tt.uid == 65534) {
				t.Errorf("got %+v, %v, want manager %v", p, err, tt.want)
			}
		})
	}
	if p := a.Unseen(0); p.Manager {
		t.Error("root, whose process cannot be seen, manages")
	}
	if p := a.Unseen(named); !p.Manager {
		t.Error("a named user, whose process cannot be seen, does not manage")
	}
	// The connection is a user's, and its process executes a set-uid program meanwhile.
	dir, _ := running(t, nil)
	if p, err := a.Of(dir, user, user); err != nil || p.Caps != 0 || p.Manager {
		t.Errorf("a user's connection with the capabilities of root: got %+v, %v", p, err)
	}
}

// TestOwnUser: a service of an ordinary user's, or of root's without capabilities, is managed by its own user with at least its
// capabilities, outside of other containers.
func TestOwnUser(t *testing.T) {
	testutil.NeedRoot(t, "to make namespaces")
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
		{"the same in another container", []string{"unshare", "-p", "-f", "setpriv", "--bounding-set=-all,+chown,+kill"}, false},
	} {
		dir, _ := running(t, nil, tt.argv...)
		if p, err := a.Of(dir, 0, 0); err != nil || p.Manager != tt.want {
			t.Errorf("%s: got %+v, %v, want manager %v", tt.what, p, err, tt.want)
		}
	}
}

// TestAccount: a process is charged as its user id, in a container as that of the container, and in user namespaces as whoever has
// made the outermost one. No user becomes several by making namespaces.
func TestAccount(t *testing.T) {
	testutil.NeedRoot(t, "to make namespaces, and to be several users")
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
		container string // the namespace that identifies it
	}{
		{"a user", user, as(user), nil, user, ""},
		{"a mount namespace", 0, nil, []string{"unshare", "-m"}, 0, ""},
		{"a container", 0, nil, []string{"unshare", "-p", "-f"}, 0, "ns/pid"},
		{"a user in a container", user, nil, []string{"unshare", "-p", "-f", "setpriv", "--reuid=65533", "--regid=65533", "--clear-groups"}, user, "ns/pid"},
		{"a user's namespaces", user, as(user), []string{"unshare", "-U", "-r", "-p", "-f"}, user, ""},
		{"a user's nested namespaces", user, as(user), []string{"unshare", "-U", "-r", "unshare", "-U", "-r", "-p", "-f"}, user, ""},
		{"a container with a user namespace", 0, nil, []string{"unshare", "-U", "-r", "-p", "-f"}, 0, "ns/user"},
		{"a user namespace in a container", 0, nil, []string{"unshare", "-p", "-f", "setpriv", "--bounding-set=-all", "unshare", "-U"}, 0, "ns/pid"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			dir, pid := running(t, tt.attr, tt.argv...)
			want := quota.ID{UID: tt.want}
			if tt.container != "" {
				want.Container = inode(t, "/proc/"+pid+"/"+tt.container)
			}
			if p, err := a.Of(dir, tt.uid, tt.uid); err != nil || p.Account != want {
				t.Errorf("got %+v, %v, want %+v", p.Account, err, want)
			}
		})
	}
	// Subordinate ids: root, as newuidmap(1), maps several into a namespace of the user's.
	dir, pid := running(t, as(user), "unshare", "-U")
	if err := os.WriteFile("/proc/"+pid+"/uid_map", []byte("0 100000 10"), 0); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []int{100000, 100007} {
		if p, err := a.Of(dir, uid, uid); err != nil || p.Account != (quota.ID{UID: user}) {
			t.Errorf("subordinate id %d: got %+v, %v, want that of user %d", uid, p.Account, err, user)
		}
	}
}

// TestEndedProcess: nothing is made up of a process that has ended.
func TestEndedProcess(t *testing.T) {
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
	if _, err := a.Of(dir, os.Getuid(), os.Getuid()); err != nil {
		t.Errorf("while it runs: %v", err)
	}
	c.Process.Kill()
	c.Wait()
	if p, err := a.Of(dir, 0, 0); err == nil {
		t.Errorf("afterwards: got %+v, want an error", p)
	}
}

// TestServiceOfAUser: root manages the service of an ordinary user, which may not look at root's namespaces; root of a container
// or of a user namespace does not. The test is that service.
func TestServiceOfAUser(t *testing.T) {
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
		p, err := a.Of(dir, 0, 0)
		fmt.Printf("manager %v %v\n", p.Manager, err)
		return
	}
	testutil.NeedRoot(t, "to make namespaces, and to be several users")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/test"
	if err := os.WriteFile(path, self, 0o755); err != nil {
		t.Fatal(err)
	}
	for d := path; d != "/tmp" && d != "/"; d = filepath.Dir(d) {
		os.Chmod(d, 0o755)
	}
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
		_, pid := running(t, nil, tt.argv...)
		c := exec.Command(path, "-test.run=^TestServiceOfAUser$")
		c.Env = append(os.Environ(), env+"="+pid)
		c.SysProcAttr, c.Dir = as(65533), "/"
		out, err := c.CombinedOutput()
		if want := fmt.Sprintf("manager %v <nil>\n", tt.want); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: got %s, %v, want %s", tt.what, out, err, want)
		}
	}
}
