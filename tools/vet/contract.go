package vet

import (
	"go/types"
	"path"
	"slices"
	"strings"

	"verbena/uapi/verb"
)

// This file contains the rules of docs/contract.md as tables: the promises of package ib to drivers and consumers,
// and its requirements for drivers and consumers. Names that the checked revision of ib does not declare have no
// effect.

const module = "verbena"

const ibPath = module + "/ib"

// noSleepMethods lists the methods that may not sleep, by their interface of package ib or of a package below it. They
// are the methods of the atomic verbs, and methods that are no verbs. TestTablesContainPromises compares the table with
// the comments of these packages.
var noSleepMethods = func() map[string][]string {
	methods := map[string][]string{
		"Driver": {"EnterError"}, "CQCounter": {"Waiting"}, "QPPeeker": {"Peek"}, "MethodDriver": {"Methods"},
		"LibraryFaulter": {"LibraryFault"}, "Staller": {"Stalled"}, "Work": {"Run"}, "slot.Stopper": {"AtWorkRequest"},
		"SendQueuer": {"QueueSend"}, "OwnedContext": {"Owner"},
	}
	for _, v := range verb.Table {
		for _, name := range v.Driver {
			if i, m, _ := strings.Cut(name, "."); v.Atomic {
				methods[i] = append(methods[i], m)
			}
		}
	}
	return methods
}()

// optionalInterfaces lists interfaces with methods that other types may have by coincidence. The value is the interface
// that every implementation has too, or "" if only the types count that the program converts to the interface.
var optionalInterfaces = map[string]string{
	"CQCounter": "DriverCQ", "QPPeeker": "DriverQP", "MethodDriver": "Driver", "LibraryFaulter": "UserContext",
	"Staller": "", "Work": "", "SendQueuer": "DriverQP", "OwnedContext": "UserContext",
}

// sleepingVerbs contains the methods of package ib for consumers that may sleep: the methods of the verbs that are not
// atomic, with their variants with a context.
var sleepingVerbs = func() map[string]bool {
	names := map[string]bool{}
	for _, v := range verb.Table {
		for _, name := range v.Midlayer {
			if t, m, _ := strings.Cut(name, "."); !v.Atomic {
				names["(*"+ibPath+"."+t+")."+m] = true
				names["(*"+ibPath+"."+t+")."+m+"Context"] = true
			}
		}
	}
	return names
}()

// sleepMarkFuncs contains the functions of package ib by which a function states to checked mode that it may sleep. The
// marks also cover functions beyond the table of verbs, such as Device.OnEvent.
var sleepMarkFuncs = map[string]bool{
	"(*" + ibPath + ".Device).enterSleeping": true, "(*" + ibPath + ".object).enterSleeping": true,
}

// driverInterfaces lists the interfaces of package ib that a driver implements, for verbs and for user contexts.
var driverInterfaces = func() []string {
	names := []string{"UserContexter", "Disassociator"}
	for _, v := range verb.Table {
		for _, name := range v.Driver {
			i, _, _ := strings.Cut(name, ".")
			names = append(names, i)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}()

// handlerFields lists the fields of package ib that hold a function of a consumer that may not sleep.
var handlerFields = map[string][]string{
	"CQInit":       {"Handler", "Event"},
	"QPInitAttr":   {"Event"},
	"SRQInitAttr":  {"Event"},
	"CQ":           {"handler", "event"},
	"eventHandler": {"f"},
}

// driverFields lists the fields of package ib that hold a function of a driver that may not sleep. A driver may call
// these functions from its methods.
var driverFields = map[string][]string{
	"CQHandle": {"completed"}, "QPHandle": {"raise"}, "MRHandle": {"set"}, "DriverQPInit": {"Refill"},
}

// completionFields lists the corresponding fields of package ib/completion.
var completionFields = map[string][]string{"Init": {"Failed"}}

// handlerArgs lists functions and methods that have an argument with a function that may not sleep. The value is
// the index of the argument. The index does not count the receiver.
var handlerArgs = map[string]int{
	"(*" + ibPath + ".Device).OnEvent": 0,
}

// driverArgs lists the corresponding functions and methods for functions of a driver or of the owner of a device.
var driverArgs = map[string]int{
	"(*" + ibPath + ".DeviceHandle).AtHandler": 0,
	"(" + ibPath + ".CQHandle).Redirect":       0,
	"(" + ibPath + ".CQHandle).NewCallback":    0,
	"(" + ibPath + ".QPHandle).Redirect":       0,
	"(" + ibPath + ".MRHandle).Redirect":       0,
}

// hotplugFuncs lists the functions that must not be called by a callback or with a lock that a callback acquires.
var hotplugFuncs = map[string]bool{
	"(*" + ibPath + ".Core).Register":                true,
	"(*" + ibPath + ".Core).Unregister":              true,
	"(*" + ibPath + ".Core).UnregisterContext":       true,
	"(*" + ibPath + ".Core).RegisterClient":          true,
	"(*" + ibPath + ".Core).UnregisterClient":        true,
	"(*" + ibPath + ".Core).UnregisterClientContext": true,
}

// holdStarts maps the functions with which a thread begins to hold callbacks to the functions with which it runs them.
var holdStarts = map[string]string{
	"(*" + ibPath + ".DeviceHandle).HoldCallbacks": runCallbacks,
	holdAdd: "(*" + ibPath + ".Hold).Run",
}

const (
	runCallbacks = "(*" + ibPath + ".DeviceHandle).RunCallbacks"
	holdAdd      = "(*" + ibPath + ".Hold).Add"
)

// clientFields lists the fields that hold the functions of a client that run when devices are registered or
// removed.
var clientFields = map[string][]string{
	"Client": {"Add", "Remove"},
}

// listPosts contains the methods that post a list of work requests, and return the number of accepted ones.
var listPosts = map[string]bool{
	"(*" + ibPath + ".QP).PostSend": true, "(*" + ibPath + ".QP).PostRecv": true, "(*" + ibPath + ".SRQ).PostRecv": true,
}

// limitedEnds contains the methods that end the use of memory by a peer, unless their context ends first.
var limitedEnds = map[string]bool{
	"(*" + ibPath + ".QP).DestroyContext": true, "(*" + ibPath + ".SRQ).DestroyContext": true,
	"(*" + completionPath + ".QP).DestroyContext": true, "(*" + completionPath + ".QP).Close": true,
}

// copyInterface is the interface that reads and writes the memory of a process.
const copyInterface = module + "/umem.Space"

var copyMethods = map[string]bool{"ReadV": true, "WriteV": true, "Check": true}

// ownMemory implements copyInterface for the memory of this process.
const ownMemory = module + "/umem.Local"

var copyCalls = map[string]bool{
	"golang.org/x/sys/unix.ProcessVMReadv":  true,
	"golang.org/x/sys/unix.ProcessVMWritev": true,
}

// isMutex reports whether a type is a lock of package sync, or a type with the name of such a lock.
func isMutex(t types.Type) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && (n.Obj().Name() == "Mutex" || n.Obj().Name() == "RWMutex") && n.Obj().Pkg() != nil
}

// isInCheckedModule reports whether a package belongs to a checked module, and not to the standard library or a
// dependency.
func (cg *callGraph) isInCheckedModule(pkg *types.Package) bool {
	return pkg != nil && cg.own[pkg.Path()]
}

// sleepiness describes the behaviour of a function without a check of its body.
type sleepiness uint8

const (
	never sleepiness = iota // the function does not sleep, and calls the functions among its arguments
	sleeps
	spawns // the function does not sleep, and another goroutine calls the functions among its arguments
	yields // the function yields the processor, so a loop with it spins
	reads  // the function reads the time
)

// externalFuncs maps the functions of other packages to their kinds. The keys are names in the form of
// types.Func.FullName, and paths of packages. Functions in neither table are assumed to sleep. The author of a new
// import must check the imported package and add it to a table.
var externalFuncs = map[string]sleepiness{
	"time.Sleep": sleeps, "time.AfterFunc": spawns, "time.Now": reads, "time.Since": reads, "time.Until": reads,
	"runtime.Gosched": yields, "runtime.GC": sleeps, "runtime.AddCleanup": spawns, "runtime.SetFinalizer": spawns,
	"(*sync.WaitGroup).Wait": sleeps, "(*sync.WaitGroup).Go": spawns, "(*sync.Cond).Wait": sleeps,
	"context.AfterFunc": spawns, "(reflect.Value).Send": sleeps, "(reflect.Value).Recv": sleeps, "reflect.Select": sleeps,
	"fmt.Print": sleeps, "fmt.Println": sleeps, "fmt.Printf": sleeps, "fmt.Fprint": sleeps, "fmt.Fprintf": sleeps,
	"fmt.Fprintln": sleeps,
	"fmt.Scan":     sleeps, "fmt.Scanf": sleeps, "fmt.Scanln": sleeps, "fmt.Fscan": sleeps, "fmt.Fscanf": sleeps,
	"fmt.Fscanln": sleeps,
	"os.Getpid":   never, "os.NewSyscallError": never, "os.IsNotExist": never, "os.IsExist": never, "os.IsTimeout": never,
	"os.Getpagesize": never,
	"os.Getuid":      never, "os.Geteuid": never, "os.Getgid": never, "os.Getegid": never, "os.Getenv": never,
	"os.Exit":       never,
	"os.LookupEnv":  never,
	"(*os.File).Fd": never, "(*os.File).Name": never, "(*os.SyscallError).Error": never,
	"(syscall.Errno).Error": never, "(syscall.Errno).Is": never, "syscall.Getpid": never, "syscall.Getpagesize": never,
	"golang.org/x/sys/unix.Getpid": never, "golang.org/x/sys/unix.Gettid": never, "golang.org/x/sys/unix.Getuid": never,
	"golang.org/x/sys/unix.Getpagesize": never, "golang.org/x/sys/unix.ErrnoName": never,
	"golang.org/x/sys/unix.SignalName":        never,
	"golang.org/x/sys/unix.ByteSliceToString": never, "golang.org/x/sys/unix.Htons": never,
	// The kernel answers the following calls without a wait.
	"golang.org/x/sys/unix.Socket": never, "golang.org/x/sys/unix.Bind": never,
	"golang.org/x/sys/unix.SetsockoptInt":     never,
	"golang.org/x/sys/unix.SetsockoptIPMreqn": never, "golang.org/x/sys/unix.SetNonblock": never,
	"golang.org/x/sys/unix.EpollCtl": never,
	"net.ParseIP":                    never, "net.ParseMAC": never, "net.JoinHostPort": never, "net.SplitHostPort": never,
	"io.MultiWriter": never, "io.LimitReader": never, "io.NewSectionReader": never,
	"log/slog.String": never, "log/slog.Int": never, "log/slog.Any": never, "log/slog.With": never,
	"log/slog.New": never, "log/slog.NewTextHandler": never, "log/slog.NewJSONHandler": never,
	"golang.org/x/sync/errgroup.WithContext": never, "(*golang.org/x/sync/errgroup.Group).Go": spawns,
	"bufio.NewReader": never, "bufio.NewReaderSize": never, "bufio.NewWriter": never, "bufio.NewWriterSize": never,
	"bufio.NewScanner":      never,
	"(*bufio.Reader).Reset": never, "(*bufio.Writer).Reset": never, "(*bufio.Writer).Buffered": never,
	"(*bufio.Scanner).Buffer": never,
	"(testing.TB).Helper":     never, "(*testing.common).Helper": never,
	// The following functions store the text. The test prints it when it ends.
	"(testing.TB).Error": never, "(testing.TB).Errorf": never, "(testing.TB).Log": never, "(testing.TB).Logf": never,
	"(*testing.common).Error": never, "(*testing.common).Errorf": never, "(*testing.common).Log": never,
	"(*testing.common).Logf": never,
	"(error).Error":          never, "(io/fs.FileInfo).Size": never, "(io/fs.FileInfo).Name": never,
	"(io/fs.FileInfo).Mode":    never,
	"(io/fs.FileInfo).ModTime": never, "(io/fs.FileInfo).IsDir": never, "(io/fs.FileInfo).Sys": never,
	"(io/fs.FileMode).IsDir":     never,
	"(io/fs.FileMode).IsRegular": never, "(io/fs.FileMode).Perm": never,
}

// nonSleepingPackages lists packages with functions that do not sleep, except the functions in externalFuncs.
var nonSleepingPackages = map[string]bool{
	"bytes": true, "cmp": true, "context": true, "container/heap": true, "container/list": true, "crypto/sha256": true,
	"crypto/rand": true,
	"encoding":    true, "encoding/base64": true, "encoding/binary": true, "encoding/hex": true, "encoding/json": true,
	"errors": true,
	"fmt":    true, "hash": true, "hash/crc32": true, "hash/fnv": true, "hash/maphash": true, "internal/race": true,
	"iter": true, "maps": true, "math": true,
	"math/big": true, "math/bits": true, "math/rand": true, "math/rand/v2": true, "net/netip": true, "path": true,
	"path/filepath": true, "reflect": true, "regexp": true,
	"runtime": true, "runtime/debug": true, "slices": true, "sort": true, "strconv": true, "strings": true, "sync": true,
	"sync/atomic":    true,
	"text/tabwriter": true, "time": true, "unicode": true, "unicode/utf8": true, "unique": true, "unsafe": true,
	"weak":    true,
	"structs": true, "flag": true, "runtime/pprof": false,
}

// externalKind returns the kind of a function of another package, and reports whether the tables contain the
// function.
func externalKind(f *types.Func) (kind sleepiness, known bool) {
	if k, ok := externalFuncs[f.FullName()]; ok {
		return k, true
	}
	if f.Pkg() == nil || nonSleepingPackages[f.Pkg().Path()] || strings.HasPrefix(f.Pkg().Path(), "go/") {
		return never, true
	}
	if f.Pkg().Path() == "golang.org/x/sys/unix" && f.Signature().Recv() != nil { // these methods only set fields
		return never, true
	}
	if f.Name() == "Error" || f.Name() == "String" || f.Name() == "Is" || f.Name() == "Unwrap" || f.Name() == "Timeout" {
		return never, true
	}
	return sleeps, false
}

func typeName(obj types.Object) string { return path.Base(obj.Pkg().Path()) + "." + obj.Name() }
