package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/internal/testutil"
)

func init() {
	testPrograms["gives"] = programPassDevice
	testPrograms["given"] = programInheritDevice
}

// programPassDevice opens the device, and passes it to a process of another user and to a process of its own user.
func programPassDevice(args []string) {
	fd := openDevice()
	number := must(unix.Dup(fd))
	must(unix.FcntlInt(uintptr(number), unix.F_SETFD, 0))
	for _, uid := range args {
		c := exec.Command("/proc/self/exe", strconv.Itoa(number))
		c.Env = append(os.Environ(), programEnvVar+"=given")
		id := uint32(must(strconv.Atoi(uid)))
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		must(0, c.Run())
	}
	op := fakeOp{op: opIncrement, in: 1}
	panicUnless(issueOp(fd, &op) == 0, "the owner's command")
}

// programInheritDevice uses an inherited descriptor of the device.
func programInheritDevice(args []string) {
	fd := must(strconv.Atoi(args[0]))
	op := fakeOp{op: opIncrement, in: 1}
	e := issueOp(fd, &op)
	var werr error
	if os.Getuid() != 0 { // a command of the owner would wait in the fake device
		_, werr = unix.Write(fd, make([]byte, 64))
	}
	fmt.Printf("user %d: ioctl %v, write %v\n", os.Getuid(), e, werr)
}

// TestFileOfAnotherUserIsRefused tests that commands on a device file opened by another user are refused, both by
// ioctl(2) and by write(2).
func TestFileOfAnotherUserIsRefused(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to act as several users")
	w := newFixture(t, func(c *SupervisorConfig) { c.Quota = quota.New(quota.Limits{}) })
	own := w.mustRunSelf("gives", "0", "65533")
	const want = "user 0: ioctl errno 0, write <nil>\nuser 65533: ioctl permission denied, write permission denied"
	if own != want {
		t.Errorf("results of the commands: got\n%s\nwant\n%s", own, want)
	}
}
