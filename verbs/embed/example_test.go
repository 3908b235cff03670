package embed_test

import (
	"fmt"

	"verbena/verbs"
	"verbena/verbs/embed"
)

// SRD has no order: the notification of 8 bytes arrives before the data of 1 MB that were posted before it. A program
// that takes it for the arrival of the data, as on a reliable connection, reads memory that is not complete.
func ExampleNewEFA() {
	stack := must(embed.NewEFA())
	defer stack.Close()
	dev := must(stack.Open(""))
	defer dev.Close()
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(16, nil))
	from, to := must(pd.Alloc(1<<20, 0)), must(pd.Alloc(1<<20+8, verbs.LocalWrite|verbs.RemoteWrite))
	init := verbs.QPInit{Type: verbs.SRD, SendCQ: cq}
	a, b := must(pd.CreateQP(init)), must(pd.CreateQP(init))
	must(0, a.Activate(verbs.Path{}))
	must(0, b.Activate(verbs.Path{}))
	peer := must(b.Local())
	dest := verbs.Datagram{AH: must(pd.CreateAH(verbs.AHAttr{GID: peer.GID})), QPN: peer.QPN, QKey: peer.QKey}
	must(0, b.PostRecv(&verbs.RecvWR{ID: 3, Local: to.SGE(1<<20, 8)}))
	must(a.PostSends([]verbs.SendWR{
		{ID: 1, Opcode: verbs.Write, Flags: verbs.Signaled, Local: from.SGE(0, 1<<20), Remote: to.Remote(0), To: dest},
		{ID: 2, Opcode: verbs.Send, Flags: verbs.Signaled, Local: from.SGE(0, 8), To: dest},
	}))
	names := []string{1: "the data are written", 2: "the notification is sent", 3: "the notification arrives"}
	var wc [1]verbs.WC
	for range 3 {
		for must(cq.Poll(wc[:])) == 0 {
		}
		fmt.Println(names[wc[0].ID])
	}
	// Output:
	// the notification arrives
	// the notification is sent
	// the data are written
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
