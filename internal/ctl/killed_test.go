package ctl

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/testutil"
)

const fakeKilledServiceEnv = "VERBENA_TEST_REMAINS"

// init makes a process of TestDialReportsKilledService resemble a killed service. Its first thread has ended, and its
// other threads accept no connection.
func init() {
	path := os.Getenv(fakeKilledServiceEnv)
	if path == "" {
		return
	}
	if _, err := net.Listen("unix", path); err != nil {
		panic(err)
	}
	time.AfterFunc(time.Minute, func() { os.Exit(1) }) // ends the process if the test does not
	os.Stdout.WriteString("listening\n")
	unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // ends the first thread, which runs init functions
}

// TestDialReportsKilledService tests that Dial reports a killed service that cannot end, instead of waiting for its
// answer.
func TestDialReportsKilledService(t *testing.T) {
	loc := Location{Socket: filepath.Join(t.TempDir(), "sock")}
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), fakeKilledServiceEnv+"="+loc.Socket)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "the first thread to end", func() bool { return isProcessKilled(c.Process.Pid) })
	if client, err := Dial(loc); !errors.Is(err, errKilledService) || !strings.Contains(err.Error(), loc.Socket) {
		t.Errorf("Dial: got %v and error %v, want %v", client, err, errKilledService)
	}
}

func TestHasDyingThreadsReadsStatus(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tverbena\nState:\tS (sleeping)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n": false,
		"Name:\tverbena\nState:\tD (disk sleep)\nSigPnd:\t0000000000000100\n":                          true,
		"Name:\tverbena\nState:\tD (disk sleep)\nSigPnd:\t0000000000004000\n":                          false, // SIGTERM
		"Name:\tverbena\nState:\tZ (zombie)\nSigPnd:\t0000000000000000\n":                              true,
		"": false,
	} {
		if got := hasDyingThreads(status); got != want {
			t.Errorf("dying(%q): got %v, want %v", status, got, want)
		}
	}
}
