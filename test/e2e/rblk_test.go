//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// TestBlockDeviceSurvivesResets tests programs without RDMA support on a remote disk, while the devices at both ends
// are reset repeatedly. The programs copy a file system to the disk and back, and fio verifies random writes. No
// program may get an error.
func TestBlockDeviceSurvivesResets(t *testing.T) {
	t.Parallel()
	needProgram(t, "libnbd-bin", "nbdcopy", "nbdinfo")
	needProgram(t, "qemu-utils", "qemu-img")
	needProgram(t, "fio", "fio")
	needProgram(t, "e2fsprogs", "mkfs.ext4", "e2fsck")
	dir := t.TempDir()
	bin := filepath.Join(dir, "rblk")
	if out, err := exec.Command("go", "build", "-C", "../../examples/rblk", "-o", bin,
		"./cmd/rblk").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	run := func(name string, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		c := exec.Command(name, args...)
		c.Stdout, c.Stderr = &out, &out
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		late := time.AfterFunc(5*time.Minute, func() { c.Process.Kill() })
		defer late.Stop()
		if err := c.Wait(); err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out.String())
		}
		return out.String()
	}
	const size = 48 << 20
	disk, source, back := filepath.Join(dir, "disk.img"), filepath.Join(dir, "source.img"), filepath.Join(dir, "back.img")
	for _, f := range []string{disk, source} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(f, size); err != nil {
			t.Fatal(err)
		}
	}
	run("mkfs.ext4", "-q", "-d", "/usr/include/linux", source)

	target := startReadyProgram(t, regexp.MustCompile(`log in at (\S+)`), bin,
		"target", "--quiet", "--addr", unusedAddr(), "--port", "0", "--reset-every", "80ms", "data="+disk)
	socket := filepath.Join(dir, "nbd.sock")
	initiator := startReadyProgram(t, regexp.MustCompile(`data: (\d+) bytes`), bin,
		"disk", "--quiet", "--addr", unusedAddr(), "--target", target.ready, "--export", "data", "--nbd", socket,
		"--reset-every", "50ms", "--wait", "60s")
	if initiator.ready != strconv.Itoa(size) {
		t.Errorf("size of the disk: got %s bytes", initiator.ready)
	}
	uri := "nbd+unix:///?socket=" + socket

	run("nbdcopy", source, uri)
	run("qemu-img", "convert", "-f", "raw", "-O", "raw", uri, back)
	run("cmp", source, back)
	run("cmp", source, disk)
	run("e2fsck", "-fn", disk)
	for seed := range 4 {
		run("fio", "--name=random", "--ioengine=nbd", "--uri="+uri, "--rw=randrw", "--bsrange=512-64k", "--size=32m",
			"--iodepth=16",
			"--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", fmt.Sprint("--randseed=", 1+seed),
			"--output="+filepath.Join(dir, "fio.out"))
	}

	said := initiator.interrupt(t)
	t.Log(said)
	m := regexp.MustCompile(`(\d+) resets, (\d+) sessions, (\d+) requests posted again, (\d+) failed`).FindStringSubmatch(
		said)
	if m == nil {
		t.Fatalf("last output of the disk: got %s", said)
	}
	// A run takes about 2 to 4 s, in which about 40 to 80 resets happen.
	if resets, _ := strconv.Atoi(m[1]); resets < 20 || m[4] != "0" {
		t.Errorf("last output of the disk: got %s, want at least 20 resets and no failures", m[0])
	}
	target.interrupt(t)
}

// TestBlockDeviceSurvivesTargetKill tests that flushed data exists after the target was killed and restarted, both for
// the existing disk and for new ones. A disk that waits for a permanently lost target must still end on request.
func TestBlockDeviceSurvivesTargetKill(t *testing.T) {
	t.Parallel()
	needProgram(t, "qemu-utils", "qemu-io")
	dir := t.TempDir()
	bin := filepath.Join(dir, "rblk")
	if out, err := exec.Command("go", "build", "-C", "../../examples/rblk", "-o", bin,
		"./cmd/rblk").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	file, socket := filepath.Join(dir, "disk.img"), filepath.Join(dir, "nbd.sock")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := unusedAddr()
	target := func() *readyProgram {
		return startReadyProgram(t, regexp.MustCompile(`log in at (\S+)`), bin, "target", "--quiet", "--addr", addr,
			"data="+file)
	}
	io := func(command string) *exec.Cmd {
		return exec.Command("qemu-io", "-f", "raw", "-c", command, "nbd+unix:///?socket="+socket)
	}
	first := target()
	disk := startReadyProgram(t, regexp.MustCompile(`data: (\d+) bytes`), bin,
		"disk", "--quiet", "--addr", unusedAddr(), "--target", first.ready, "--export", "data", "--nbd", socket, "--wait",
		"60s", "--patience=-1s")
	if out, err := io("write -f -P 7 5000 100000").CombinedOutput(); err != nil {
		t.Fatalf("write: %v\n%s", err, out)
	}
	first.kill()
	second := target()
	if out, err := io("read -P 7 5000 100000").CombinedOutput(); err != nil || bytes.Contains(out, []byte("failed")) {
		t.Errorf("read from the restarted target: %v\n%s", err, out)
	}
	second.kill()
	held := io("write -P 8 0 4096")
	if err := held.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond) // the disk has sent its request at this point
	late := time.AfterFunc(time.Minute, func() { disk.cmd.Process.Kill() })
	defer late.Stop()
	t.Log(disk.interrupt(t))
	if err := held.Wait(); err == nil {
		t.Error("write to a stopped disk: got success, want an error")
	}
}

// readyProgram is a program that prints a line when it is ready.
type readyProgram struct {
	cmd   *exec.Cmd
	ready string // first submatch of ready
	rest  chan string
}

func startReadyProgram(t *testing.T, ready *regexp.Regexp, name string, args ...string) *readyProgram {
	t.Helper()
	s := &readyProgram{cmd: exec.Command(name, args...), rest: make(chan string, 1)}
	var errs bytes.Buffer
	s.cmd.Stderr = &errs
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		s.cmd.Wait()
	})
	r := bufio.NewReader(out)
	line, err := r.ReadString('\n')
	m := ready.FindStringSubmatch(line)
	if m == nil {
		s.cmd.Wait()
		t.Fatalf("%s %v: %q, %v\n%s", name, args, line, err, errs.String())
	}
	s.ready = m[1]
	go func() {
		b, _ := io.ReadAll(r)
		s.rest <- string(b)
	}()
	return s
}

// kill kills the program, without an orderly end.
func (s *readyProgram) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

// interrupt interrupts the program, and returns its output since it was ready.
func (s *readyProgram) interrupt(t *testing.T) string {
	t.Helper()
	s.cmd.Process.Signal(syscall.SIGINT)
	said := <-s.rest
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("%s: %v", fmt.Sprint(s.cmd.Args), err)
	}
	return said
}
