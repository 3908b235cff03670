package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"verbena/service"
)

// TestHolders: a process is ended for a queue file, and not for another file that a user has put at the same path in a
// mount namespace of its own, and may have passed on to a process of another user.
func TestHolders(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	files := queueFiles{dir: dir, mount: service.MountID(string(info))}
	start := func(script string, attr *syscall.SysProcAttr) int {
		t.Helper()
		cmd := exec.Command("sh", "-c", script+` && exec 3>"$1/q" && echo ready && read end`, "sh", dir)
		cmd.SysProcAttr, cmd.Stderr = attr, os.Stderr
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if err := cmd.Start(); err != nil {
			t.Skip("user namespaces: ", err)
		}
		t.Cleanup(func() {
			in.Close()
			_ = cmd.Wait() // read has failed
		})
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			t.Fatalf("%s: got %q, %v, want ready", script, line, err)
		}
		return cmd.Process.Pid
	}
	held := start("true", nil)
	fake := start(`mount -t tmpfs none "$1"`, &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	})
	if got, want := files.holders(), []int{held}; !slices.Equal(got, want) {
		t.Errorf("holders: got %v, want %v; process %d holds another file of that path", got, want, fake)
	}
}
