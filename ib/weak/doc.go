// Package weak tests consumers against the least convenient device that the specification permits. [New] wraps any [ib.Driver]; the
// result keeps the contract of package ib and takes, of what a device may do, that which right consumers bear and wrong ones do not:
//
//	d := loopback.New("weak0", nil)
//	d.Handle().Wrap(func(d ib.Driver) ib.Driver { return weak.New(d, weak.Config{Seed: 1}) })
//
// [Choices] is the table of what it chooses, with the permission and the misuse that each choice exposes. The choices are drawn from
// the seed for each queue pair, in the order of creation, and each work request, in the order of posting. They do not depend on time: a
// consumer that makes the same calls gets the same delays.
//
// A delay is counted in steps: a Poll of the completion queue is one, and so is each 200 µs in which something is delayed. Objects of user
// contexts, which post and poll without a call, pass unchanged.
//
// Right consumers of the suite ibtest include all its checks but two kinds: checks that look at memory without a completion, and checks
// that count completions in a queue by one Poll.
package weak
