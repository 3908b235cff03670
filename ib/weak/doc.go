// Package weak tests consumers against the least convenient device that the specification permits. [New] wraps any
// [ib.Driver]. The result keeps the contract of package ib, but uses every freedom of a device that correct consumers
// tolerate and incorrect ones do not:
//
//	d := loopback.New("weak0", nil)
//	d.Handle().Wrap(func(d ib.Driver) ib.Driver { return weak.New(d, weak.Config{Seed: 1}) })
//
// [Choices] is the table of the choices. It states the clause that permits each choice, and the misuse that it exposes.
// The choices are drawn from the seed, for each queue pair in creation order and each work request in posting order.
// They do not depend on time: a consumer that makes the same calls sees the same delays.
//
// A delay is counted in steps. Each Poll of the completion queue is a step, and so is each 200 µs while anything is
// delayed. Objects of user contexts, which post and poll without a call, pass unchanged.
//
// The checks of package ibtest are correct consumers, with two exceptions: some checks look at memory without a
// completion, and some count the completions in a queue with one Poll.
package weak
