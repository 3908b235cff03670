package service

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Of several descriptors that come with a message one is taken, and the others are closed: leaktest sees what is left.
func TestSurplusDescriptors(t *testing.T) {
	ends := connected(t)
	msg := append(binary.LittleEndian.AppendUint32(nil, 2), "{}"...)
	if _, _, err := ends[1].WriteMsgUnix(msg, unix.UnixRights(0, 1, 2), nil); err != nil {
		t.Fatal(err)
	}
	before := openDescriptors(t)
	var r Request
	f, err := conn{UnixConn: ends[0]}.receive(&r)
	if err != nil || f == nil {
		t.Fatalf("receive: got %v, %v, want a descriptor", f, err)
	}
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("the descriptor would be inherited: %v", err)
	}
	if after := openDescriptors(t); after != before+1 {
		t.Errorf("descriptors: got %d, want %d and one more", after, before)
	}
	f.Close()
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// A message is as long as the receiver lets it be.
func TestMessageBound(t *testing.T) {
	for size, want := range map[int]string{100: "", 101: "longer than 100"} {
		ends := connected(t)
		body := append([]byte(`{}`), strings.Repeat(" ", size-2)...)
		if _, err := ends[1].Write(append(binary.LittleEndian.AppendUint32(nil, uint32(size)), body...)); err != nil {
			t.Fatal(err)
		}
		var r Request
		_, err := conn{UnixConn: ends[0]}.receiveWithin(&r, 100, 0, 0)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d bytes: got %v, want %q", size, err, want)
		}
	}
}

// A client that has ended is no process to look at, whoever has its number now.
func TestEndedPeer(t *testing.T) {
	const env = "VERBENA_TEST_CONNECT"
	if path := os.Getenv(env); path != "" { // the client
		if _, err := net.Dial("unix", path); err != nil {
			t.Fatal(err)
		}
		os.Exit(0) // with the connection open, for which the package's check would wait
	}
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client := exec.Command(os.Args[0], "-test.run=^TestEndedPeer$")
	client.Env = append(os.Environ(), env+"="+path)
	if out, err := client.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	who, err := peerOf(c)
	if err != nil || who.pid != client.Process.Pid {
		t.Fatalf("peerOf: got %+v, %v, want process %d", who, err, client.Process.Pid)
	}
	if f, err := who.process(c); !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, syscall.EINVAL) {
		t.Errorf("process: got %v, %v, want an error", f, err)
	}
}
