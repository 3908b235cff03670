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

var failed bool

func say(what string, err error) {
	if err != nil {
		failed = true
		fmt.Printf("%s: %v\n", what, err)
		return
	}
	fmt.Printf("%s: ok\n", what)
}

func main() {
	name := "/dev/infiniband/uverbs0"
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if say("open", err); err != nil {
		os.Exit(1)
	}
	say("context", command[uapi.GetContextResp](fd, uapi.CmdGetContext, uapi.GetContext{}))
	say("alloc_pd", command[uapi.AllocPDResp](fd, uapi.CmdAllocPD, uapi.AllocPD{}))
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
		if say(way.name, err); err != nil {
			continue
		}
		duplicates = append(duplicates, d)
		say(way.name+", alloc_pd", command[uapi.AllocPDResp](d, uapi.CmdAllocPD, uapi.AllocPD{}))
	}
	fmt.Printf("pidfd_getfd here: %v\n", own(fd))
	say("close", unix.Close(fd))
	for _, d := range duplicates {
		say("alloc_pd after close", command[uapi.AllocPDResp](d, uapi.CmdAllocPD, uapi.AllocPD{}))
	}
	if failed {
		os.Exit(1)
	}
}

// own makes the system calls by which a service gets a descriptor of a program, on this process itself.
func own(fd int) error {
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

// memory holds the responses, at a fixed address.
var memory = func() []byte {
	b, err := unix.Mmap(-1, 0, 1<<12, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(err)
	}
	return b
}()

type response struct{ addr uint64 }

// command writes a command with a response. The address of the response is the first field of the command.
func command[Resp, Req any](fd int, cmd uapi.Command, req Req) error {
	core := uapi.AppendTo(nil, &req)
	copy(core, uapi.AppendTo(nil, &response{addressOf(memory)}))
	h := uapi.CmdHdr{Command: uint32(cmd), InWords: uint16((8 + len(core)) / 4),
		OutWords: uint16((uapi.SizeOf[Resp]() + 3) / 4)}
	_, err := unix.Write(fd, slices.Concat(uapi.AppendTo(nil, &h), core))
	return err
}
