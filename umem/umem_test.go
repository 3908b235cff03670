package umem

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"verbena/internal/testutil"
)

// The child's main goroutine must remain on the main thread, because the capabilities of that thread are those of the
// process.
func init() {
	if os.Getenv("UMEM_TEST_CHILD") != "" {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	if os.Getenv("UMEM_TEST_CHILD") != "" {
		runChild()
		return
	}
	goleak.VerifyTestMain(m)
}

// childPages is the number of pages of the child's mapping: two writable pages, one read-only page, one page without
// rights.
const childPages = 4

// runChild maps its pages and prints their address. runChild then answers each line of input with the contents of the
// first page.
func runChild() {
	mem, err := unix.Mmap(-1, 0, childPages*int(PageSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(err)
	}
	for i := range mem {
		mem[i] = patternByte(i)
	}
	protect := func(page, prot int) {
		if err := unix.Mprotect(mem[page*int(PageSize):(page+1)*int(PageSize)], prot); err != nil {
			panic(err)
		}
	}
	protect(2, unix.PROT_READ)
	protect(3, unix.PROT_NONE)
	switch mode := os.Getenv("UMEM_TEST_CHILD"); mode {
	case "limited", "namespace":
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 3 * PageSize, Max: 3 * PageSize}); err != nil {
			panic(err)
		}
		if mode == "limited" {
			dropCapabilities()
		}
	}
	fmt.Println(addressOf(mem))
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if in.Text() == "exec" {
			panic(syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
		}
		if in.Text() == "protect" {
			protect(0, unix.PROT_READ)
			fmt.Println("protected")
			continue
		}
		if os.Getenv("UMEM_TEST_CHILD") == "mainexit" {
			endMainThread()
		}
		fmt.Printf("%x\n", mem[:PageSize])
	}
}

// endMainThread ends the calling thread, which must be the main thread. The goroutine continues on another thread.
func endMainThread() {
	go func() {
		runtime.LockOSThread()
		testutil.PollUntil(func() bool { // waits until the main thread is a zombie
			b, err := os.ReadFile("/proc/self/stat")
			return err == nil && bytes.Contains(b, []byte(") Z "))
		})
		fmt.Println("main has ended")
		_, _ = io.Copy(io.Discard, os.Stdin) // waits until the parent ends
		os.Exit(0)
	}()
	_, _, _ = syscall.Syscall(unix.SYS_EXIT, 0, 0, 0) // makes the runtime take the processor from the ended thread
}

func patternByte(i int) byte { return byte(i*7 + i>>12) }

func dropCapabilities() {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		panic(err)
	}
}

type childProcess struct {
	*Process
	base  uint64
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
}

// testEachAccessMethod runs a test twice, once for each method of access to another process.
func testEachAccessMethod(t *testing.T, f func(t *testing.T, start func(*testing.T, string) *childProcess)) {
	t.Run("process_vm", func(t *testing.T) {
		defer func(n uint64) { maxFileAccess = n }(maxFileAccess)
		maxFileAccess = 0
		f(t, func(t *testing.T, mode string) *childProcess {
			c := startChild(t, mode)
			c.trusting = true
			return c
		})
	})
	t.Run("untrusting", func(t *testing.T) { f(t, startChild) })
	t.Run("mem", func(t *testing.T) {
		f(t, func(t *testing.T, mode string) *childProcess {
			c := startChild(t, mode)
			direct := c.Process
			c.Process = openBound(t, c.cmd.Process.Pid)
			direct.Close()
			t.Cleanup(func() { c.Close() })
			return c
		})
	})
}

// openBound opens the memory of a process for access by files only.
func openBound(t *testing.T, pid int) *Process {
	t.Helper()
	p, err := NewProcess(processConfig(t, pid, fmt.Sprintf("/proc/%d/mem", pid)))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func processConfig(t *testing.T, pid int, mem string) ProcessConfig {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	m, err := os.OpenFile(mem, os.O_RDWR, 0)
	if err != nil {
		if m, err = os.Open(mem); err != nil {
			t.Fatal(err)
		}
	}
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	return ProcessConfig{PID: pid, Pidfd: os.NewFile(uintptr(fd), "pidfd"), Mem: m, Maps: maps, Bound: true}
}

// startChild runs this test binary as a child and opens the memory of the child.
func startChild(t *testing.T, mode string) *childProcess {
	t.Helper()
	c := &childProcess{cmd: exec.Command("/proc/self/exe")}
	c.cmd.Env = append(os.Environ(), "UMEM_TEST_CHILD="+mode, "GOMAXPROCS=1")
	c.cmd.Stderr = os.Stderr
	if mode == "namespace" {
		ids := []syscall.SysProcIDMap{{Size: 1}}
		c.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	}
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	c.out = bufio.NewReader(out)
	if _, err := fmt.Fscanln(c.out, &c.base); err != nil {
		t.Fatalf("address of the child: got %v, want a number", err)
	}
	if c.Process, err = OpenProcess(c.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (c *childProcess) kill() {
	if c.cmd.ProcessState == nil {
		c.cmd.Process.Kill()
		c.cmd.Wait()
	}
}

// readFirstPage returns the contents of the first page as the child reads them.
func (c *childProcess) readFirstPage(t *testing.T) []byte {
	t.Helper()
	fmt.Fprintln(c.stdin)
	var b []byte
	if _, err := fmt.Fscanf(c.out, "%x\n", &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// splitBuffer cuts b into n buffers.
func splitBuffer(b []byte, n int) [][]byte {
	v := make([][]byte, n)
	for i := range v {
		v[i] = b[i*len(b)/n : (i+1)*len(b)/n]
	}
	return v
}

func TestProcessReadsAndWritesAnother(t *testing.T) {
	testEachAccessMethod(t, testProcessReadsAndWritesAnother)
}

func testProcessReadsAndWritesAnother(t *testing.T, start func(*testing.T, string) *childProcess) {
	c := start(t, "plain")
	// The cases include more buffers than one call accepts, and empty buffers.
	for _, buffers := range []int{1, 2, iovStack, iovStack + 1, iovMax, iovMax + 1, 3000} {
		got := make([]byte, PageSize)
		if err := c.ReadV(splitBuffer(got, buffers), c.base+PageSize); err != nil {
			t.Fatalf("%d buffers: %v", buffers, err)
		}
		for i, b := range got {
			if want := patternByte(i + int(PageSize)); b != want {
				t.Fatalf("read with %d buffers: byte %d: got %#x, want %#x", buffers, i, b, want)
			}
		}
		want := bytes.Repeat([]byte{byte(buffers)}, int(PageSize))
		if err := c.WriteV(splitBuffer(want, buffers), c.base); err != nil {
			t.Fatalf("%d buffers: %v", buffers, err)
		}
		if !bytes.Equal(c.readFirstPage(t), want) {
			t.Fatalf("write with %d buffers: got other bytes in the child, want the written ones", buffers)
		}
	}
	if err := c.ReadV(make([][]byte, 5), 0); err != nil {
		t.Errorf("nothing to read: %v", err)
	}
}

func TestProcessAccessRespectsProtection(t *testing.T) {
	testEachAccessMethod(t, testProcessProtection)
}

func testProcessProtection(t *testing.T, start func(*testing.T, string) *childProcess) {
	c := start(t, "plain")
	page := func(n uint64) uint64 { return c.base + n*PageSize }
	for _, test := range []struct {
		name         string
		addr, length uint64
		read, write  error
	}{
		{"empty at an address that is not mapped", 0, 0, nil, nil},
		{"writable", page(0), 2 * PageSize, nil, nil},
		{"unaligned", page(0) + 100, 17, nil, nil},
		{"up to the end of the readable pages", page(0), 3 * PageSize, nil, ErrFault},
		{"read-only", page(2), 1, nil, ErrFault},
		{"last byte read-only", page(1), PageSize + 1, nil, ErrFault},
		{"no rights", page(3), 1, ErrFault, ErrFault},
		{"last byte without rights", page(2), PageSize + 1, ErrFault, ErrFault},
		{"not mapped", 0x1000, 1, ErrFault, ErrFault},
		{"beyond user space", 1 << 63, 1, ErrFault, ErrFault},
	} {
		t.Run(test.name, func(t *testing.T) {
			buf := make([]byte, test.length)
			if err := c.ReadV([][]byte{buf}, test.addr); !errors.Is(err, test.read) {
				t.Errorf("read: %v, want %v", err, test.read)
			}
			if err := c.Check(test.addr, test.length, false); !errors.Is(err, test.read) {
				t.Errorf("check for reading: got %v, want %v", err, test.read)
			}
			if err := c.WriteV([][]byte{buf}, test.addr); !errors.Is(err, test.write) {
				t.Errorf("write: %v, want %v", err, test.write)
			}
			if err := c.Check(test.addr, test.length, true); !errors.Is(err, test.write) {
				t.Errorf("check for writing: got %v, want %v", err, test.write)
			}
		})
	}
	if err := c.Check(math.MaxUint64, 2, false); !errors.Is(err, ErrRange) {
		t.Errorf("check of a range that wraps around: got %v, want %v", err, ErrRange)
	}
}

func TestAccessAfterExitFails(t *testing.T) { testEachAccessMethod(t, testProcessAfterExit) }

func testProcessAfterExit(t *testing.T, start func(*testing.T, string) *childProcess) {
	for _, test := range []struct {
		name string
		end  func(c *childProcess)
	}{
		{"killed", func(c *childProcess) { c.kill() }},
		{"killed, not yet waited for", func(c *childProcess) { c.cmd.Process.Kill() }},
		{"marked dead", func(c *childProcess) { c.MarkDead() }},
		{"closed", func(c *childProcess) { c.Close() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := start(t, "plain")
			test.end(c)
			select {
			case <-c.Exited():
			case <-time.After(10 * time.Second):
				t.Fatal("end of the process: got no report within 10 s, want one")
			}
			if err := c.ReadV([][]byte{make([]byte, 8)}, c.base); !errors.Is(err, ErrFault) {
				t.Errorf("read: %v", err)
			}
			if err := c.WriteV([][]byte{make([]byte, 8)}, c.base); !errors.Is(err, ErrFault) {
				t.Errorf("write: %v", err)
			}
			if err := c.Check(c.base, 8, false); !errors.Is(err, ErrFault) {
				t.Errorf("check: %v", err)
			}
		})
	}
}

// TestExecEndsTheAddressSpace checks memory that was opened or registered before Bind and an exec. The memory must
// never refer to the new program.
func TestExecEndsTheAddressSpace(t *testing.T) {
	testEachAccessMethod(t, func(t *testing.T, start func(*testing.T, string) *childProcess) {
		c := start(t, "exec")
		old, base := c.Process, c.base
		region, err := Get(old, nil, base, 2*PageSize, base, true)
		if err != nil {
			t.Fatal(err)
		}
		everything, err := OnDemand(old, 0, ImplicitLength, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := old.Bind(time.Second); err != nil {
			t.Fatal(err)
		}
		if old.SpaceGone() {
			t.Error("Left before the exec: got true, want false")
		}
		if err := region.WriteV([][]byte{{1, 2}}, base); err != nil {
			t.Errorf("write when bound, before the exec: got %v, want nil", err)
		}
		fmt.Fprintln(c.stdin, "exec")
		if _, err := fmt.Fscanln(c.out, &c.base); err != nil {
			t.Fatal(err)
		}
		if !old.SpaceGone() {
			t.Error("Left after the exec: got false, want true")
		}
		if old.FoundGone() {
			t.Error("FoundGone before an access: got true, want false")
		}
		if err := region.ReadV([][]byte{make([]byte, 1)}, base); err == nil || !old.FoundGone() {
			t.Errorf("read after the exec: got %v, found gone: %v; want an error, true", err, old.FoundGone())
		}
		next, err := OpenProcess(c.cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		got := make([]byte, 8)
		if err := next.ReadV([][]byte{got}, c.base); err != nil {
			t.Fatalf("read of the new program by a new Process: got %v, want nil", err)
		}
		for name, r := range map[string]*Region{"a region": region, "all memory": everything} {
			for _, at := range []uint64{base, c.base} {
				if !r.Contains(at, 8) {
					continue
				}
				if err := r.ReadV([][]byte{got}, at); !errors.Is(err, ErrFault) {
					t.Errorf("read of the new program by %s at %#x: got %v, want ErrFault", name, at, err)
				}
				if err := r.WriteV([][]byte{got}, at); !errors.Is(err, ErrFault) {
					t.Errorf("write to the new program by %s at %#x: got %v, want ErrFault", name, at, err)
				}
				if err := r.Check(false); !errors.Is(err, ErrFault) {
					t.Errorf("%s is checked at %#x: %v", name, at, err)
				}
			}
		}
		if _, err := Get(old, nil, c.base, 8, c.base, false); !errors.Is(err, ErrFault) {
			t.Errorf("registration in the old address space: got %v, want ErrFault", err)
		}
	})
}

// TestAccessWithReusedPIDFails checks accesses after the process has ended and another process has received its number.
// The pidfd has not reported the end yet.
func TestAccessWithReusedPIDFails(t *testing.T) {
	for _, least := range []uint64{0, maxFileAccess} {
		t.Run(fmt.Sprintf("by file up to %d bytes", least), func(t *testing.T) {
			defer func(n uint64) { maxFileAccess = n }(maxFileAccess)
			maxFileAccess = least
			gone, other := startChild(t, "plain"), startChild(t, "plain")
			gone.kill()
			p, err := NewProcess(func() ProcessConfig {
				cfg := processConfig(t, other.PID(), fmt.Sprintf("/proc/%d/mem", other.PID()))
				cfg.Bound = false
				return cfg
			}())
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			// From here on the Process belongs to the former process, except for the number.
			p.once.Do(func() {})
			p.files, p.pidfdFD = gone.files, gone.pidfdFD
			want := other.readFirstPage(t)
			got := make([]byte, 8)
			if err := p.ReadV([][]byte{got}, other.base); !errors.Is(err, ErrFault) {
				t.Errorf("read %x: %v", got, err)
			}
			if err := p.WriteV([][]byte{[]byte("written!")}, other.base); !errors.Is(err, ErrFault) {
				t.Errorf("write: %v", err)
			}
			if !bytes.Equal(other.readFirstPage(t), want) {
				t.Error("memory of the other process: got a change, want none")
			}
			if limit, err := p.LockLimit(); !errors.Is(err, ErrLimit) {
				t.Errorf("limit %d, %v", limit, err)
			}
			p.once = sync.Once{}
		})
	}
}

// TestAccessesAreBounded checks the limit of concurrent accesses for both methods.
func TestAccessesAreBounded(t *testing.T) {
	testEachAccessMethod(t, func(t *testing.T, start func(*testing.T, string) *childProcess) {
		c := start(t, "plain")
		c.copies = NewCopies(1, nil)
		b := [][]byte{make([]byte, 8)}
		if err := errors.Join(c.ReadV(b, c.base), c.WriteV(b, c.base), c.Check(c.base, 8, true),
			c.Exact().ReadV(b, c.base)); err != nil {
			t.Fatal(err)
		}
		if err := c.copies.beginAccess(); err != nil { // another access, which does not end
			t.Fatal(err)
		}
		c.copies.stuck.Store(true)
		for name, err := range map[string]error{
			"read": c.ReadV(b, c.base), "write": c.WriteV(b, c.base), "check": c.Check(c.base, 8, true),
			"read within a call": c.Exact().ReadV(b, c.base),
		} {
			if !errors.Is(err, ErrStuck) {
				t.Errorf("%s: %v", name, err)
			}
		}
		c.copies.endAccess()
		if n := c.copies.InProgress(); n != 0 {
			t.Errorf("%d go on", n)
		}
	})
}

// TestProtectionChangeIsSeen checks that a change to read-only takes effect within the time limit.
func TestProtectionChangeIsSeen(t *testing.T) {
	c := startChild(t, "protect")
	page := [][]byte{make([]byte, PageSize)}
	if err := c.WriteV(page, c.base); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(c.stdin, "protect")
	if line, err := c.out.ReadString('\n'); err != nil || line != "protected\n" {
		t.Fatalf("%q, %v", line, err)
	}
	time.Sleep(2 * mappingLifetime) // the test waits because it tests the limit itself
	if err := c.WriteV(page, c.base); !errors.Is(err, ErrFault) {
		t.Errorf("write: %v", err)
	}
}

// TestExactSpaceIsBound checks that memory for one call is bound from the start. A region created from it must not
// be bound.
func TestExactSpaceIsBound(t *testing.T) {
	c := startChild(t, "exec")
	e := c.Exact()
	got := make([]byte, 4)
	if err := e.ReadV([][]byte{got}, c.base+PageSize); err != nil || got[0] != patternByte(int(PageSize)) {
		t.Fatalf("read %x, %v", got, err)
	}
	if err := e.WriteV([][]byte{{9}}, c.base+2*PageSize); !errors.Is(err, ErrFault) {
		t.Errorf("write to a read-only page: got %v, want ErrFault", err)
	}
	if err := errors.Join(e.Check(c.base, PageSize, true), e.WriteV([][]byte{{9}}, c.base)); err != nil {
		t.Error(err)
	}
	r, err := Get(e, nil, c.base, PageSize, c.base, true)
	if err != nil || r.space != Space(c.Process) {
		t.Errorf("a region is of %v, %v", r.space, err)
	}
	fmt.Fprintln(c.stdin, "exec")
	if _, err := fmt.Fscanln(c.out, &c.base); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{e.ReadV([][]byte{got}, c.base), e.WriteV([][]byte{got}, c.base),
		e.Check(c.base, 1, false)} {
		if !errors.Is(err, ErrFault) {
			t.Errorf("after the exec: %v", err)
		}
	}
}

// TestBindWaitIsLimited checks that Bind waits only for a limited time for an access by number. Such an access need not
// have begun in the kernel yet.
func TestBindWaitIsLimited(t *testing.T) {
	c := startChild(t, "plain")
	if !c.beginAccess() {
		t.Fatal("enter before Bind: got false, want true")
	}
	if err := c.Bind(10 * time.Millisecond); !errors.Is(err, ErrExec) || !errors.Is(err, unix.EAGAIN) {
		t.Errorf("Bind during an access: got %v, want ErrExec and EAGAIN", err)
	}
	if c.beginAccess() {
		t.Error("enter after Bind: got true, want false")
	}
	got := make([]byte, 1)
	if err := c.ReadV([][]byte{got}, c.base+1); err != nil || got[0] != patternByte(1) {
		t.Errorf("meanwhile: %x, %v", got, err)
	}
	if err := c.Bind(0); !errors.Is(err, ErrExec) {
		t.Errorf("a second time: %v", err)
	}
	bound := make(chan error)
	go func() { bound <- c.Bind(10 * time.Second) }()
	c.endAccess()
	if err := <-bound; err != nil {
		t.Error(err)
	}
}

// TestProcessOutlivesMainThread checks that a process is accessible as long as one of its threads exists.
func TestProcessOutlivesMainThread(t *testing.T) {
	c := startChild(t, "mainexit")
	fmt.Fprintln(c.stdin, "go on")
	if line, err := c.out.ReadString('\n'); err != nil || line != "main has ended\n" {
		t.Fatalf("%q, %v", line, err)
	}
	got := make([]byte, 2)
	if err := c.ReadV([][]byte{got}, c.base); err != nil || got[1] != patternByte(1) {
		t.Errorf("read: %x, %v", got, err)
	}
	if err := errors.Join(c.WriteV([][]byte{got}, c.base), c.Check(c.base, 2, true)); err != nil {
		t.Error(err)
	}
	if !c.Alive() {
		t.Error("not alive")
	}
}

// TestOnlyProcMemIsAccepted checks that files other than /proc/PID/mem are rejected, because the sender may be
// malicious.
func TestOnlyProcMemIsAccepted(t *testing.T) {
	own := filepath.Join(t.TempDir(), "proc", "1")
	if err := os.MkdirAll(own, 0o700); err != nil {
		t.Fatal(err)
	}
	own = filepath.Join(own, "mem")
	if err := os.WriteFile(own, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/proc/self/maps", "/proc/version", "/dev/zero", os.DevNull, "/proc/self", own} {
		p, err := NewProcess(processConfig(t, os.Getpid(), path))
		if !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: %v, %v", path, p, err)
		}
	}
}

// TestMappingsAreReadWithoutQuery checks that the list of mappings is read on kernels before Linux 6.11.
func TestMappingsAreReadWithoutQuery(t *testing.T) {
	c := startChild(t, "plain")
	for _, noQuery := range []bool{false, true} {
		c.files.noQuery.Store(noQuery)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 20 {
					if err := c.Check(c.base, 2*PageSize, true); err != nil {
						t.Error(err)
					}
					if err := c.Check(c.base, 3*PageSize, true); !errors.Is(err, ErrFault) {
						t.Error(err)
					}
					if err := c.Check(c.base, 4*PageSize, false); !errors.Is(err, ErrFault) {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
}

// TestBlockedAccessesAreLimited checks that accesses that are blocked block further accesses, but only those of the
// same user.
func TestBlockedAccessesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err error
		c, other := NewCopies(2, nil), NewCopies(2, nil)
		for range 2 {
			if err := c.beginAccess(); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		refused := make(chan error, 1)
		go func() { refused <- c.beginAccess() }()
		select {
		case err = <-refused:
		case <-time.After(10 * copiesTimeout):
			t.Fatal("access beyond the limit: still waiting after 10 times copiesTimeout, want ErrStuck")
		}
		if !errors.Is(err, ErrStuck) || !errors.Is(err, syscall.EFAULT) {
			t.Errorf("beyond the limit: %v", err)
		}
		if d := time.Since(start); d < copiesTimeout || d > 2*copiesTimeout {
			t.Errorf("refused after %v", d)
		}
		start = time.Now()
		if err := c.beginAccess(); !errors.Is(err, ErrStuck) {
			t.Errorf("once stuck: %v", err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("refused access: took %v, want no time", d)
		}
		if err := other.beginAccess(); err != nil {
			t.Errorf("another user: %v", err)
		}
		c.endAccess()
		if err := c.beginAccess(); err != nil {
			t.Errorf("access after another one has ended: got %v, want nil", err)
		}
		got := make(chan error)
		go func() { got <- c.beginAccess() }()
		testutil.AdvanceTime(10 * copiesLook)
		c.endAccess()
		if err := <-got; err != nil {
			t.Errorf("room within timeout: %v", err)
		}
		var atOnce atomic.Int64
		var wg sync.WaitGroup
		for range 3 * maxCopiesWaiting {
			wg.Go(func() {
				if c.beginAccess() != nil {
					atOnce.Add(1)
				}
			})
		}
		synctest.Wait()
		if n := atOnce.Load(); n != 2*maxCopiesWaiting {
			t.Errorf("accesses refused at once: got %d, want %d because only a few may wait", n, 2*maxCopiesWaiting)
		}
		wg.Wait()
		c.endAccess()
		c.endAccess()
		if n := c.InProgress(); n != 0 {
			t.Errorf("%d go on", n)
		}
	})
}

// TestBlockedAccessesOfAllUsersAreLimited checks that many users together block only a few threads. Each user must
// still be able to make a few accesses.
func TestBlockedAccessesOfAllUsersAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := NewCopies(5, nil)
		first, second := NewCopies(64, all), NewCopies(64, all)
		for i := range ownCopies + 5 {
			if err := first.beginAccess(); err != nil {
				t.Fatalf("access %d of the first user: got %v, want nil", i, err)
			}
		}
		if err := first.beginAccess(); !errors.Is(err, ErrStuck) {
			t.Errorf("one more: %v", err)
		}
		for i := range ownCopies {
			if err := second.beginAccess(); err != nil {
				t.Errorf("access %d of the second user: got %v, want nil", i, err)
			}
		}
		if err := second.beginAccess(); !errors.Is(err, ErrStuck) {
			t.Errorf("additional access of the second user: got %v, want ErrStuck", err)
		}
		first.endAccess()
		if err := second.beginAccess(); err != nil {
			t.Errorf("access of the second user after one of the first user has ended: got %v, want nil", err)
		}
		for range ownCopies + 4 {
			first.endAccess()
		}
		for range ownCopies + 1 {
			second.endAccess()
		}
		if first.InProgress() != 0 || second.InProgress() != 0 || all.InProgress() != 0 {
			t.Errorf("%d, %d and %d go on", first.InProgress(), second.InProgress(), all.InProgress())
		}
	})
}

func TestOpenMissingProcessFails(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if p, err := OpenProcess(cmd.Process.Pid); !errors.Is(err, unix.ESRCH) {
		t.Errorf("got %v, %v", p, err)
	}
}

// TestOpenOtherUsersProcessFails checks that a process of another user cannot be opened. The error must name the
// reason. A process that was opened before must remain accessible by file. A program may revoke access by number where
// Yama restricts ptrace.
func TestOpenOtherUsersProcessFails(t *testing.T) {
	defer func(n uint64) { maxFileAccess = n }(maxFileAccess)
	maxFileAccess = 0
	testutil.SkipUnlessRoot(t, "to run a process as another user")
	c := startChild(t, "plain")
	if c.Bound() {
		t.Fatal("Bound before the change of the user: got true, want false")
	}
	testutil.RunAsUser(t, 65534, func() {
		if err := c.ReadV([][]byte{make([]byte, 1)}, c.base); err != nil {
			t.Errorf("read through the file opened before: got %v, want nil", err)
		}
		if _, err := OpenProcess(c.PID()); !errors.Is(err, ErrAccess) || !errors.Is(err, syscall.EPERM) {
			t.Errorf("open: got %v, want %v", err, ErrAccess)
		}
	})
	if !c.Bound() {
		t.Error("Bound after the change of the user: got false, want true")
	}
}

func TestProcessDataPathDoesNotAllocate(t *testing.T) {
	p, err := OpenProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.trusting = true // makes the test use access by number as well
	mem := make([]byte, 8*maxFileAccess)
	few, many, large := splitBuffer(make([]byte, 4096), 3), splitBuffer(make([]byte, 4096), 40), splitBuffer(make([]byte,
		8*maxFileAccess), 16)
	if n := testing.AllocsPerRun(100, func() {
		for _, v := range [][][]byte{few, many, large} {
			if err := errors.Join(p.ReadV(v, addressOf(mem)), p.WriteV(v, addressOf(mem))); err != nil {
				t.Fatal(err)
			}
			if p.ReadV(v, 1) != ErrFault {
				t.Fatal("read of page 0: got another error, want ErrFault")
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMapsCover(t *testing.T) {
	long := strings.Repeat("x", 3*mapsLineSize)
	const maps = `1000-2000 rw-p 00000000 00:00 0
2000-4000 r--p 00000000 08:01 77 /lib/libibverbs.so.1
4000-5000 rw-s 00000000 00:05 78 /dev/shm/%s
6000-7000 ---p 00000000 00:00 0
7000-8000 -w-p 00000000 00:00 0
7fffffffe000-7ffffffff000 rw-p 00000000 00:00 0 [stack]
ffffffffff600000-ffffffffff601000 r-xp 00000000 00:00 0 [vsyscall]
`
	for _, test := range []struct {
		addr, end   uint64
		read, write bool
	}{
		{0x1000, 0x2000, true, true},
		{0x1fff, 0x2001, true, false},
		{0x1000, 0x5000, true, false},
		{0x4000, 0x5000, true, true},
		{0x4fff, 0x5001, false, false},
		{0x5000, 0x5001, false, false},
		{0x5000, 0x6001, false, false},
		{0x6000, 0x6001, false, false},
		{0x7000, 0x7001, false, false},
		{0x0fff, 0x1001, false, false},
		{0x7fffffffe000, 0x7ffffffff000, true, true},
		{0x7fffffffe000, 0x7ffffffff001, false, false},
		{0xffffffffff600000, 0xffffffffff600001, true, false},
		{0xffffffffff601000, 0xffffffffff601001, false, false},
	} {
		for write, want := range map[bool]bool{false: test.read, true: test.write} {
			_, got, err := mapsCover(strings.NewReader(fmt.Sprintf(maps, long)), test.addr, test.end, write)
			if err != nil || got != want {
				t.Errorf("%#x-%#x write=%v: %v, %v, want %v", test.addr, test.end, write, got, err, want)
			}
		}
	}
	for _, bad := range []string{"hello\n", "1000\n", "1000-\n", "-2000 rw-p\n", "1000-2000 rw\n", "2000-1000 rw-p\n",
		"11111111111111111-2 rw-p\n", "1000-2000 rw-p 0 0:0 0\n\n"} {
		if _, got, err := mapsCover(strings.NewReader(bad), 0x1000, 0x3000, false); err == nil {
			t.Errorf("%q: %v, want an error", bad, got)
		}
	}
}

func TestLocalBuffers(t *testing.T) {
	mem := make([]byte, 300)
	a, gap, b := mem[:100], mem[100:150], mem[150:]
	l := NewLocal()
	addrA, err := l.Add(a)
	if err != nil {
		t.Fatal(err)
	}
	if real := strconv.FormatUint(addrA, 16); !strings.HasSuffix(fmt.Sprintf("%p", a), "x"+real) {
		t.Errorf("address %s of %p", real, a)
	}
	addrB, err := l.Add(b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Add(nil); err != nil {
		t.Error(err)
	}
	for name, overlap := range map[string][]byte{"same": a, "inside": a[10:20], "start": mem[:1], "across": mem[99:101],
		"around": mem, "into b": mem[140:151]} {
		if _, err := l.Add(overlap); !errors.Is(err, syscall.EEXIST) {
			t.Errorf("%s: %v, want EEXIST", name, err)
		}
	}

	for _, test := range []struct {
		name         string
		addr, length uint64
		want         error
	}{
		{"empty anywhere", 1, 0, nil},
		{"all of a", addrA, 100, nil},
		{"all of b", addrB, 150, nil},
		{"end of b", addrB + 149, 1, nil},
		{"before a", addrA - 1, 1, ErrFault},
		{"beyond a", addrA, 101, ErrFault},
		{"end of a", addrA + 100, 1, ErrFault},
		{"from a over the gap", addrA, 300, ErrFault},
		{"beyond b", addrB + 149, 2, ErrFault},
		{"very long", addrB, math.MaxUint64, ErrFault},
		{"far away", math.MaxUint64, 1, ErrFault},
	} {
		if err := l.Check(test.addr, test.length, true); !errors.Is(err, test.want) {
			t.Errorf("%s: check: %v, want %v", test.name, err, test.want)
		}
		if test.length > 1000 {
			continue
		}
		buf := [][]byte{make([]byte, test.length/3), nil, make([]byte, test.length-test.length/3)}
		if err := l.ReadV(buf, test.addr); !errors.Is(err, test.want) {
			t.Errorf("%s: read: %v, want %v", test.name, err, test.want)
		}
		if err := l.WriteV(buf, test.addr); !errors.Is(err, test.want) {
			t.Errorf("%s: write: %v, want %v", test.name, err, test.want)
		}
	}

	if err := l.WriteV([][]byte{[]byte("hello, "), []byte("verbs")}, addrA+3); err != nil {
		t.Fatal(err)
	}
	if string(a[3:15]) != "hello, verbs" {
		t.Errorf("a holds %q", a[:20])
	}
	got := [][]byte{make([]byte, 5), make([]byte, 7)}
	if err := l.ReadV(got, addrA+3); err != nil || string(got[0]) != "hello" || string(got[1]) != ", verbs" {
		t.Errorf("read %q, %v", got, err)
	}
	if !bytes.Equal(gap, make([]byte, len(gap))) {
		t.Errorf("bytes that were not added: got them changed, want them unchanged")
	}

	if err := l.Remove(addrA + 1); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("remove a missing entry: %v", err)
	}
	if err := l.Remove(addrA); err != nil {
		t.Fatal(err)
	}
	if err := l.Check(addrA, 1, false); !errors.Is(err, ErrFault) {
		t.Errorf("after removal: %v", err)
	}
	if err := l.Check(addrB, 150, false); err != nil {
		t.Errorf("check of the other buffer after Remove: got %v, want nil", err)
	}
}

func TestRegionAccess(t *testing.T) {
	mem := make([]byte, 3*PageSize)
	l := NewLocal()
	addr, err := l.Add(mem)
	if err != nil {
		t.Fatal(err)
	}
	limit := uint64(Unlimited)
	acct := NewAccount(func() uint64 { return limit })
	const iova = 0x7000
	r, err := Get(l, acct, addr, 2*PageSize, iova, true)
	if err != nil {
		t.Fatal(err)
	}
	want := (addr+2*PageSize-1)/PageSize - addr/PageSize + 1
	if r.Pages() != want || acct.Pages() != want {
		t.Errorf("pages: got %d in the region and %d in the account, want %d", r.Pages(), acct.Pages(), want)
	}
	for _, test := range []struct {
		iova, length uint64
		want         bool
	}{
		{iova, 2 * PageSize, true}, {iova, 2*PageSize + 1, false}, {iova - 1, 1, false}, {iova + 2*PageSize, 1, false},
		{iova + 2*PageSize - 1, 1, true}, {0, 0, true}, {iova, math.MaxUint64, false}, {math.MaxUint64, 2, false},
	} {
		if got := r.Contains(test.iova, test.length); got != test.want {
			t.Errorf("Contains(%#x, %d) = %v", test.iova, test.length, got)
		}
	}
	if err := r.WriteV([][]byte{{1, 2, 3}}, iova+10); err != nil || mem[11] != 2 {
		t.Errorf("write at an offset: got error %v and memory %v, want nil and the written bytes", err, mem[10:13])
	}
	if err := r.ReadV([][]byte{make([]byte, 2)}, iova+2*PageSize-1); !errors.Is(err, ErrRange) {
		t.Errorf("read past the end: got %v, want ErrRange", err)
	}

	limit = acct.Pages() * PageSize
	if _, err := Get(l, acct, addr, 1, 0, false); !errors.Is(err, ErrLimit) || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("over the limit: %v", err)
	}
	limit = Unlimited
	if _, err := Get(l, acct, 8, 1, 0, false); !errors.Is(err, ErrFault) {
		t.Errorf("Get of unmapped memory: got %v, want ErrFault", err)
	}
	for _, bad := range [][3]uint64{{math.MaxUint64, 2, 0}, {addr, PageSize, math.MaxUint64},
		{math.MaxUint64 - 10, 5, 0}} {
		if _, err := Get(l, acct, bad[0], bad[1], bad[2], false); !errors.Is(err, ErrRange) {
			t.Errorf("%#x: %v", bad, err)
		}
	}
	r.Release()
	if acct.Pages() != 0 {
		t.Errorf("%d pages left", acct.Pages())
	}
}

// TestOnDemandIsNotCharged checks that a region on demand is not charged, and that it is checked only when it is used.
func TestOnDemandIsNotCharged(t *testing.T) {
	mem := make([]byte, 3*PageSize)
	l := NewLocal()
	addr, err := l.Add(mem)
	if err != nil {
		t.Fatal(err)
	}
	c := startChild(t, "plain")
	theirs, err := OnDemand(c, c.base, childPages*PageSize, 0)
	if err != nil {
		t.Fatal(err)
	}
	readOnly := 2 * PageSize // offset of a page
	if err := theirs.Prefetch(readOnly, PageSize, false); err != nil {
		t.Errorf("prefetch of a read-only page for reading: got %v, want nil", err)
	}
	if err := theirs.Prefetch(readOnly, PageSize, true); !errors.Is(err, ErrFault) {
		t.Errorf("prefetch of a read-only page for writing: got %v, want %v", err, ErrFault)
	}
	r, err := OnDemand(l, addr-PageSize, 5*PageSize, 0x7000)
	if err != nil {
		t.Fatal(err)
	}
	all, err := OnDemand(l, 0, ImplicitLength, 0)
	if err != nil {
		t.Fatal(err)
	}
	at := uint64(0x7000) + PageSize
	for _, test := range []struct {
		name         string
		r            *Region
		iova, length uint64
		want         error
	}{
		{"the whole mapped range", r, at, uint64(len(mem)), nil},
		{"nothing", r, at, 0, nil},
		{"before the range", r, 0x7000, PageSize, ErrFault},
		{"across the end of the range", r, at + 2*PageSize, 2 * PageSize, ErrFault},
		{"outside the region", r, at, 5 * PageSize, ErrRange},
		{"by address, without IOVA", all, addr + 5, 2 * PageSize, nil},
		{"all memory", all, 0, ImplicitLength, ErrFault},
		{"the last byte", all, ImplicitLength, 1, ErrRange},
	} {
		if err := test.r.Prefetch(test.iova, test.length, true); !errors.Is(err, test.want) {
			t.Errorf("prefetch %s: %v, want %v", test.name, err, test.want)
		}
	}
	if err := all.WriteV([][]byte{{1, 2, 3}}, addr+10); err != nil || mem[11] != 2 {
		t.Errorf("write: %v, %v", err, mem[10:13])
	}
	if err := r.ReadV([][]byte{{0}}, 0x7000); !errors.Is(err, ErrFault) {
		t.Errorf("read unmapped memory: %v", err)
	}
	if r.Pages() != 0 || !r.OnDemand() || !all.OnDemand() {
		t.Errorf("%d pages", r.Pages())
	}
	if _, err := OnDemand(l, 8, ImplicitLength, 8); !errors.Is(err, ErrRange) {
		t.Errorf("OnDemand with a range that wraps around: got %v, want ErrRange", err)
	}
	r.Release()
}

func TestLockLimit(t *testing.T) {
	c := startChild(t, "limited")
	if got, err := c.LockLimit(); err != nil || got != 3*PageSize {
		t.Errorf("LockLimit = %d, %v, want %d", got, err, 3*PageSize)
	}
	if got, err := lockLimitFromProc(c.PID()); err != nil || got != 3*PageSize {
		t.Errorf("from /proc: %d, %v, want %d", got, err, 3*PageSize)
	}
	acct := NewLimitedAccount(c.LockLimit)
	r, err := Get(c, acct, c.base, 2*PageSize, c.base, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Get(c, acct, c.base, 2*PageSize, c.base, true); !errors.Is(err, ErrLimit) {
		t.Errorf("second registration of the same pages: got %v, want %v", err, ErrLimit)
	}
	r.Release()
	c.kill()
	if _, err := Get(NewLocal(), acct, 1, 1, 1, false); !errors.Is(err, ErrLimit) {
		t.Errorf("after exit: %v", err)
	}
	if _, err := LockLimit(c.PID()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after exit: %v", err)
	}
}

// TestLockLimitInNamespace checks a process in a new user namespace, where its creator has all capabilities. These
// capabilities must not count.
func TestLockLimitInNamespace(t *testing.T) {
	testutil.SkipUnlessRoot(t, "for CAP_IPC_LOCK")
	c := startChild(t, "namespace")
	if got, err := c.LockLimit(); err != nil || got != 3*PageSize {
		t.Errorf("LockLimit = %d, %v, want %d", got, err, 3*PageSize)
	}
}

func TestLockLimitWithCapability(t *testing.T) {
	testutil.SkipUnlessRoot(t, "for CAP_IPC_LOCK")
	if got, err := LockLimit(os.Getpid()); err != nil || got != Unlimited {
		t.Errorf("LockLimit = %d, %v, want none", got, err)
	}
}
