package umem_test

import (
	"fmt"
	"log"

	"verbena/umem"
)

// A region is a range of a space. A device can access only this range. The owner chooses the addresses.
func ExampleGet() {
	buf := []byte("0123456789")
	space := umem.NewLocal()
	addr, err := space.Add(buf)
	if err != nil {
		log.Fatal(err)
	}
	r, err := umem.Get(space, nil, addr+2, 4, 0x1000, false)
	if err != nil {
		log.Fatal(err)
	}
	defer r.Release()
	got := make([]byte, 2)
	fmt.Println(r.ReadV([][]byte{got}, 0x1001), string(got))
	fmt.Println(r.Contains(0x1003, 2)) // the second byte is outside
	// Output:
	// <nil> 34
	// false
}

// An account counts the pages of each registration up to a limit, like RLIMIT_MEMLOCK.
func ExampleAccount() {
	acct := umem.NewAccount(func() uint64 { return 2 * umem.PageSize })
	buf := make([]byte, 64)
	space := umem.NewLocal()
	addr, err := space.Add(buf)
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		r, err := umem.Get(space, acct, addr, 1, 0, false)
		if err != nil {
			fmt.Println("at", acct.Pages(), "pages:", err != nil)
			continue
		}
		defer r.Release()
	}
	// Output: at 2 pages: true
}
