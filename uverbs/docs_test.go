package uverbs

import (
	"fmt"
	"strings"
	"testing"

	"verbena/internal/gendoc"
	"verbena/uapi"

	kernelabi "verbena/test/abi"
)

const verbsDoc = "../docs/results/verbs.md"

// TestVerbsDocIsCurrent generates the tables of commands and methods of docs/results/verbs.md. The columns of the
// kernel's rxe come from recorded answers of the kernel, one for each command or method.
func TestVerbsDocIsCurrent(t *testing.T) {
	const noCommand, noMethod = "EOPNOTSUPP", "EPROTONOSUPPORT"
	kernel, version := kernelabi.Device.Kernel()
	yes := func(there bool, errno string) string {
		if there {
			return "**yes**"
		}
		return errno
	}
	ofKernel := func(question, errno string) string {
		answer, asked := kernel[question]
		if !asked {
			t.Errorf("kernel.txt: got no answer to %q, want one", question)
		}
		if answer == noCommand { // the kernel may define a method that can never succeed
			errno = noCommand
		}
		return yes(answer != errno, errno)
	}

	var b strings.Builder
	fmt.Fprintf(&b, "| command | Verbena | %s |\n|---|---|---|\n", version)
	for n := uapi.CmdGetContext; n <= uapi.CmdOpenQP; n++ {
		_, there := commands[uint32(n)]
		theirs := "**yes**" // yes is the first answer, without which no other query would be answered
		if n != uapi.CmdGetContext {
			theirs = ofKernel(fmt.Sprintf("invoke command %d", n), noCommand)
		}
		fmt.Fprintf(&b, "| %v | %s | %s |\n", n, yes(there, noCommand), theirs)
	}
	for n := uapi.ExCommand(0); n <= uapi.ExCmdModifyCQ; n++ {
		if strings.Contains(n.String(), "(") { // no such number
			continue
		}
		_, there := commands[uint32(n)|uapi.CmdFlagExtended]
		fmt.Fprintf(&b, "| %v | %s | %s |\n", n, yes(there, noCommand),
			ofKernel(fmt.Sprintf("invoke extended command %d", n), noCommand))
	}
	gendoc.CheckSection(t, verbsDoc, "commands", b.String())

	b.Reset()
	fmt.Fprintf(&b, "| object | method | Verbena | %s |\n|---|---|---|---|\n", version)
	for o := uapi.ObjectDevice; o <= uapi.ObjectCompCntr; o++ {
		for m := uapi.MethodID(0); m < 9; m++ {
			name := uapi.MethodName(o, m)
			if strings.Contains(name, " ") { // no such number
				continue
			}
			method := methods[methodID{o, m}]
			theirs := "**yes**"
			switch name {
			case "GET_CONTEXT", "ASYNC_EVENT_ALLOC": // as above
			case "ADVISE_MR":
				theirs = ofKernel("MR: advise, not on demand", noMethod)
			case "REG_DMABUF_MR":
				theirs = ofKernel("MR: dma-buf", noMethod)
			default:
				theirs = ofKernel(fmt.Sprintf("method %d of object %d", m, o), noMethod)
			}
			ours := yes(method != nil, noMethod)
			if name == "REG_DMABUF_MR" {
				ours = noCommand
			}
			fmt.Fprintf(&b, "| %v | %s | %s | %s |\n", o, name, ours, theirs)
		}
	}
	gendoc.CheckSection(t, verbsDoc, "methods", b.String())
}
