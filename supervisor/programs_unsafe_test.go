package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"verbena/internal/leaktest"
	"verbena/internal/testutil"

	"golang.org/x/sys/unix"

	"verbena/uapi"
)

// testPrograms maps the names of test programs, which run under supervision, to their functions. TestMain runs the
// program named in the environment. A program fails by a panic.
var testPrograms = map[string]func(args []string){
	"commands":  programCommands,
	"late":      programLateWork,
	"hold":      programHold,
	"lastclose": programLastClose,
	"nested":    programStartNested,
	"threads":   programWaitOnThread,
	"turns":     programAlternateDoorbells,
	"signals":   programSignals,
	"stray":     programOutliveParent,
	"doorbells": programDoorbells,
	"numbers":   programFileNumbers,
	"writes":    programMeasureWrites,
	"guarded":   programGuarded,
	"service":   programService,
	"gone":      programDeviceGone,
	"opens":     programOpenPaths,
	"reopens":   programReopenDirectory,
	"stats":     programMeasureStat,
	"pingpong":  programPingPong,
	"launcher":  programLauncher,
	"native":    programNativeDoorbells,
}

func TestMain(m *testing.M) {
	ExecTraced(os.Args)
	if name := os.Getenv(programEnvVar); name != "" {
		os.Unsetenv(programEnvVar)
		testPrograms[name](os.Args[1:])
		return
	}
	if signal.Ignored(syscall.SIGHUP) { // under nohup(1), the started programs must still receive SIGHUP
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	leaktest.Main(m)
}

const deviceFile = "/dev/infiniband/uverbs0"

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func panicUnless(ok bool, format string, args ...any) {
	if !ok {
		panic(fmt.Sprintf(format, args...))
	}
}

func openDevice() int { return must(unix.Open(deviceFile, unix.O_RDWR|unix.O_CLOEXEC, 0)) }

func issueOp(fd int, op *fakeOp) syscall.Errno {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uapi.VerbsIoctl, uintptr(unsafe.Pointer(op)))
	return e
}

func ringDoorbell(fd int) (int, error) {
	var b [32]byte
	return unix.Write(fd, b[:])
}

// checkCharDevice checks that the fields of stat(2) describe the device.
func checkCharDevice(st *unix.Stat_t) {
	panicUnless(st.Mode&unix.S_IFMT == unix.S_IFCHR, "mode: got %#o, want a character device", st.Mode)
	panicUnless(st.Rdev == unix.Mkdev(231, 192), "device number %#x", st.Rdev)
}

func programCommands(args []string) {
	fd := openDevice()
	var st, at unix.Stat_t
	must(0, unix.Fstat(fd, &st))
	checkCharDevice(&st)
	// The next calls are fstat in the form that the C library uses, and statx.
	_, _, e := unix.Syscall6(unix.SYS_NEWFSTATAT, uintptr(fd), uintptr(unsafe.Pointer(must(unix.BytePtrFromString("")))),
		uintptr(unsafe.Pointer(&at)), unix.AT_EMPTY_PATH, 0, 0)
	panicUnless(e == 0, "newfstatat: %v", e)
	checkCharDevice(&at)
	var x unix.Statx_t
	must(0, unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &x))
	panicUnless(x.Mode&unix.S_IFMT == unix.S_IFCHR && x.Rdev_major == 231 &&
		x.Rdev_minor == 192, "statx: mode %#o, device %d:%d", x.Mode, x.Rdev_major, x.Rdev_minor)
	var limit unix.Rlimit
	must(0, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	low := commandFDsForHardLimit(limit.Max).low
	panicUnless(low.contains(uint32(fd)), "descriptor: got %d, want one of the low range %v", fd, low)

	for _, tt := range []struct {
		op   uint64
		want syscall.Errno
	}{{opIncrement, 0}, {opBusy, syscall.EBUSY}, {opPanic, syscall.EIO}, {opUnset, syscall.EIO}, {opIncrement, 0}} {
		op := fakeOp{op: tt.op, in: 41}
		e := issueOp(fd, &op)
		panicUnless(e == tt.want, "operation %d: %v, want %v", tt.op, e, tt.want)
		panicUnless(e != 0 || op.out == 42, "operation %d: answer %d", tt.op, op.out)
	}
	_, _, e = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uapi.VerbsIoctl, 16)
	panicUnless(e == syscall.EFAULT, "ioctl with a bad address: got %v, want EFAULT", e)

	for _, cloexec := range []uint64{0, 1} {
		op := fakeOp{op: opInstall, in: cloexec}
		panicUnless(issueOp(fd, &op) == 0, "install")
		var b [8]byte
		n := must(unix.Read(int(op.out), b[:]))
		panicUnless(string(b[:n]) == "hello", "read %q", b[:n])
		flags := must(unix.FcntlInt(uintptr(op.out), unix.F_GETFD, 0))
		panicUnless(uint64(flags&unix.FD_CLOEXEC) == cloexec, "close-on-exec %d, want %d", flags, cloexec)
		must(0, unix.Fstat(int(op.out), &st))
		same := fakeOp{op: opSameFile, in: op.out}
		panicUnless(issueOp(fd, &same) == 0 && same.out == st.Ino, "inode %d, want %d", same.out, st.Ino)
	}

	mem := must(unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	for i := range 3 {
		n, err := ringDoorbell(fd)
		panicUnless(n == 32 && err == nil, "doorbell: %d, %v", n, err)
		panicUnless(int(mem[8]) == i+1, "doorbell %d: got count %d in the region", i+1, mem[8])
	}
	// Duplicates refer to the device too, for any minimum number that the program requests.
	for i, d := range []int{
		must(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)), must(unix.FcntlInt(uintptr(fd), unix.F_DUPFD, fd+7)), must(
			unix.Dup(fd)),
	} {
		must(0, unix.Fstat(d, &st))
		checkCharDevice(&st)
		n, err := ringDoorbell(d)
		panicUnless(n == 32 && err == nil && int(mem[8]) == i+4, "doorbell by duplicate %d: got %d, %v and count %d", i, n,
			err,
			mem[8])
		flags := must(unix.FcntlInt(uintptr(d), unix.F_GETFD, 0))
		panicUnless((flags&unix.FD_CLOEXEC != 0) == (i == 0), "duplicate %d: close-on-exec %d", i, flags)
		panicUnless(i != 1 || d >= fd+7, "duplicate: got %d, want at least %d", d, fd+7)
		unix.Close(d)
	}
	// At a number chosen by the program, ioctl works and doorbells fail.
	must(0, unix.Dup3(fd, 40, unix.O_CLOEXEC))
	op := fakeOp{op: opIncrement, in: 1}
	panicUnless(issueOp(40, &op) == 0 && op.out == 2, "ioctl by a low descriptor: got a failure, want success")
	_, err := ringDoorbell(40)
	panicUnless(err != nil && mem[8] == 6, "write by a low descriptor: got %v, want an error", err)
	high := must(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, fd+1))
	_, err = ringDoorbell(high)
	panicUnless(err == nil && mem[8] == 7, "doorbell by another descriptor: got %v, want success", err)
	// Other files are not affected, even at such numbers.
	r, w, err := os.Pipe()
	panicUnless(err == nil, "pipe: %v", err)
	n := must(unix.FcntlInt(w.Fd(), unix.F_DUPFD_CLOEXEC, fd+10))
	must(unix.Write(n, []byte("x")))
	var b [1]byte
	must(r.Read(b[:]))
	must(0, unix.Fstat(n, &st))
	panicUnless(st.Mode&unix.S_IFMT == unix.S_IFIFO, "mode: got %#o, want a pipe", st.Mode)
	panicUnless(issueOp(n, &op) == syscall.ENOTTY, "ioctl of a pipe: got another result, want ENOTTY")
	panicUnless(issueOp(-1, &op) == syscall.EBADF, "ioctl of descriptor -1: got another result, want EBADF")

	// The limits are restored, and a second file gets a different number.
	var after unix.Rlimit
	must(0, unix.Getrlimit(unix.RLIMIT_NOFILE, &after))
	panicUnless(after == limit, "limit of open files: got %v, want the earlier %v", after, limit)
	second := openDevice()
	panicUnless(second != fd && low.contains(uint32(second)), "second descriptor %d, first %d", second, fd)
	fmt.Println("ok")
}

// programHold opens the device, reports the open, and sleeps.
func programHold(args []string) {
	openDevice()
	fmt.Println("open")
	sleepForever()
}

// programLastClose passes the device on in various ways. The test observes each step in /proc.
func programLastClose(args []string) {
	fd := openDevice()
	op := fakeOp{op: opWait}
	switch args[0] {
	case "close":
		unix.Close(fd)
	case "dup":
		d := must(unix.Dup(fd))
		unix.Close(fd)
		panicUnless(issueOp(d, &op) == 0, "wait") // during the check of the test
		unix.Close(d)
	case "mapping":
		mem := must(unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED))
		d := must(unix.Dup(fd))
		unix.Close(fd)
		panicUnless(issueOp(d, &op) == 0, "wait")
		unix.Close(d)
		unix.Munmap(mem)
	case "reopen": // closing the second description is not the last close
		d := must(unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR, 0))
		unix.Close(d)
		panicUnless(issueOp(fd, &op) == 0, "wait")
		unix.Close(fd)
	case "child": // the child inherits the device and has its last descriptor
		must(unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0))
		c := exec.Command("/proc/self/exe", "inherited", strconv.Itoa(fd))
		c.Env = append(os.Environ(), programEnvVar+"=lastclose")
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		fd2 := os.NewFile(uintptr(fd), "device")
		c.ExtraFiles = []*os.File{fd2}
		must(0, c.Start())
		return
	case "exec": // the exec closes the device
		must(0, unix.Exec("/bin/sleep", []string{"sleep", "1000"}, os.Environ()))
	}
	sleepForever()
}

// sleepForever never returns. (Go would report an empty select as a deadlock.)
func sleepForever() {
	for {
		_ = unix.Pause()
	}
}

func init() {
	inner := testPrograms["lastclose"]
	testPrograms["lastclose"] = func(args []string) {
		if args[0] != "inherited" {
			inner(args)
			return
		}
		// The child also inherits the device as descriptor 3, and the filter traps that number.
		op := fakeOp{op: opWait}
		panicUnless(issueOp(3, &op) == 0, "the child's ioctl")
	}
}

func programStartNested([]string) {
	fmt.Println(Probe())
	_, err := Start(&Launch{Path: "/bin/true", Args: []string{"true"}, Handover: func(*os.File) error {
		panic("installed")
	}})
	fmt.Println(err)
}

// programWaitOnThread makes a thread wait in a command for the effect of another thread's command.
func programWaitOnThread(args []string) {
	fd := openDevice()
	if args[0] == "known" { // the second thread has made a call before
		var wg sync.WaitGroup
		wg.Go(func() {
			runtime.LockOSThread()
			op := fakeOp{op: opIncrement}
			panicUnless(issueOp(fd, &op) == 0, "increment")
		})
		wg.Wait()
	}
	var wg sync.WaitGroup
	const n = 5
	for range n {
		wg.Go(func() {
			op := fakeOp{op: opWait}
			panicUnless(issueOp(fd, &op) == 0, "wait")
		})
	}
	for range n {
		time.Sleep(2 * time.Millisecond) // most threads wait by then; any order works
		op := fakeOp{op: opGo}
		panicUnless(issueOp(fd, &op) == 0, "go")
	}
	wg.Wait()
	fmt.Println("ok")
}

// programLateWork makes workers block in work after an answer. Its calls must still be answered.
func programLateWork([]string) {
	runtime.LockOSThread()
	fd := openDevice()
	call := func(op fakeOp) uint64 {
		panicUnless(issueOp(fd, &op) == 0, "operation %d", op.op)
		return op.out
	}
	for i := range maxLateWorkers + 2 {
		want := uint64(1)
		if i >= maxLateWorkers {
			want = 0
		}
		out := call(fakeOp{op: opLate})
		panicUnless(out == want, "work %d after the answer: got %d, want %d", i, out, want)
		panicUnless(call(fakeOp{op: opIncrement, in: 4}) == 5, "increment")
		_, err := ringDoorbell(fd)
		panicUnless(err == nil, "doorbell: %v", err)
	}
	for range maxLateWorkers {
		call(fakeOp{op: opGo})
	}
	for i := 0; call(fakeOp{op: opLate}) != 1; i++ { // a worker counts until its work has ended
		panicUnless(i < 1000, "the workers are still counted")
		time.Sleep(time.Millisecond)
	}
	call(fakeOp{op: opGo})
	fmt.Println("ok")
}

// programAlternateDoorbells rings doorbells alternately from two threads, then from one thread, and repeats both once.
// The test checks after each step.
func programAlternateDoorbells([]string) {
	runtime.LockOSThread() // each caller is a separate thread
	fd := openDevice()
	rings := 0
	ring := func() {
		_, err := ringDoorbell(fd)
		panicUnless(err == nil, "doorbell: %v", err)
		rings++
	}
	look := func() {
		op := fakeOp{op: opWait}
		panicUnless(issueOp(fd, &op) == 0, "wait")
	}
	for range 2 {
		var wg sync.WaitGroup
		pass := [2]chan bool{make(chan bool, 1), make(chan bool)}
		for i := range pass {
			wg.Go(func() {
				runtime.LockOSThread()
				for range 2 * mixtureThreshold {
					<-pass[i]
					ring()
					if i == 1 {
						pass[0] <- true
					} else {
						pass[1] <- true
					}
				}
			})
		}
		pass[0] <- true
		wg.Wait()
		look()
		for range 2 * mixtureLimit {
			ring()
		}
		look()
	}
	fmt.Println(rings)
}

func programSignals([]string) {
	c := make(chan os.Signal, 8)
	signal.Notify(c, unix.SIGTERM, unix.SIGUSR1, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTSTP, unix.SIGCONT)
	fmt.Println("ready")
	for s := range c {
		fmt.Println(s)
		if s == unix.SIGTERM {
			os.Exit(7)
		}
	}
}

// programOutliveParent opens the device in a process that outlives its parent.
func programOutliveParent(args []string) {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), programEnvVar+"=hold")
	c.Stdout = os.Stderr
	must(0, c.Start())
	fmt.Println(c.Process.Pid)
}

func programDoorbells(args []string) {
	fd := openDevice()
	var wg sync.WaitGroup
	n := must(strconv.Atoi(args[1]))
	var b [32]byte
	start := time.Now()
	for range must(strconv.Atoi(args[0])) {
		wg.Go(func() {
			runtime.LockOSThread()
			for range n {
				unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b)), uintptr(len(b)))
			}
		})
	}
	wg.Wait()
	fmt.Println(time.Since(start).Nanoseconds())
}

// programFileNumbers opens enough files to get numbers in the range of device files, including a number that it has
// just closed.
func programFileNumbers(args []string) {
	var limit unix.Rlimit
	must(0, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	must(0, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit.Max, Max: limit.Max}))
	n := commandFDsForHardLimit(limit.Max)
	var pipes [][2]int
	pipe := func() int {
		var p [2]int
		must(0, unix.Pipe2(p[:], unix.O_CLOEXEC))
		pipes = append(pipes, p)
		return max(p[0], p[1])
	}
	fd := openDevice()
	panicUnless(fd < selectLimit, "first device file: got number %d, want one of the low range", fd)
	kept := must(unix.Dup(fd)) // keeps the file open
	for pipe() < fd+10 {
	}
	panicUnless(openDevice() >= int(n.high),
		"device file among the program's own files: got a low number, want a high one")
	for _, leave := range []func(){
		func() { must(0, unix.Close(fd)) },
		func() { must(0, unix.CloseRange(uint(fd), uint(fd), 0)) },
		func() { must(0, unix.Dup3(1, fd, unix.O_CLOEXEC)); must(0, unix.Close(fd)) },
	} {
		must(ringDoorbell(fd))
		leave()
		event := must(unix.Eventfd(0, unix.EFD_CLOEXEC))
		panicUnless(event == fd, "new file: got number %d, want %d", event, fd)
		size, err := ringDoorbell(event)
		panicUnless(size != 32, "write of 32 bytes to an eventfd: got %d and error %v, want not a doorbell", size, err)
		must(0, unix.Dup3(kept, fd, unix.O_CLOEXEC))
	}
	// Each number refers to the program's own file.
	for i, p := range pipes {
		msg := fmt.Sprintf("%032d", i)
		must(unix.Write(p[1], []byte(msg)))
		var b [64]byte
		k := must(unix.Read(p[0], b[:]))
		panicUnless(string(b[:k]) == msg, "pipe %v: %q, want %q", p, b[:k], msg)
	}
	// A duplicate does not use a number that another thread gets at the same time.
	for _, p := range pipes[len(pipes)-50:] {
		must(0, unix.Close(p[0]))
		must(0, unix.Close(p[1]))
	}
	var null, st unix.Stat_t
	must(0, unix.Stat(os.DevNull, &null))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			f := must(unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0))
			must(0, unix.Fstat(f, &st))
			panicUnless(st.Rdev == null.Rdev, "file %d of another thread: got another file, want no change", f)
			must(0, unix.Close(f))
		}
	}()
	for range 3000 {
		must(0, unix.Close(must(unix.FcntlInt(uintptr(pipes[0][0]), unix.F_DUPFD, int(n.low.first)))))
	}
	close(stop)
	<-stopped
	fmt.Println("ok")
}

// programMeasureWrites writes to a file at each of some numbers, a given number of times, and prints the nanoseconds
// per write.
func programMeasureWrites(args []string) {
	n := must(strconv.Atoi(args[0]))
	null := must(unix.Open(os.DevNull, unix.O_WRONLY|unix.O_CLOEXEC, 0))
	var b [32]byte
	var fds []int
	for _, arg := range args[1:] {
		fd := must(strconv.Atoi(arg))
		if fd != null {
			must(0, unix.Dup3(null, fd, unix.O_CLOEXEC))
		}
		fds = append(fds, fd)
	}
	least := make([]time.Duration, len(fds))
	const rounds = 20
	for range rounds {
		for i, fd := range fds {
			start := time.Now()
			for range n / rounds {
				unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b)), uintptr(len(b)))
			}
			if d := time.Since(start); least[i] == 0 || d < least[i] {
				least[i] = d
			}
		}
	}
	for _, d := range least {
		fmt.Printf("%.1f ", float64(d.Nanoseconds())/float64(n/rounds))
	}
}

// programGuarded uses the device continuously, from several threads, while its supervisor dies.
func programGuarded([]string) {
	fd := openDevice()
	var dead atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { // in a command that the supervisor never answers
			op := fakeOp{op: opWait}
			e := issueOp(fd, &op)
			panicUnless(e == syscall.ENOTTY || e == syscall.EIO, "interrupted command: %v", e)
			dead.Store(true)
		})
	}
	wg.Go(func() { // rings doorbells continuously
		for !dead.Load() {
			_, err := ringDoorbell(fd)
			panicUnless(err == nil || err == syscall.EIO || err == syscall.EINVAL, "doorbell: %v", err)
		}
	})
	wg.Go(func() { // opens files continuously
		for !dead.Load() {
			must(os.ReadFile("/proc/self/comm"))
		}
	})
	wg.Wait()
	op := fakeOp{op: opIncrement}
	panicUnless(issueOp(fd, &op) == syscall.EIO, "command after the supervisor's death: got another result, want EIO")
	_, err := ringDoorbell(fd)
	panicUnless(err == syscall.EIO, "doorbell after the supervisor's death: got %v, want EIO", err)
	out := must(exec.Command("cat", "/etc/passwd").Output())
	panicUnless(string(out) == string(must(os.ReadFile("/etc/passwd"))), "cat printed %q", out)
	_, err = os.Stat(deviceFile)
	panicUnless(os.IsNotExist(err), "device file: %v", err)
	fmt.Println("ok")
}

func programDeviceGone([]string) {
	fd := openDevice()
	op := fakeOp{op: opWait}
	panicUnless(issueOp(fd, &op) == 0, "wait")
	var st unix.Stat_t
	must(0, unix.Fstat(fd, &st))
	checkCharDevice(&st)
	_, err := unix.Open(deviceFile, unix.O_RDWR, 0)
	panicUnless(err == unix.ENOENT, "open of a device after the supervisor's death: got %v, want ENOENT", err)
	fmt.Println("ok")
}

// programOpenPaths opens the paths in its arguments and prints the results.
func programOpenPaths(args []string) {
	for _, p := range args {
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			fmt.Printf("%s: open: %v\n", p, err)
			continue
		}
		var b [256]byte
		n, err := unix.Read(fd, b[:])
		if err != nil {
			fmt.Printf("%s: read: %v\n", p, err)
		} else {
			fmt.Printf("%s: %q\n", p, b[:n])
		}
		unix.Close(fd)
	}
}

// programReopenDirectory opens a directory a given number of times, and checks each descriptor.
func programReopenDirectory(args []string) {
	for i := range must(strconv.Atoi(args[0])) {
		fd := must(unix.Open(ibDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0))
		var st unix.Stat_t
		must(0, unix.Fstat(fd, &st))
		panicUnless(st.Mode&unix.S_IFMT == unix.S_IFDIR, "open number %d: got descriptor %d of mode %#o, want a directory",
			i, fd, st.Mode)
		must(0, unix.Close(fd))
	}
	fmt.Println("ok")
}

// programService supervises the program of the listener in descriptor 3, until it is killed.
func programService(args []string) {
	srv := newFakeServer()
	s := must(newSupervisor(SupervisorConfig{Dir: args[0]}, srv))
	t := must(s.Attach(os.NewFile(3, "listener"), SessionInfo{LauncherPID: os.Getppid()}))
	fmt.Println("attached", t.Name())
	panicUnless(testutil.PollUntil(func() bool {
		srv.mu.Lock()
		defer srv.mu.Unlock()
		return len(srv.files) > 0 && srv.files[0].waiting.Load() == 2 && srv.files[0].rung.Load() > 1000
	}), "calls of the program: got too few, want some")
	fmt.Println("busy")
	select {}
}

func programMeasureStat(args []string) {
	start := time.Now()
	var st unix.Stat_t
	for range must(strconv.Atoi(args[1])) {
		must(0, unix.Stat(args[0], &st))
	}
	fmt.Println(time.Since(start).Nanoseconds())
}

// programLauncher starts the program "signals", and is both its launcher and its supervisor.
func programLauncher(args []string) {
	debug.SetGCPercent(-1) // for the reason given at tryStart
	dir := must(os.MkdirTemp("/dev/shm", "verbena-supervisor-test-"))
	s := must(newSupervisor(SupervisorConfig{Dir: dir}, newFakeServer()))
	p := must(Start(&Launch{
		Path: "/proc/self/exe", Args: []string{"signals"}, Env: append(os.Environ(), programEnvVar+"=signals"),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Handover: func(listener *os.File) error {
			fd := must(unix.FcntlInt(listener.Fd(), unix.F_DUPFD_CLOEXEC, 0))
			must(s.Attach(os.NewFile(uintptr(fd), "listener"), SessionInfo{LauncherPID: os.Getpid()}))
			return nil
		},
	}))
	code := p.Wait()
	s.Close()
	os.RemoveAll(dir)
	os.Exit(code)
}

// programPingPong makes two threads busy-wait for each other's doorbells, like programs that poll their completion
// queues.
func programPingPong(args []string) {
	fd := openDevice()
	mem := must(unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	rung := (*uint32)(unsafe.Pointer(&mem[8]))
	n := uint32(must(strconv.Atoi(args[0])))
	start := time.Now()
	var wg sync.WaitGroup
	for me := range uint32(2) {
		wg.Go(func() {
			runtime.LockOSThread()
			var b [32]byte
			for i := me; i < n; i += 2 {
				for atomic.LoadUint32(rung) != i {
				}
				unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b)), uintptr(len(b)))
			}
		})
	}
	wg.Wait()
	fmt.Println(time.Since(start).Nanoseconds())
}
