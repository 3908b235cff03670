package supervisor

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func init() {
	testPrograms["swaps"] = programSwapFile
	if os.Getenv(programEnvVar) == "swaps" {
		runtime.LockOSThread() // keeps the main thread for the program, because pidfd_getfd(2) uses the main thread's table
	}
}

// programSwapFile duplicates a device file on a thread that does not share descriptors with the main thread. After a
// line of input, another thread replaces the file at that number.
func programSwapFile(args []string) {
	device := openDevice()
	other := must(unix.Open(args[0], unix.O_PATH|unix.O_CLOEXEC, 0))
	files := make(chan func()) // functions for a thread with the table that the main thread leaves
	go func() {
		runtime.LockOSThread()
		for f := range files {
			f()
		}
	}()
	ready := make(chan bool)
	files <- func() { close(ready) } // then the thread exists
	<-ready
	must(0, unix.Unshare(unix.CLONE_FILES))
	unix.Close(device)
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		_, err := unix.Dup(device)
		done <- err
	}()
	bufio.NewReader(os.Stdin).ReadString('\n')
	files <- func() {
		must(0, unix.Dup3(other, device, unix.O_CLOEXEC))
		fmt.Println("swapped")
	}
	fmt.Println("dup:", <-done)
	os.Exit(0)
}

// TestSwappedFileIsNotDuplicated tests that the supervisor does not open a file that a program substitutes for its
// device file during a duplicate. The program's thread has a separate table of descriptors, so pidfd_getfd(2) does
// not find the device.
func TestSwappedFileIsNotDuplicated(t *testing.T) {
	for _, tt := range []struct{ point, want string }{
		{"follow", "dup: bad file descriptor"},
		{"reopen", "dup: <nil>"},
	} {
		t.Run(tt.point, func(t *testing.T) { testSwappedFile(t, tt.point, tt.want) })
	}
}

func testSwappedFile(t *testing.T, at, want string) {
	reached, goOn := make(chan struct{}), make(chan struct{})
	hit := false
	w := newFixture(t, func(c *SupervisorConfig) {
		c.pause = func(point string, _ uint32) {
			if point == at && !hit {
				hit = true
				close(reached)
				<-goOn
			}
		}
	})
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
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
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	r := w.startWithInput(in, []string{programEnvVar + "=swaps"}, "/proc/self/exe", secret)
	in.Close()
	w.waitForClose("the comparison", reached)
	io.WriteString(out, "\n")
	w.waitForText(r, "swapped")
	close(goOn)
	w.waitForText(r, want)
	w.waitForExit(r)
	w.logs.takeLines() // removes the line about the refusal
	if n, err := unix.Read(watch, make([]byte, 256)); err != unix.EAGAIN {
		t.Errorf("inotify events of an open by the supervisor: got %d bytes and error %v, want EAGAIN", n, err)
	}
}
