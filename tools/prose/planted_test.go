package main

// plantedSource is the source of a Go file with violations. A line "PLANT rule" precedes the line of each
// violation.
const plantedSource = `// Package p tests the rules.
package p

import (
	"errors"
	"flag"
	"fmt"
	"testing"
)

// PLANT definition
// What a client has asked for.
var asked int

// PLANT definition
var kept = 1 // how many are kept

// PLANT definition
// place says where the ring begins.
var place int

// PLANT definition
// limit is how long a caller sleeps.
var limit int

// PLANT definition
// mode tells whether the port is up.
var mode int

// events collects the events.
//
// PLANT clause
// The reader takes what was posted.
var events int

// drops counts packets.
//
// PLANT clause
// The table holds those that have arrived.
var drops int

// PLANT clause
// The token goes to who waits.
var token int

// PLANT clause
// list names the owners of what the device sends.
var list int

// PLANT clause
// from is the port that packets are from.
var from int

// PLANT person
// lock is held when nobody looks.
var lock int

// PLANT person
// queue is of a thread whose program has ended.
var queue int

// PLANT person
// buffer belongs to somebody else.
var buffer int

// PLANT person
// size is chosen by whoever calls.
var size int

// PLANT causative
// fault has a call wait.
var fault int

// PLANT causative
// rule lets requests fail.
var rule int

// PLANT causative
// hook is told about each reset.
var hook int

// PLANT causative
// delay has it fail.
var delay int

// PLANT order
// Of the packet only the header is kept.
var header int

// PLANT order
// counter covers the bytes of the wire only.
var counter int

// PLANT order
// handle is to be closed by the caller.
var handle int

// PLANT order
// So does the other side.
var side int

// PLANT pronoun
// It may be nil.
var option int

// PLANT pronoun
// They are sorted.
var names int

// PLANT pronoun
// pages are the kernel's, or the user's.
var pages int

// PLANT pronoun
// ends has two queues, the one of requests and the other of answers.
var ends int

// PLANT picture
// worker has the turn of an endpoint.
var worker int

// PLANT picture
// ring is the bell of a program.
var ring int

// PLANT picture
// slow is a lane for packets.
var slow int

// PLANT picture
// wait measures the patience of a peer.
var wait int

// PLANT chain
// copied holds the header so that the peer cannot change it, because it owns the page.
var copied int

// PLANT long
// total is one of the numbers which a reader of this comment reads until the end comes
// and the reader has seen far too many words in one sentence and then it still goes on, and on again,
// until it ends after more words and some others.
var total int

// PLANT columns
var aShortName, aNameThatIsLong, anotherNameThatIsLong, yetAnotherNameThatIsLong, aLastNameThatIsLong, reallyTheLastName = 1, 2, 3, 4, 5, 6

// PLANT form
// open: the port is open.
func open() {}

// PLANT form
// Closes the port.
func Close() {}

// PLANT noun
// Addr is the address.
func Addr() {}

// PLANT spelling
// color of a packet, for example red.
var colour int

type state struct {
	probe int
	// PLANT names
	probes int
	// PLANT definition
	kind int // what the state is for
}

// serve serves a port.
//
// PLANT stale
// It calls the handler. accept returns later.
func serve() {}

type options struct {
	// PLANT person
	Force bool ` + "`" + `help:"Stop it even if somebody uses it."` + "`" + `
}

func fail(t *testing.T) {
	// PLANT causative
	err := errors.New("let requests fail")
	// PLANT person
	err = fmt.Errorf("post: nobody answers: %w", err)
	// PLANT clause
	t.Errorf("got %v of what was sent", err)
	// PLANT person
	flag.Int("n", 0, "limit for whoever connects")
	// PLANT person
	t.Fatalf("stopped: " +
		"nobody polls")
}
`

// plantedPage is a Markdown page with violations.
const plantedPage = `# A page

<!-- PLANT person -->
Nobody reads this page.

A list:

<!-- PLANT order -->
- Of each queue one entry is kept.
<!-- PLANT picture -->
- A door of the service.

| name | use |
|---|---|
<!-- PLANT definition -->
| a | says what a device has |
`

// rightSentences lists correct sentences in the manner of the standard library and of well-kept modules.
var rightSentences = []string{
	"Dial connects to the address on the named network.",
	"The connection is reused only if the caller reads the body to its end.",
	"A zero timeout means that the call blocks until data arrives.",
	"Close releases the resources of the queue. Later calls return an error.",
	"Holding the lock is the caller's responsibility.",
	"If the peer has closed its end, Read returns io.EOF.",
	"The returned slice is valid until the next call of Next.",
	"Callers must not modify the slice.",
	"A Pool is safe for use by multiple goroutines simultaneously.",
	"The scheduler wakes at most one thread per event.",
	"This is a no-op on systems without huge pages.",
	"The header is copied before it is parsed, because the program can change it.",
	"Retransmission starts when the timer expires.",
	"The window limits the number of packets in flight.",
	"An acknowledgement covers all packets up to its PSN.",
	"Each completion carries the ID of its work request.",
	"The doorbell write is the only system call on this path.",
	"Only the goroutine that owns the ring may advance the producer index.",
	"The kernel rejects the call with EINVAL if the length is zero.",
	"Work requests are processed in order; completions may be coalesced.",
	"The receiver drops duplicates and acknowledges them again.",
	"A reset flushes all outstanding requests.",
	"The backoff doubles after each timeout, up to one second.",
	"See section 9.7.5 of the specification for the retry rules.",
	"The mutex protects the fields below.",
	"Note that the order of the two stores matters.",
	"The poller spins for a short time, then sleeps until an event arrives.",
	"Errors wrap the errno of the failed call.",
	"For example, a queue of 100 entries occupies two pages.",
	"The table grows on demand and never shrinks.",
	"Reads of a closed channel return immediately.",
	"This field is nil for queue pairs without a shared receive queue.",
	"The driver calls this function with the device lock held.",
	"The caller can retry the operation after a delay.",
	"To avoid a deadlock, release the lock before the callback runs.",
	"Unlike Read, this method does not block.",
	"The size must be a power of two.",
	"In checked mode, a second call panics.",
	"The port number is in host byte order.",
	"A nil context is treated as context.Background().",
	"The cache is an optimisation and may be dropped at any time.",
	"There is no ordering between different queue pairs.",
	"The test fails if the goroutine is still running after a second.",
	"Unmap removes the mapping and wakes all waiters.",
	"The service runs as an ordinary user and needs no capabilities.",
	"Memory is pinned until the last reference is dropped.",
	"The bitmap has one bit per slot.",
	"Access beyond the end of a region completes with a protection error.",
	"The default is 16.",
	"Use this option in tests only.",
	"The file holds one record per line, sorted by address.",
	"We cannot rely on the length field, since the client can overwrite it.",
	"The loop exits as soon as the queue is empty.",
	"Both ends of the connection must agree on the MTU.",
	"The reply contains the number of bytes written, or a negative errno.",
	"An interrupted call restarts automatically.",
	"If several threads wait, the order in which they wake is undefined.",
	"The first packet of a message carries the virtual address.",
	"TODO: remove this workaround when the minimum kernel is 6.6.",
	"modify QP 17: max_dest_rd_atomic 200 exceeds 128",
	"PollCQ: got %v, want %v",
	"Run the service in the foreground.",
	"Print the counters of a device once per second.",
	"unexpected length of the header: got %d, want %d",
	"open %s: permission denied; run the command as root",
	"The name is reported in the trace as well, as in the kernel.",
	"Most programs call this once at start-up, for each port.",
	"minTimeout is the floor of the local ACK timeout.",
	"Without this check, any program could inject packets into another connection.",
	"The descriptor can refer to a file of another user.",
}
