// Command dup duplicates the descriptor of an RDMA device in every possible way, and issues commands on the
// duplicates. The command prints a line for each duplicate, which contains a word, and "ok" or the error.
package main

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"verbena/uapi"
)

var anyCheckFailed bool

func printResult(what string, err error) {
	if err != nil {
		anyCheckFailed = true
		fmt.Printf("%s: %v\n", what, err)
		return
	}
	fmt.Printf("%s: ok\n", what)
}

func main() {
	name := "/dev/infiniband/uverbs0"
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if printResult("open", err); err != nil {
		os.Exit(1)
	}
	printResult("context", writeCommand[uapi.GetContextResp](fd, uapi.CmdGetContext, uapi.GetContext{}))
	printResult("alloc_pd", writeCommand[uapi.AllocPDResp](fd, uapi.CmdAllocPD, uapi.AllocPD{}))
	far := fd + 1 // a device's number; a duplicate with a lower number allows only ioctl(2) (docs/verbs.md)
	ways := []struct {
		name string
		dup  func() (int, error)
	}{
		{"dup", func() (int, error) { return unix.Dup(fd) }},
		{"dup3", func() (int, error) { return far, unix.Dup3(fd, far, unix.O_CLOEXEC) }},
		{"F_DUPFD_CLOEXEC", func() (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 10) }},
	}
	var duplicates []int
	for _, way := range ways {
		d, err := way.dup()
		if printResult(way.name, err); err != nil {
			continue
		}
		duplicates = append(duplicates, d)
		printResult(way.name+", alloc_pd", writeCommand[uapi.AllocPDResp](d, uapi.CmdAllocPD, uapi.AllocPD{}))
	}
	fmt.Printf("pidfd_getfd here: %v\n", duplicateOwnDescriptor(fd))
	printResult("close", unix.Close(fd))
	for _, d := range duplicates {
		printResult("alloc_pd after close", writeCommand[uapi.AllocPDResp](d, uapi.CmdAllocPD, uapi.AllocPD{}))
	}
	if anyCheckFailed {
		os.Exit(1)
	}
}

// duplicateOwnDescriptor makes the system calls by which a service gets a descriptor of a program, on this process
// itself.
func duplicateOwnDescriptor(fd int) error {
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	copied, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err == nil {
		unix.Close(copied)
	}
	return err
}

// responseMemory holds the responses, at a fixed address.
var responseMemory = func() []byte {
	b, err := unix.Mmap(-1, 0, 1<<12, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(err)
	}
	return b
}()

type response struct{ addr uint64 }

// writeCommand writes a command with a response. The address of the response is the first field of the command.
func writeCommand[Resp, Req any](fd int, cmd uapi.Command, req Req) error {
	core := uapi.AppendTo(nil, &req)
	copy(core, uapi.AppendTo(nil, &response{addressOf(responseMemory)}))
	h := uapi.CmdHdr{Command: uint32(cmd), InWords: uint16((8 + len(core)) / 4),
		OutWords: uint16((uapi.SizeOf[Resp]() + 3) / 4)}
	_, err := unix.Write(fd, slices.Concat(uapi.AppendTo(nil, &h), core))
	return err
}
