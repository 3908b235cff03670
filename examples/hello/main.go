// Command hello writes into the memory of another queue pair, on a software device in its own process.
package main

import (
	"context"
	"fmt"

	"verbena/verbs"
	"verbena/verbs/embed"
)

func main() {
	dev := must(must(embed.NewSoftware()).Open("")) // verbs.Open("") opens a device of the kernel or of a service instead
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(16, nil))
	a, b := must(pd.CreateQP(verbs.QPInit{SendCQ: cq})), must(pd.CreateQP(verbs.QPInit{SendCQ: cq}))
	must(0, verbs.ConnectPair(a, b))
	from, to := must(pd.Alloc(64, 0)), must(pd.Alloc(64, verbs.LocalWrite|verbs.RemoteWrite))
	n := copy(from.Bytes(), "hello, world")
	must(0, a.PostSend(&verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Local: from.SGE(0, n),
		Remote: to.Remote(0)}))
	var wc [1]verbs.WC
	must(cq.Wait(context.Background(), wc[:]))
	fmt.Printf("%v: %s\n", wc[0].Status, to.Bytes()[:n])
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
