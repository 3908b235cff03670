// Command buffers allocates and fills all buffers that a service allows this user, and prints their size. The
// program keeps the buffers until the end of standard input.
package main

import (
	"fmt"
	"io"
	"os"

	"verbena/verbs"
	"verbena/verbs/service"
)

func main() {
	const size = 1 << 20
	svc, err := service.At(os.Getenv("VERBENA_SOCKET"))
	if err != nil {
		fail(err)
	}
	n := 0
	var kept []*verbs.Buffer
	for misses := 0; misses < 2; { // each device is a separate connection with its own limit
		var dev *verbs.Device
		if dev, err = svc.Open(""); err != nil {
			break
		}
		before := n
		for {
			var b *verbs.Buffer
			if b, err = dev.Alloc(size); err != nil {
				break
			}
			for i := 0; i < size; i += 4096 {
				b.Bytes()[i] = 1
			}
			kept = append(kept, b)
			n++
		}
		if n == before {
			misses++
		}
	}
	fmt.Println("allocated", n, "MiB:", err)
	io.Copy(io.Discard, os.Stdin)
	fmt.Println("kept", len(kept))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
