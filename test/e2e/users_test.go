//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"verbena/internal/ctl"
)

// startSharedService starts a root service that other users may use as the flags permit.
func startSharedService(t *testing.T, args ...string) *testService {
	t.Helper()
	needRoot(t)
	w := startService(t, testUser{"root", 0}, "", append([]string{"--link", "rxe0=" + unusedAddr()}, args...)...)
	os.Chmod(w.socket[:strings.LastIndex(w.socket, "/")], 0o755)
	return w
}

// asUser returns the same service for another user.
func (w *testService) asUser(uid uint32, groups ...uint32) *testService {
	o := *w
	o.user, o.groups = testUser{fmt.Sprint(uid), uid}, groups
	return &o
}

// TestDevicePermissions tests that owner, group and mode are visible and effective, both on the device and on the
// control socket.
func TestDevicePermissions(t *testing.T) {
	w := startSharedService(t, "--group", "12345", "--mode", "0660")
	raw := buildRawverbs(t)
	inside := w.asUser(1001, 12345)
	if out := inside.mustRun("run", "--", "stat", "-c", "%F %a %u:%g",
		"/dev/infiniband/uverbs0"); out != "character special file 660 0:12345\n" {
		t.Errorf("stat: %q", out)
	}
	if out := inside.mustRun("run", "--", raw, "transfer"); out != "ok\n" {
		t.Errorf("in the group: %q", out)
	}
	b, err := w.asUser(1002).verbenaCommand(w.contextWithTimeout(20), "run", "--", raw, "transfer").CombinedOutput()
	if err == nil || !strings.Contains(string(b), "permission denied") {
		t.Errorf("user outside of the group: got %v, %q", err, b)
	}
	// The permissions of the device apply even to a program that bypasses the permissions of the socket with an
	// inherited descriptor, or that later changes its user.
	b, err = w.verbenaCommand(w.contextWithTimeout(20), "run", "--", "setpriv", "--reuid=1002", "--regid=1002",
		"--clear-groups", raw,
		"transfer").CombinedOutput()
	if err == nil || !strings.Contains(string(b), "open uverbs0: permission denied") {
		t.Errorf("program after a change of its user: got %v, %q", err, b)
	}
	for _, args := range [][]string{{"stop"}, {"link", "add", "rxe9", "--addr", unusedAddr()}, {"link", "del", "rxe0"},
		{"fault", "add", "--dev", "rxe0", "--drop", "50%"}, {"fault", "clear"}} {
		b, err := inside.verbenaCommand(w.contextWithTimeout(20), args...).CombinedOutput()
		if err == nil || !strings.Contains(string(b), "operation not permitted") {
			t.Errorf("verbena %v as a user: %v, %q", args, err, b)
		}
	}
	if out := inside.mustRun("link", "show"); !strings.Contains(out, "rxe0") {
		t.Errorf("link show as a user: got %q", out)
	}
}

// TestUserCannotAccessOthersObjects tests that a program cannot access another user's objects, even if it knows their
// numbers and keys.
func TestUserCannotAccessOthersObjects(t *testing.T) {
	t.Parallel()
	raw := buildRawverbs(t)
	for _, args := range [][]string{nil, {"--wire"}} {
		t.Run(strings.Join(append([]string{"serve"}, args...), ""), func(t *testing.T) {
			w := startSharedService(t, append([]string{"--mode", "0666"}, args...)...)
			victim, attacker := w.asUser(1001), w.asUser(1002)
			v := victim.verbenaCommand(w.contextWithTimeout(120), "run", "--", raw, "reveal")
			in, err := v.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			pipe, err := v.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			v.Stderr = os.Stderr
			if err := v.Start(); err != nil {
				t.Fatal(err)
			}
			out := bufio.NewScanner(pipe)
			if !out.Scan() {
				t.Fatalf("victim: got no output: %v", v.Wait())
			}
			numbers := out.Text()
			exchange := func(text string) {
				t.Helper()
				fmt.Fprintln(in, text)
				if !out.Scan() || out.Text() != "ok" {
					t.Fatalf("the victim: got %q, %v", out.Text(), v.Wait())
				}
			}
			exchange("before")
			before := victim.showResources()
			b, err := attacker.verbenaCommand(w.contextWithTimeout(100), "run", "--", raw, "intrude", numbers).CombinedOutput()
			if err != nil || strings.Contains(string(b), "succeeded") || !strings.Contains(string(b), "tried ") {
				t.Errorf("the intruder: %v\n%s", err, b)
			}
			t.Logf("%s", b)
			exchange("again ") // the same duration as the first exchange
			if after := victim.showResources(); fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("objects of the victim: had %v before, got %v", before, after)
			}
			if r := attacker.showResources(); len(r) != 0 {
				t.Errorf("res show of the intruder: got %v", r)
			}
			if r := w.showResources(); len(r) != 1 {
				t.Errorf("res show of root: got %v", r)
			}
			in.Close()
			if err := v.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOtherUserIsRefused tests that a service of an ordinary user serves only that user, whether or not another user
// trusts it.
func TestOtherUserIsRefused(t *testing.T) {
	needRoot(t)
	w := startService(t, testUser{"nobody", 65534}, "", "--link", "rxe0="+unusedAddr(), "--mode", "0666")
	os.Chmod(w.socket[:strings.LastIndex(w.socket, "/")], 0o755)
	b, err := w.asUser(1002).verbenaCommand(w.contextWithTimeout(20), "run", "--", "true").CombinedOutput()
	if err == nil || !strings.Contains(string(b), "--service-user") {
		t.Errorf("%v: %q", err, b)
	}
	b, err = w.asUser(1002).verbenaCommand(w.contextWithTimeout(20), "--service-user", "nobody", "run", "--",
		"true").CombinedOutput()
	if err == nil || !strings.Contains(string(b), "run the service as the same user, or as root") {
		t.Errorf("with --service-user: %v: %q", err, b)
	}
}

// TestAttachIdentityIsFromKernel tests that the service takes the identity of a client from the kernel and not from the
// client's message, and accepts only a listener as the descriptor.
func TestAttachIdentityIsFromKernel(t *testing.T) {
	w := startSharedService(t, "--mode", "0666")
	for _, what := range []string{"/dev/null", "/dev/zero"} {
		f, err := os.Open(what)
		if err != nil {
			t.Fatal(err)
		}
		if err := attachWith(w, f); err == nil || !strings.Contains(err.Error(), "listener") {
			t.Errorf("%s: %v", what, err)
		}
		f.Close()
	}
	if out := w.mustRun("run", "--", "echo", "works"); out != "works\n" {
		t.Errorf("afterwards: %q", out)
	}
}

// attachWith asks the service to supervise a program, and sends a descriptor with the request.
func attachWith(w *testService, f *os.File) error {
	c, err := ctl.Dial(w.location())
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Attach(ctl.Attach{}, f)
	return err
}
